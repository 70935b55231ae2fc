"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .blocks import (
    SCALINGS as SCALINGS,
    Scaling as Scaling,
    factors_from as factors_from,
    relative_error as relative_error,
    scale_to as scale_to,
)
from .records import FORMATS as FORMATS
from .rounding import (
    all_values as all_values,
    decode as decode,
    round_to as round_to,
)
from .single import read_code as read_code
