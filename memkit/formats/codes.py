"""Codes and values of a format: one number in plain Python, as chapter 02 works it out by hand, and whole arrays.

Between two powers of two a format's values stand evenly, 2^(e - m) apart. So scale a number until that distance is
1, and rounding into the format is rounding to a whole number r. In the code these numbers follow one another, binade
after binade:

    e = max(floor(log2 |x|), e_min)        r = round(|x| * 2^(m - e))        code = r + (e - e_min) * 2^m

A carry into the next binade, a subnormal and a zero need no case of their own: the addition takes care of them.

That needs integers and ``math`` alone, so the bit explorer moves in a web page, where there is no numpy.

A code is a whole number, 0 to 2^bits - 1. Every format of this book is a subset of float64, so ``decode`` into float64
is exact. Formats of up to 16 bits are decoded once, code by code, and looked up from then on. Arrays of values as
codes, and other directions than the nearest, are ``rounding``'s.

Source: IEEE 754-2019, section 4.3 (ties where there is one digit) and 7.4 (overflow).
"""

import functools
import math
import sys

import numpy as np

from memkit.formats.records import FloatFormat, Format, TableFormat, check_overflow, get_format


def code_fields(code: int, fmt: str | FloatFormat) -> tuple[int, int, int]:
    """Sign bit, exponent field and mantissa field of a code.

    >>> code_fields(0b1_0111_100, "float8_e4m3fn")    # -1.5
    (1, 7, 4)
    """
    fmt = get_format(fmt)
    if not isinstance(fmt, FloatFormat):
        raise ValueError(f"{fmt.name} has no sign, exponent and mantissa fields")
    check_code(code, fmt)
    m, e = fmt.mantissa_bits, fmt.exponent_bits
    return code >> m + e, code >> m & 2**e - 1, code & 2**m - 1


def check_code(code: int, fmt: Format) -> None:
    """Refuse what has more bits than the format."""
    if not 0 <= code < 2**fmt.bits:
        raise ValueError(f"code={code} is not a code of {fmt.name}; allowed 0..{2**fmt.bits - 1}")


def decode_one(code: int, fmt: str | Format) -> float:
    """The value that ``code`` stands for.

    >>> decode_one(0x7E, "float8_e4m3fn"), decode_one(0x7F, "float8_e4m3fn")
    (448.0, nan)
    """
    fmt = get_format(fmt)
    if isinstance(fmt, TableFormat):
        check_code(code, fmt)
        return fmt.table[code]
    sign, exponent, mantissa = code_fields(code, fmt)
    if code == fmt.nan_code or code & ~fmt.sign_mask > fmt.largest_code:
        return math.copysign(math.inf, -sign) if fmt.has_infinity and not mantissa else math.nan
    is_normal = exponent > 0 or not fmt.has_subnormals
    power = max(exponent - fmt.bias, fmt.min_exponent) - fmt.mantissa_bits
    value = math.ldexp((is_normal << fmt.mantissa_bits) + mantissa, power)
    return -value if sign else value


def encode_one(number: float, fmt: str | Format, *, overflow: str) -> int:
    """The code of the value of ``fmt`` nearest to ``number``, as ``rounding.encode`` says it.

    >>> hex(encode_one(0.1, "float8_e4m3fn", overflow="saturate"))
    '0x1d'
    """
    fmt, x = get_format(fmt), float(number)
    check_overflow(fmt, overflow)
    if math.isnan(x) and not fmt.num_nans:
        raise ValueError(f"values holds NaN, and {fmt.name} has no code for it")
    if isinstance(fmt, TableFormat):
        x = max(fmt.min, min(x, fmt.max))
        places = sorted(fmt.table)
        zero = places.index(0.0)  # a tie goes to the value an even number of places from zero
        nearest = min(places, key=lambda value: (abs(value - x), (places.index(value) - zero) % 2))
        return fmt.table.index(nearest)
    is_negative = math.copysign(1, x) < 0
    if math.isnan(x) or x == 0 and not fmt.has_zero or x < 0 and not fmt.sign_bits:
        code = fmt.nan_code
    else:
        within = max(-sys.float_info.max, min(x, sys.float_info.max))
        e = max(math.frexp(within)[1] - 1, fmt.min_exponent) if within else fmt.min_exponent
        r = round(math.ldexp(abs(within), fmt.mantissa_bits - e))
        code = r + (e - fmt.min_exponent << fmt.mantissa_bits)
        if not fmt.has_zero:  # the smallest value has code 0; torch and ml_dtypes go up just above it
            code = max(code - 2**fmt.mantissa_bits, int(x > fmt.smallest_normal))
        overflows = code > fmt.largest_code or math.isinf(x)
        code = min(code, fmt.largest_code)
        if overflows and overflow != "saturate":
            code = fmt.infinity_code if overflow == "inf" else fmt.nan_code
    has_minus = fmt.specials != "fnuz" or code != 0  # its -0 is the NaN
    return code | (fmt.sign_mask if is_negative and has_minus else 0)


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
