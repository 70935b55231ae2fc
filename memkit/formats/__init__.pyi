"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .blocks import (
    BLOCK_FORMATS as BLOCK_FORMATS,
    quantize as quantize,
)
from .records import FORMATS as FORMATS
from .rounding import (
    ROUNDINGS as ROUNDINGS,
    all_values as all_values,
    decode as decode,
    round_to as round_to,
    running_sum as running_sum,
    sticking_point as sticking_point,
    torch_overflow as torch_overflow,
)
from .single import read_code as read_code
