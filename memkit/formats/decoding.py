"""From codes to values: what every bit pattern of a format means.

A code is a whole number, 0 to 2^bits - 1. Every format of this book is a subset of float64, so decoding into
float64 is exact. Formats of up to 16 bits are decoded once, all codes, and looked up from then on.
"""

import functools

import numpy as np

from memkit.formats.records import FloatFormat, Format, get_format
from memkit.formats.single import check_listed

MAX_TABLE_BITS = 16


def decode(codes: object, fmt: str | Format, *, dtype: type = np.float64) -> np.ndarray:
    """The values that ``codes`` stand for, exact in float64 (and in float32, for every format but float64).

    Shapes: that of ``codes``.
    Raises: TypeError: codes are not whole numbers. ValueError: a code outside ``0..2^bits - 1``.

    >>> decode([0x00, 0x38, 0x7E, 0x7F], "float8_e4m3fn")
    array([  0.,   1., 448.,  nan])
    """
    fmt = get_format(fmt)
    codes = as_codes(codes, fmt)
    if fmt.bits <= MAX_TABLE_BITS:
        return _table(fmt, np.dtype(dtype).type)[codes]
    return _decode(codes.astype(np.uint64), fmt).astype(dtype, copy=False)


def all_values(fmt: str | Format) -> np.ndarray:
    """Every finite value of the format, ascending, each once (-0 and +0 are one).

    >>> all_values("float4_e2m1fn")
    array([-6. , -4. , -3. , -2. , -1.5, -1. , -0.5,  0. ,  0.5,  1. ,  1.5,  2. ,  3. ,  4. ,  6. ])
    """
    fmt = get_format(fmt)
    check_listed(fmt)
    values = decode(np.arange(2**fmt.bits), fmt)
    return np.unique(values[np.isfinite(values)]) + 0.0  # + 0.0 turns -0 into +0


def as_codes(codes: object, fmt: Format) -> np.ndarray:
    """``codes`` as an integer array, each within the format's bits."""
    codes = np.asarray(codes)
    if codes.dtype.kind not in "iu":
        raise TypeError(f"codes of dtype {codes.dtype} are not whole numbers")
    if codes.size and not (0 <= int(codes.min()) and int(codes.max()) < 2**fmt.bits):
        bad = int(codes.min()) if codes.min() < 0 else int(codes.max())
        raise ValueError(f"code={bad} is not a code of {fmt.name}; allowed 0..{2**fmt.bits - 1}")
    return codes


@functools.lru_cache(maxsize=64)
def _table(fmt: Format, dtype: type) -> np.ndarray:
    return _decode(np.arange(2**fmt.bits, dtype=np.uint64), fmt).astype(dtype)


def _decode(codes: np.ndarray, fmt: Format) -> np.ndarray:
    if not isinstance(fmt, FloatFormat):
        return np.array(fmt.table)[codes]
    m, e = fmt.mantissa_bits, fmt.exponent_bits
    sign, mantissa = codes >> np.uint64(m + e), codes & np.uint64(2**m - 1)
    exponent = codes >> np.uint64(m) & np.uint64(2**e - 1)
    is_normal = exponent > 0 if fmt.has_subnormals else np.ones(codes.shape, bool)
    significand = np.where(is_normal, 2.0**m, 0.0) + mantissa
    power = np.maximum(exponent.astype(np.int64) - fmt.bias, fmt.min_exponent) - m
    with np.errstate(over="ignore"):  # float64's own top exponent field is infinity or NaN, set below
        value = np.where(sign, -1.0, 1.0) * np.ldexp(significand, power)
    if fmt.specials == "fnuz":
        return np.where(codes == fmt.nan_code, np.nan, value)
    beyond = (codes & np.uint64(2 ** (fmt.bits - fmt.sign_bits) - 1)) > fmt.largest_code
    special = np.where((mantissa == 0) & fmt.has_infinity, np.where(sign, -np.inf, np.inf), np.nan)
    return np.where(beyond, special, value)
