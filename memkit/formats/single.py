"""One number of a format, in plain Python: what chapter 02 works out by hand, and what every array looks up.

Between two powers of two a format's values stand evenly, 2^(e - m) apart. So scale a number until that distance is
1, and rounding into the format is rounding to a whole number r. In the code these numbers follow one another, binade
after binade:

    e = max(floor(log2 |x|), e_min)        r = round(|x| * 2^(m - e))        code = r + (e - e_min) * 2^m

A carry into the next binade, a subnormal and a zero need no case of their own: the addition takes care of them.

``read_code`` and ``nearest_in`` say it aloud: the fields of a code, the number they spell, the next ones on both
sides, and what a format makes of a number.

It needs integers and ``math`` alone, so the bit explorer moves in a web page, where there is no numpy. ``rounding``
does the same with arrays, and by chance.

Source: IEEE 754-2019, section 4.3 (ties where there is one digit) and 7.4 (overflow).
"""

import math
import sys
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

from memkit.formats.records import FloatFormat, Format, TableFormat, check_overflow, get_format

MOST_DIGITS = 17


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
    if math.isnan(x) or x == 0 and not fmt.has_subnormals or x < 0 and not fmt.sign_bits:
        code = fmt.nan_code
    else:
        within = max(-sys.float_info.max, min(x, sys.float_info.max))
        e = max(math.frexp(within)[1] - 1, fmt.min_exponent) if within else fmt.min_exponent
        r = round(math.ldexp(abs(within), fmt.mantissa_bits - e))
        code = r + (e - fmt.min_exponent << fmt.mantissa_bits)
        # the smallest value has code 0; torch and ml_dtypes go up just above it
        if not fmt.has_subnormals:
            code = max(code - 2**fmt.mantissa_bits, int(x > fmt.smallest_normal))
        overflows = code > fmt.largest_code or math.isinf(x)
        code = min(code, fmt.largest_code)
        if overflows and overflow != "saturate":
            code = fmt.infinity_code if overflow == "inf" else fmt.nan_code
    has_minus = fmt.specials != "fnuz" or code != 0  # its -0 is the NaN
    return code | (fmt.sign_mask if is_negative and has_minus else 0)


@dataclass(frozen=True)
class CodeReading:
    """What a code says; ``below`` and ``above`` are the next values of the format, None where there is none."""

    fmt: Format
    code: int

    @cached_property
    def value(self) -> float:
        """The number that the code stands for."""
        return decode_one(self.code, self.fmt)

    @cached_property
    def kind(self) -> str:
        """Normal, subnormal, zero, infinity, NaN or table entry."""
        if not isinstance(self.fmt, FloatFormat):
            return "table entry"
        if not math.isfinite(self.value):
            return "NaN" if math.isnan(self.value) else "infinity"
        if self.value == 0:
            return "zero"
        return "subnormal" if abs(self.value) < self.fmt.smallest_normal else "normal"

    @property
    def below(self) -> float | None:
        """The next smaller value, which may be an infinity."""
        return max((other for other in self._near if other < self.value), default=None)

    @property
    def above(self) -> float | None:
        """The next larger value, which may be an infinity."""
        return min((other for other in self._near if other > self.value), default=None)

    @cached_property
    def _near(self) -> tuple[float, ...]:
        """The next values, among others."""
        fmt = self.fmt
        if not isinstance(fmt, FloatFormat):
            return fmt.table
        magnitude = self.code & ~fmt.sign_mask  # codes of one sign follow their magnitudes
        codes = [code for code in (magnitude - 1, magnitude + 1) if 0 <= code < 2**fmt.bits]
        return tuple(decode_one(code | sign, fmt) for code in codes for sign in (0, fmt.sign_mask))

    @property
    def bits(self) -> str:
        """The code in binary, with all its digits."""
        return f"{self.code:0{self.fmt.bits}b}"

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Name and bits of each field, from the left.

        >>> read_code(0x3C, "float8_e4m3fn").fields
        (('sign', '0'), ('exponent', '0111'), ('mantissa', '100'))
        """
        if not isinstance(self.fmt, FloatFormat):
            return (("table index", self.bits),)
        s, e = self.fmt.sign_bits, self.fmt.exponent_bits
        ends = {"sign": (0, s), "exponent": (s, s + e), "mantissa": (s + e, self.fmt.bits)}
        return tuple((name, self.bits[a:b]) for name, (a, b) in ends.items() if a < b)

    @property
    def spelled(self) -> str:
        """How the fields make the value.

        >>> read_code(0x3C, "float8_e4m3fn").spelled, read_code(0x03, "float8_e4m3fn").spelled
        ('+ 2^(7 − 7) × (1 + 4/8)', '+ 2^(1 − 7) × 3/8')
        """
        if self.kind == "table entry":
            return f"entry {self.code} of a table of {self.fmt.num_values}"
        if self.kind in ("infinity", "NaN"):
            return f"a code set apart for {self.kind}"
        sign, exponent, mantissa = code_fields(self.code, self.fmt)
        has_leading_one = exponent > 0 or not self.fmt.has_subnormals
        power = f"2^({exponent if has_leading_one else 1} − {self.fmt.bias})"
        share = f"{mantissa}/{2**self.fmt.mantissa_bits}"
        significand = f" × (1 + {share})" if has_leading_one else f" × {share}"
        return f"{'−' if sign else '+'} {power}" + (significand if self.fmt.mantissa_bits else "")

    def text(self, value: float | None) -> str:
        """``value`` with the digits that tell it from its neighbours in this format, at least six."""
        return number_text(value, max(6, getattr(self.fmt, "round_trip_digits", 6)))

    @property
    def equals(self) -> str:
        """The value with its sign of equality: all its decimals, or, beyond ``MOST_DIGITS``, about as much.

        >>> read_code(0x1D, "float8_e4m3fn").equals, read_code(1, "float32").equals
        ('= 0.1015625', '≈ 1.40129846e-45')
        """
        exact = abs(Decimal(self.value)).normalize()
        if len(exact.as_tuple().digits) > MOST_DIGITS:
            return f"≈ {self.text(self.value)}"
        is_plain = 1e-6 <= exact < 1e15 or not exact
        text = f"{exact:f}" if is_plain else str(exact).replace("E", "e")
        return f"= {'−' if math.copysign(1, self.value) < 0 else ''}{text}"


def read_code(code: int, fmt: str | Format) -> CodeReading:
    """What ``code`` means in ``fmt``, and the values next to it.

    >>> reading = read_code(0x7E, "float8_e4m3fn")
    >>> reading.kind, reading.value, reading.below, reading.above
    ('normal', 448.0, 416.0, None)
    """
    fmt = get_format(fmt)
    check_code(code, fmt)
    return CodeReading(fmt, code)


@dataclass(frozen=True)
class Nearest:
    """A number as a format holds it, by its code."""

    fmt: Format
    number: float
    code: int

    @cached_property
    def value(self) -> float:
        """What is held."""
        return decode_one(self.code, self.fmt)

    @property
    def is_beyond(self) -> bool:
        """Whether the number lies outside the format's finite range."""
        return not self.fmt.min <= self.number <= self.fmt.max

    @property
    def relative_error(self) -> float:
        """|value - number| / |number|; 0 where they are equal, infinite or NaN where the value is."""
        if self.value == self.number:
            return 0.0
        return abs(self.value - self.number) / abs(self.number)

    @property
    def is_exact(self) -> bool:
        """Whether nothing is lost, not even the sign of zero."""
        signs = (math.copysign(1, each) for each in (self.value, self.number))
        return self.value == self.number and len({*signs}) == 1


