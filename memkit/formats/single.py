"""One number of a format, in plain Python: what chapter 02 works out by hand, and what every array looks up.

Between two powers of two a format's values stand evenly, 2^(e - m) apart. So scale a number until that distance is
1, and rounding into the format is rounding to a whole number r. In the code these numbers follow one another, binade
after binade:

    e = max(floor(log2 |x|), e_min)        r = round(|x| * 2^(m - e))        code = r + (e - e_min) * 2^m

A carry into the next binade, a subnormal and a zero need no case of their own: the addition takes care of them.

It needs integers and ``math`` alone, so the bit explorer moves in a web page, where there is no numpy. ``decoding``
makes its tables from it; arrays, and other directions than the nearest, are ``rounding``'s.

Source: IEEE 754-2019, section 4.3 (ties where there is one digit) and 7.4 (overflow).
"""

import math
import sys

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
        # the smallest value has code 0; torch and ml_dtypes go up just above it
        if not fmt.has_zero:
            code = max(code - 2**fmt.mantissa_bits, int(x > fmt.smallest_normal))
        overflows = code > fmt.largest_code or math.isinf(x)
        code = min(code, fmt.largest_code)
        if overflows and overflow != "saturate":
            code = fmt.infinity_code if overflow == "inf" else fmt.nan_code
    has_minus = fmt.specials != "fnuz" or code != 0  # its -0 is the NaN
    return code | (fmt.sign_mask if is_negative and has_minus else 0)
