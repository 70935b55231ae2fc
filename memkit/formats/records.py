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


@dataclass(frozen=True)
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
        return 0.0 if self.has_subnormals else self.smallest_normal

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
    def has_infinity(self) -> bool:
        return self.specials == "ieee"

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


@dataclass(frozen=True)
class TableFormat:
    """A format that is its list of values: code i means ``table[i]``."""

    name: str
    table: tuple[float, ...]
    has_infinity = False
    num_nans = 0

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


Format = FloatFormat | TableFormat

# Quantiles of a normal distribution, scaled to end at -1 and 1, as bitsandbytes stores them in float32.
_NF4 = """
    -1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453
    -0.28444138169288635 -0.18477343022823334 -0.09105003625154495 0.0
    0.07958029955625534 0.16093020141124725 0.24611230194568634 0.33791524171829224
    0.44070982933044434 0.5626170039176941 0.7229568362236023 1.0
"""
_FORMATS = (
    # name, exponent and mantissa bits, bias
    FloatFormat("float64", 11, 52, 1023),
    FloatFormat("float32", 8, 23, 127),
    FloatFormat("tf32", 8, 10, 127, padding_bits=13),
    FloatFormat("bfloat16", 8, 7, 127),
    FloatFormat("float16", 5, 10, 15),
    FloatFormat("float8_e5m2", 5, 2, 15),
    FloatFormat("float8_e5m2fnuz", 5, 2, 16, specials="fnuz"),
    FloatFormat("float8_e4m3fn", 4, 3, 7, specials="fn"),
    FloatFormat("float8_e4m3", 4, 3, 7),
    FloatFormat("float8_e4m3fnuz", 4, 3, 8, specials="fnuz"),
    FloatFormat("float8_e4m3b11fnuz", 4, 3, 11, specials="fnuz"),
    FloatFormat("float8_e3m4", 3, 4, 3),
    FloatFormat("float8_e8m0fnu", 8, 0, 127, specials="fn", sign_bits=0, has_subnormals=False),
    FloatFormat("float6_e3m2fn", 3, 2, 3, specials="finite"),
    FloatFormat("float6_e2m3fn", 2, 3, 1, specials="finite"),
    FloatFormat("float4_e2m1fn", 2, 1, 1, specials="finite"),
    # integers in two's complement: the upper half of the codes are the negative numbers
    TableFormat("int8", (*map(float, range(128)), *map(float, range(-128, 0)))),
    TableFormat("int4", (*map(float, range(8)), *map(float, range(-8, 0)))),
    TableFormat("nf4", tuple(map(float, _NF4.split()))),
)
FORMATS: MappingProxyType[str, Format] = MappingProxyType({fmt.name: fmt for fmt in _FORMATS})
"""Every format of the book by name: torch's spelling of the dtype, below 8 bits that of ml_dtypes."""

_IN_TENSORS = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e8m0fnu float4_e2m1fn int8 int4"
DTYPE_BITS = {name: FORMATS[name].storage_bits for name in _IN_TENSORS.split()}
DTYPE_BITS |= {"int64": 64, "int32": 32, "int16": 16, "uint8": 8, "bool": 8}
"""Bits per value of a tensor's dtypes. A bool takes a whole byte in torch."""


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
