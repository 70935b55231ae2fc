"""Formats of up to 16 bits, which ml_dtypes has too, and what it does above their largest number."""

import torch

from memkit.formats.records import FORMATS, FloatFormat

NARROW = [name for name, fmt in FORMATS.items() if isinstance(fmt, FloatFormat) and fmt.bits <= 16]


def ml_dtypes_overflow(name: str) -> str:
    """The ``overflow`` of ``memkit.formats.rounding.encode`` that is ml_dtypes' own."""
    fmt = FORMATS[name]
    return "inf" if fmt.has_infinity else "nan" if fmt.num_nans else "saturate"


def overflow_of_torch(name: str) -> str:
    """What this torch's ``tensor.to`` makes of infinity, by E4M3FN the one that changed: NaN up to 2.12.

    Source: torch/headeronly/util/Float8_e4m3fn.h of each release; pytorch/pytorch#178817.
    """
    if name == "float8_e4m3fn":
        release = tuple(int(part) for part in torch.__version__.split(".")[:2])
        return "saturate" if release >= (2, 13) else "nan"
    return "nan" if name.endswith("fnuz") or name == "float8_e8m0fnu" else "inf"