def nearest_in(number: float, fmt: str | Format, *, saturates: bool) -> Nearest:
    """``number`` rounded to the nearest value of ``fmt``, ties to even.

    Beyond its range a format saturates, or else gives infinity or NaN, whichever it has; formats with neither
    saturate always.

    >>> nearest_in(0.1, "float8_e4m3fn", saturates=True).value, nearest_in(500, "float16", saturates=False).value
    (0.1015625, 500.0)
    """
    fmt, number, overflow = get_format(fmt), float(number), "saturate"
    if not math.isfinite(number):
        raise ValueError(f"number={number} is not finite")
    if not saturates and (fmt.has_infinity or fmt.num_nans):
        overflow = "inf" if fmt.has_infinity else "nan"
    return Nearest(fmt, number, encode_one(number, fmt, overflow=overflow))


def number_text(value: float | None, digits: int = 6) -> str:
    """A value in at most ``digits`` significant digits.

    >>> number_text(1.5), number_text(-(2.0**-24)), number_text(float("inf")), number_text(None)
    ('1.5', '−5.96046e-08', '∞', 'none')
    """
    if value is None or math.isnan(value):
        return "none" if value is None else "NaN"
    text = "∞" if math.isinf(value) else f"{abs(value):.{digits}g}"
    return f"−{text}" if math.copysign(1, value) < 0 else text


def parse_number(text: object) -> float:
    """A number as a reader types it: 0.1, 1e-8, 1/3, 2^-24, 2**-24.

    Raises: ValueError: it is not a finite number.

    >>> parse_number("2^-24") == parse_number("2**-24"), parse_number("-1/4"), parse_number(0.1)
    (True, -0.25, 0.1)
    """
    words = str(text).replace("−", "-").replace("**", "^")
    try:
        if "/" in words:
            above, below = words.split("/")
            number = float(above) / float(below)
        else:
            base, is_power, exponent = words.partition("^")
            number = float(base) ** (float(exponent) if is_power else 1)
        if math.isfinite(number):  # a complex power is a TypeError
            return number
    except (ValueError, TypeError, ArithmeticError):
        pass
    raise ValueError(f"number={text!r} is not a finite number such as 0.1, 1/3 or 2^-24")
