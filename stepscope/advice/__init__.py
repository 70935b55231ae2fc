"""What filled the memory of a run, what would help, and what stands on a card beside the tensors.

Chapters 07 and 10.

Reading order:

- ``left_out``: what is on a card beside the tensors, and which cards a run fits
- ``growing``: lines that hold more from step to step, and graphs that no backward wanted
- ``changes``: the one adviser: what lowers a setup's peak, and the cures that a run points to
- ``diagnosis``: from a recording or a trace: peak, parts, lines, what grows, and cures
"""

from .changes import CHANGES, Change, Effect, advice_in_words, effects_on_setup
from .diagnosis import diagnose_memory
from .growing import growing_lines
from .left_out import fits_of, left_out_of
