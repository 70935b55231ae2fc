"""One code of a format read aloud: its fields, the number they spell, and the next numbers on both sides."""

import math
import operator
from dataclasses import dataclass
from decimal import Decimal

from memkit.formats.records import FloatFormat, Format, get_format
from memkit.formats.single import check_code, code_fields, decode_one, encode_one

MOST_DIGITS = 17


@dataclass(frozen=True, kw_only=True)
class CodeReading:
    """What a code says.

    ``kind`` is normal, subnormal, zero, infinity, NaN or table entry. ``below`` and ``above`` are the next
    values of the format, None where there is none.
    """

    fmt: Format
    code: int
    kind: str
    value: float
    below: float | None
    above: float | None

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
        parts = (
            ("sign", self.bits[:s]),
            ("exponent", self.bits[s : s + e]),
            ("mantissa", self.bits[s + e :]),
        )
        return tuple((name, bits) for name, bits in parts if bits)

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
        exact = Decimal(self.value).normalize()
        if len(exact.as_tuple().digits) > MOST_DIGITS:
            return f"≈ {self.text(self.value)}"
        text = (
            f"{abs(exact):f}"
            if 1e-6 <= abs(exact) < 1e15 or not exact
            else f"{abs(exact)}".replace("E", "e")
        )
        return f"= {'−' if math.copysign(1, self.value) < 0 else ''}{text}"


def read_code(code: int, fmt: str | Format) -> CodeReading:
    """What ``code`` means in ``fmt``, and the values next to it.

    >>> reading = read_code(0x7E, "float8_e4m3fn")
    >>> reading.kind, reading.value, reading.below, reading.above
    ('normal', 448.0, 416.0, None)
    """
    fmt = get_format(fmt)
    check_code(code, fmt)
    value = decode_one(code, fmt)
    below, above = _next_to(value, code, fmt)
    return CodeReading(
        fmt=fmt, code=code, kind=_kind(value, fmt), value=value, below=below, above=above
    )


def _next_to(value: float, code: int, fmt: Format) -> tuple[float | None, float | None]:
    """The next values below and above, an infinity among them; None where there is none."""
    if isinstance(fmt, FloatFormat):  # codes of one sign follow their magnitudes
        magnitude = code & ~fmt.sign_mask
        near = [c for c in (magnitude - 1, magnitude + 1) if 0 <= c < 2**fmt.bits]
        others = [decode_one(c, fmt) for c in (*near, *(c | fmt.sign_mask for c in near))]
    else:
        others = fmt.table
    below = max((other for other in others if other < value), default=None)
    return below, min((other for other in others if other > value), default=None)


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """A number as a format holds it. ``is_beyond``: it lies outside the format's finite range."""

    fmt: Format
    number: float
    value: float
    code: int
    is_beyond: bool

    @property
    def relative_error(self) -> float:
        """|value - number| / |number|; 0 where they are equal, infinite or NaN where the value is."""
        if self.value == self.number:
            return 0.0
        return abs(self.value - self.number) / abs(self.number)

    @property
    def is_exact(self) -> bool:
        """Whether nothing is lost, not even the sign of zero."""
        return self.value == self.number and math.copysign(1, self.value) == math.copysign(
            1, self.number
        )


def nearest_in(number: float, fmt: str | Format, *, saturates: bool) -> Nearest:
    """``number`` rounded to the nearest value of ``fmt``, ties to even.

    Beyond its range a format saturates, or else gives infinity or NaN, whichever it has; formats with neither
    saturate always.

    >>> nearest_in(0.1, "float8_e4m3fn", saturates=True).value, nearest_in(500, "float16", saturates=False).value
    (0.1015625, 500.0)
    """
    fmt, number = get_format(fmt), float(number)
    if not math.isfinite(number):
        raise ValueError(f"number={number} is not finite")
    overflow = (
        "saturate"
        if saturates
        else "inf"
        if fmt.has_infinity
        else "nan"
        if fmt.num_nans
        else "saturate"
    )
    code = encode_one(number, fmt, overflow=overflow)
    is_beyond = not fmt.min <= number <= fmt.max
    return Nearest(
        fmt=fmt, number=number, value=decode_one(code, fmt), code=code, is_beyond=is_beyond
    )


def number_text(value: float | None, digits: int = 6) -> str:
    """A value in at most ``digits`` significant digits.

    >>> number_text(1.5), number_text(-(2.0**-24)), number_text(float("inf")), number_text(None)
    ('1.5', '−5.96046e-08', '∞', 'none')
    """
    if value is None or math.isnan(value):
        return "none" if value is None else "NaN"
    text = "∞" if math.isinf(value) else f"{abs(value):.{digits}g}"
    return f"−{text}" if math.copysign(1, value) < 0 else text


def _kind(value: float, fmt: Format) -> str:
    if math.isnan(value):
        return "NaN"
    if not isinstance(fmt, FloatFormat):
        return "table entry"
    if math.isinf(value):
        return "infinity"
    if value == 0:
        return "zero"
    return "subnormal" if abs(value) < fmt.smallest_normal else "normal"


def parse_number(text: object, name: str = "number") -> float:
    """A number as a reader types it: 0.1, 1e-8, 1/3, 2^-24, 2**-24; ``name`` is what it is called in the error.

    Raises: ValueError: it is not a finite number.

    >>> parse_number("2^-24") == parse_number("2**-24"), parse_number("-1/4"), parse_number(0.1)
    (True, -0.25, 0.1)
    """
    try:
        if isinstance(text, bool) or not isinstance(text, (str, int, float)):
            raise ValueError
        words = str(text).replace("−", "-").replace("**", "^").strip()
        for sign, join in (("/", operator.truediv), ("^", operator.pow)):
            left, operator_sign, right = words.partition(sign)
            if operator_sign:
                number = join(float(left), float(right))
                break
        else:
            number = float(words)
        if not math.isfinite(number):  # a complex power has no place here either
            raise ValueError
    except (ValueError, TypeError, ArithmeticError):
        raise ValueError(
            f"{name}={text!r} is not a finite number such as 0.1, 1/3 or 2^-24"
        ) from None
    return number
