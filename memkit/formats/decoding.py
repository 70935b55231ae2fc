"""Arrays of codes as arrays of values, for every chapter that shows what a format holds.

A code is a whole number, 0 to 2^bits - 1. Every format of this book is a subset of float64, so decoding into
float64 is exact. Formats of up to 16 bits are decoded once, code by code, and looked up from then on.
"""

import functools

import numpy as np

from memkit.formats.records import Format, get_format
from memkit.formats.single import check_code, decode_one

MAX_TABLE_BITS, MAX_LISTED_BITS = 16, 19
"""``all_values`` lists formats up to TF32's width; float32 has 4 billion values."""


def decode(codes: object, fmt: str | Format, *, dtype: type = np.float64) -> np.ndarray:
    """The values that ``codes`` stand for, exact in float64 (and in float32, for every format but float64).

    Shapes: that of ``codes``.
    Raises: TypeError: codes are not whole numbers. ValueError: a code outside ``0..2^bits - 1``.

    >>> decode([0x00, 0x38, 0x7E, 0x7F], "float8_e4m3fn")
    array([  0.,   1., 448.,  nan])
    """
    fmt, codes = get_format(fmt), np.asarray(codes)
    if codes.dtype.kind not in "iu":
        raise TypeError(f"codes of dtype {codes.dtype} are not whole numbers")
    if codes.size:
        check_code(int(codes.min()), fmt)
        check_code(int(codes.max()), fmt)
    if fmt.bits <= MAX_TABLE_BITS:
        return _table(fmt, np.dtype(dtype).type)[codes]
    values = [decode_one(code, fmt) for code in codes.ravel().tolist()]
    return np.array(values, dtype).reshape(codes.shape)


def all_values(fmt: str | Format) -> np.ndarray:
    """Every finite value of the format, ascending, each once (-0 and +0 are one).

    >>> all_values("float4_e2m1fn")
    array([-6. , -4. , -3. , -2. , -1.5, -1. , -0.5,  0. ,  0.5,  1. ,  1.5,  2. ,  3. ,  4. ,  6. ])
    """
    fmt = get_format(fmt)
    if fmt.bits > MAX_LISTED_BITS:
        raise ValueError(
            f"{fmt.name} has 2^{fmt.bits} codes; all_values lists formats of up to {MAX_LISTED_BITS} bits"
        )
    values = decode(np.arange(2**fmt.bits), fmt)
    return np.unique(values[np.isfinite(values)] + 0.0)  # + 0.0 turns -0 into +0


@functools.lru_cache(maxsize=64)
def _table(fmt: Format, dtype: type) -> np.ndarray:
    return np.array([decode_one(code, fmt) for code in range(2**fmt.bits)], dtype)
