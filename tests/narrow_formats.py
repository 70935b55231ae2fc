"""Formats of up to 16 bits, which ml_dtypes has too, and what it does above their largest number."""

from memkit.formats.records import FORMATS, FloatFormat

NARROW = [name for name, fmt in FORMATS.items() if isinstance(fmt, FloatFormat) and fmt.bits <= 16]


def ml_dtypes_overflow(name: str) -> str:
    """The ``overflow`` of ``memkit.formats.rounding.encode`` that is ml_dtypes' own."""
    fmt = FORMATS[name]
    return "inf" if fmt.has_infinity else "nan" if fmt.num_nans else "saturate"
