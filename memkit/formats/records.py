"""Number formats, each a record of the few facts that define it; and a dtype's bits, by which all bytes are counted.

A floating-point format cuts a code into three fields: a sign s, an exponent field E and a mantissa field M of
m bits. Three more facts say how to read them: the bias, whether exponent field 0 holds subnormal numbers, and
where infinity and NaN hide. Maximum, smallest subnormal, spacing and number of values follow from those
facts, so they are properties, under the names of ``numpy.finfo``.

    value = (-1)^s * 2^(E - bias) * (1 + M / 2^m)     E > 0: a normal number
    value = (-1)^s * 2^(1 - bias) * (M / 2^m)         E = 0: a subnormal number, or zero

Integers and NF4 are not of this kind: they are tables of values.

Sources: IEEE 754-2019; OCP 8-bit Floating Point Specification 1.0 (E4M3FN, E5M2); OCP Microscaling Formats
1.0 (FP6, FP4, E8M0); Noune et al. 2022, arXiv:2206.02915 (FNUZ); Dettmers et al. 2023, arXiv:2305.14314
(NF4).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from memkit.units import as_one_of, bytes_of

DTYPE_BITS = {
    "float64": 64,
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "float8_e8m0fnu": 8,
    "float4_e2m1fn": 4,
    "int64": 64,
    "int32": 32,
    "int16": 16,
    "int8": 8,
    "uint8": 8,
    "int4": 4,
    "bool": 8,
}
"""Bits per value. A bool takes a whole byte in torch."""


def dtype_bits(dtype: str, name: str = "dtype") -> int:
    """Bits per value of ``dtype``; ``name`` is what the caller calls it, for the error.

    Raises: ValueError: the name is not in ``DTYPE_BITS``.
    """
    return DTYPE_BITS[as_one_of(name, dtype, DTYPE_BITS)]


def tensor_bytes(num_values: int, dtype: str) -> int:
    """Bytes of a tensor of ``num_values`` values of ``dtype``, before any allocator rounds it.

    >>> tensor_bytes(1024, "bfloat16")
    2048
    """
    return bytes_of(num_values, dtype_bits(dtype))


@dataclass(frozen=True, kw_only=True)
class FloatFormat:
    """A floating-point format: field widths in bits, the bias, and how the special values are encoded."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    sign_bits: int = 1
    specials: str = "ieee"
    """Where infinity and NaN hide, in torch's suffixes. ``ieee``: the top exponent field holds both. ``fn``: no
    infinity, and NaN is the code with every exponent and mantissa bit set. ``fnuz``: no infinity, and the only
    NaN has the code of -0. ``finite``: neither exists."""
    has_subnormals: bool = True
    """False: exponent field 0 is an ordinary power of two, so the format has no zero either (E8M0FNU)."""
    padding_bits: int = 0
    """Stored bits that carry nothing: TF32 keeps 19 of the 32 bits it occupies."""

    @cached_property
    def bits(self) -> int:
        """Bits of one code."""
        return self.sign_bits + self.exponent_bits + self.mantissa_bits

    @cached_property
    def storage_bits(self) -> int:
        """Bits one value occupies in memory."""
        return self.bits + self.padding_bits

    @cached_property
    def largest_code(self) -> int:
        """The code of the largest finite value: all ones, less the codes that are infinity or NaN."""
        reserved = {"ieee": 2**self.mantissa_bits, "fn": 1}.get(self.specials, 0)
        return 2 ** (self.exponent_bits + self.mantissa_bits) - 1 - reserved

    @cached_property
    def sign_mask(self) -> int:
        """The sign bit, or 0 in an unsigned format."""
        return self.sign_bits << (self.exponent_bits + self.mantissa_bits)

    @cached_property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number."""
        return (1 if self.has_subnormals else 0) - self.bias

    @cached_property
    def max_exponent(self) -> int:
        """Exponent of the largest finite value: the E of ``2^E * 1.M``."""
        return (self.largest_code >> self.mantissa_bits) - self.bias

    @cached_property
    def max(self) -> float:
        """Largest finite value."""
        significand = 2**self.mantissa_bits + self.largest_code % 2**self.mantissa_bits
        return math.ldexp(significand, self.max_exponent - self.mantissa_bits)

    @cached_property
    def min(self) -> float:
        """Lowest finite value: ``-max``, or the smallest normal where there is neither sign nor zero."""
        if self.sign_bits:
            return -self.max
        return 0.0 if self.has_zero else self.smallest_normal

    @cached_property
    def smallest_normal(self) -> float:
        """Smallest positive value with the full ``m`` mantissa bits."""
        return math.ldexp(1.0, self.min_exponent)

    @cached_property
    def smallest_subnormal(self) -> float:
        """Smallest positive value of all; the smallest normal where there are no subnormals."""
        return math.ldexp(1.0, self.min_exponent - self.mantissa_bits * self.has_subnormals)

    @cached_property
    def eps(self) -> float:
        """Distance from 1.0 to the next larger value: ``2^-m``."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @cached_property
    def round_trip_digits(self) -> int:
        """Decimal digits that pin down any one value: ``ceil(1 + (m + 1) * log10(2))``."""
        return math.ceil(1 + (self.mantissa_bits + 1) * math.log10(2))

    @cached_property
    def largest_consecutive_integer(self) -> int:
        """Every whole number up to this one is a value of the format: ``2^(m+1)``, or all of them."""
        return int(min(2 ** (self.mantissa_bits + 1), self.max))

    @cached_property
    def has_infinity(self) -> bool:
        return self.specials == "ieee"

    @cached_property
    def has_zero(self) -> bool:
        return self.has_subnormals

    @cached_property
    def num_nans(self) -> int:
        """Codes that mean NaN."""
        per_sign = {"ieee": 2**self.mantissa_bits - 1, "fn": 1}.get(self.specials, 0)
        return 1 if self.specials == "fnuz" else per_sign << self.sign_bits

    @cached_property
    def nan_code(self) -> int | None:
        """The NaN that ``encode`` writes (the quiet one, positive), or None."""
        if self.specials == "ieee":
            return self.infinity_code | 1 << (self.mantissa_bits - 1)
        return {"fn": self.largest_code + 1, "fnuz": self.sign_mask}.get(self.specials)

    @cached_property
    def infinity_code(self) -> int | None:
        """The code of +infinity, or None."""
        return self.largest_code + 1 if self.has_infinity else None

    @cached_property
    def num_values(self) -> int:
        """Distinct finite values; -0 and +0 are one.

        >>> FORMATS["float8_e4m3fn"].num_values, FORMATS["float4_e2m1fn"].num_values
        (253, 15)
        """
        magnitudes = self.largest_code + 1
        return 2 * magnitudes - 1 if self.sign_bits else magnitudes


