"""What filled the memory of a run, what would help, and what stands on a card beside the tensors.

Chapters 07 and 10.

Reading order:

- ``left_out``: what is on a card beside the tensors, and which cards a run fits
- ``alive``: which blocks of a run are alive at a moment, and whose they are
- ``changes``: the one adviser: what lowers a setup's peak
- ``diagnosis``: from a recording or a trace: peak, parts, lines, what grows, and the changes that it points to
"""

from .changes import advice_in_words, effects_on_setup
from .diagnosis import diagnose_memory, growing_lines
from .left_out import fits_of, left_out_of
