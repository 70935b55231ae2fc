"""One number of a format, in plain Python: what chapter 02 works out by hand, and what every array looks up.

Between two powers of two a format's values stand evenly, 2^(e - m) apart. So scale a number until that distance is
1, and rounding into the format is rounding to a whole number r. In the code these numbers follow one another, binade
after binade:

    e = max(floor(log2 |x|), e_min)        r = round(|x| * 2^(m - e))        code = r + (e - e_min) * 2^m

A carry into the next binade, a subnormal and a zero need no case of their own: the addition takes care of them.

It needs integers and ``math`` alone, so the bit explorer and the number line move in a web page, where there is no
numpy. ``decoding`` and ``rounding`` make their tables from it.

Sources: IEEE 754-2019, section 4.3 (directions; ties where there is one digit) and 7.4 (overflow).
"""

import functools
import math
import sys
from collections.abc import Callable

from memkit.formats.records import FloatFormat, Format, TableFormat, check_overflow, get_format

MAX_LISTED_BITS = 19
"""``values_of`` lists formats up to this width (TF32); float32 has 4 billion values."""

WHOLE = {"nearest_even": round, "toward_zero": math.trunc, "up": math.ceil, "down": math.floor}


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
        r, e = _whole(within, fmt.mantissa_bits, fmt.min_exponent, "nearest_even")
        code = abs(r) + (e - fmt.min_exponent << fmt.mantissa_bits)
        if not fmt.has_zero:  # the smallest value has code 0; torch and ml_dtypes go up just above it
            code = max(code - 2**fmt.mantissa_bits, int(x > fmt.smallest_normal))
        overflows = code > fmt.largest_code or math.isinf(x)
        code = min(code, fmt.largest_code)
        if overflows and overflow != "saturate":
            code = fmt.infinity_code if overflow == "inf" else fmt.nan_code
    has_minus = fmt.specials != "fnuz" or code != 0  # its -0 is the NaN
    return code | (fmt.sign_mask if is_negative and has_minus else 0)


def neighbours_of(value: float, fmt: str | Format) -> tuple[float, float]:
    """The format's nearest values strictly below and above ``value``; -inf or inf where there is none.

    >>> neighbours_of(448, "float8_e4m3fn")
    (416.0, inf)
    """
    fmt = get_format(fmt)
    if math.isnan(value):
        raise ValueError("values holds NaN, which has no neighbours")
    if isinstance(fmt, TableFormat):
        below = max((other for other in fmt.table if other < value), default=-math.inf)
        return below, min((other for other in fmt.table if other > value), default=math.inf)
    below, above = math.nextafter(value, -math.inf), math.nextafter(value, math.inf)
    return (
        -math.inf if below < fmt.min else rounder(fmt, "down")(below),
        math.inf if above > fmt.max else rounder(fmt, "up")(above),
    )


@functools.lru_cache(maxsize=8)
def values_of(fmt: str | Format) -> tuple[float, ...]:
    """Every finite value of the format, ascending, each once (-0 and +0 are one).

    >>> values_of("float4_e2m1fn")[7:]
    (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    """
    fmt = get_format(fmt)
    if fmt.bits > MAX_LISTED_BITS:
        raise ValueError(
            f"{fmt.name} has 2^{fmt.bits} codes; all_values lists formats of up to {MAX_LISTED_BITS} bits"
        )
    values = {decode_one(code, fmt) + 0.0 for code in range(2**fmt.bits)}  # + 0.0 turns -0 into +0
    return tuple(sorted(value for value in values if math.isfinite(value)))


@functools.lru_cache(maxsize=64)
def rounder(fmt: FloatFormat, rounding: str = "nearest_even") -> Callable[..., float]:
    """A function that rounds one Python float into ``fmt`` and saturates: value → value.

    A running sum rounds one value after another, and an array of one value takes 30 times as long. ``stochastic``
    rounding takes its chance as the second argument.
    """
    lowest, largest, m, e_min = fmt.min, fmt.max, fmt.mantissa_bits, fmt.min_exponent

    def rounded(x: float, chance: float = 0.0) -> float:
        x = max(lowest, min(x, largest))
        if x == 0:
            return x
        r, e = _whole(x, m, e_min, rounding, chance)
        return math.ldexp(r, e - m)

    return rounded


def _whole(x: float, m: int, e_min: int, rounding: str, chance: float = 0.0) -> tuple[int, int]:
    """x as r * 2^(e - m), with r rounded to a whole number."""
    e = max(math.frexp(x)[1] - 1, e_min) if x else e_min
    scaled = math.ldexp(x, m - e)
    if rounding == "stochastic":
        return math.floor(scaled) + (chance < scaled - math.floor(scaled)), e
    return WHOLE[rounding](scaled), e