@dataclass(frozen=True, kw_only=True)
class TableFormat:
    """A format that is its list of values: code i means ``table[i]``."""

    name: str
    table: tuple[float, ...]

    @cached_property
    def bits(self) -> int:
        """Bits of one code."""
        return len(self.table).bit_length() - 1

    @cached_property
    def storage_bits(self) -> int:
        """Bits one value occupies in memory."""
        return self.bits

    @cached_property
    def max(self) -> float:
        """Largest value."""
        return max(self.table)

    @cached_property
    def min(self) -> float:
        """Lowest value."""
        return min(self.table)

    @cached_property
    def num_values(self) -> int:
        """Distinct values."""
        return len(self.table)

    has_infinity = False
    num_nans = 0


Format = FloatFormat | TableFormat


def _integer(name: str, bits: int) -> TableFormat:
    """A signed integer in two's complement: the upper half of the codes are the negative numbers."""
    half = 2 ** (bits - 1)
    return TableFormat(
        name=name, table=tuple(float(value) for value in (*range(half), *range(-half, 0)))
    )


_FORMATS = (
    FloatFormat(name="float64", exponent_bits=11, mantissa_bits=52, bias=1023),
    FloatFormat(name="float32", exponent_bits=8, mantissa_bits=23, bias=127),
    FloatFormat(name="tf32", exponent_bits=8, mantissa_bits=10, bias=127, padding_bits=13),
    FloatFormat(name="bfloat16", exponent_bits=8, mantissa_bits=7, bias=127),
    FloatFormat(name="float16", exponent_bits=5, mantissa_bits=10, bias=15),
    FloatFormat(name="float8_e5m2", exponent_bits=5, mantissa_bits=2, bias=15),
    FloatFormat(name="float8_e5m2fnuz", exponent_bits=5, mantissa_bits=2, bias=16, specials="fnuz"),
    FloatFormat(name="float8_e4m3fn", exponent_bits=4, mantissa_bits=3, bias=7, specials="fn"),
    FloatFormat(name="float8_e4m3", exponent_bits=4, mantissa_bits=3, bias=7),
    FloatFormat(name="float8_e4m3fnuz", exponent_bits=4, mantissa_bits=3, bias=8, specials="fnuz"),
    FloatFormat(
        name="float8_e4m3b11fnuz", exponent_bits=4, mantissa_bits=3, bias=11, specials="fnuz"
    ),
    FloatFormat(name="float8_e3m4", exponent_bits=3, mantissa_bits=4, bias=3),
    FloatFormat(
        name="float8_e8m0fnu",
        exponent_bits=8,
        mantissa_bits=0,
        bias=127,
        specials="fn",
        sign_bits=0,
        has_subnormals=False,
    ),
    FloatFormat(name="float6_e3m2fn", exponent_bits=3, mantissa_bits=2, bias=3, specials="finite"),
    FloatFormat(name="float6_e2m3fn", exponent_bits=2, mantissa_bits=3, bias=1, specials="finite"),
    FloatFormat(name="float4_e2m1fn", exponent_bits=2, mantissa_bits=1, bias=1, specials="finite"),
    _integer("int8", 8),
    _integer("int4", 4),
    # Quantiles of a normal distribution, scaled to end at -1 and 1, as bitsandbytes stores them in float32.
    TableFormat(
        name="nf4",
        table=(
            -1.0,
            -0.6961928009986877,
            -0.5250730514526367,
            -0.39491748809814453,
            -0.28444138169288635,
            -0.18477343022823334,
            -0.09105003625154495,
            0.0,
            0.07958029955625534,
            0.16093020141124725,
            0.24611230194568634,
            0.33791524171829224,
            0.44070982933044434,
            0.5626170039176941,
            0.7229568362236023,
            1.0,
        ),
    ),
)

FORMATS: MappingProxyType[str, Format] = MappingProxyType({fmt.name: fmt for fmt in _FORMATS})
"""Every format of the book by name: torch's spelling of the dtype, below 8 bits that of ml_dtypes."""


OVERFLOWS = ("saturate", "inf", "nan")
"""What may become of a value beyond a format's range: its largest value, infinity or NaN."""


def check_overflow(fmt: Format, overflow: str) -> None:
    """Refuse an ``overflow`` that is unknown or for which the format has no code."""
    as_one_of("overflow", overflow, OVERFLOWS)
    if overflow == "inf" and not fmt.has_infinity:
        raise ValueError(f"overflow='inf': {fmt.name} has no code for infinity")
    if overflow == "nan" and not fmt.num_nans:
        raise ValueError(f"overflow='nan': {fmt.name} has no code for NaN")


def get_format(fmt: str | Format) -> Format:
    """The record behind a name; a record passes through.

    Raises: ValueError: the name is not in ``FORMATS``.
    """
    return FORMATS[as_one_of("format", fmt, FORMATS)] if isinstance(fmt, str) else fmt
