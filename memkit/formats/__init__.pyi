"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .blocks import (
    BLOCK_FORMATS as BLOCK_FORMATS,
    SCALINGS as SCALINGS,
    factors_from as factors_from,
    quantize as quantize,
    relative_error as relative_error,
    scale_to as scale_to,
)
from .records import FORMATS as FORMATS
from .rounding import (
    ROUNDINGS as ROUNDINGS,
    all_values as all_values,
    decode as decode,
    round_to as round_to,
    running_sum as running_sum,
    sticking_point as sticking_point,
)
from .single import read_code as read_code
