"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .changes import (
    CHANGES as CHANGES,
    Change as Change,
    Effect as Effect,
    advice_in_words as advice_in_words,
    effects_on_setup as effects_on_setup,
)
from .diagnosis import diagnose_memory as diagnose_memory
from .growing import growing_lines as growing_lines
from .left_out import (
    fits_of as fits_of,
    left_out_of as left_out_of,
)
