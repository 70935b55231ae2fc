"""From values to codes: rounding into a format, with the rounding and the overflow chosen by name.

Between two powers of two a format's values stand evenly, 2^(e - m) apart. So scale a value until that
distance is 1, and rounding into the format is rounding to a whole number r. In the code these numbers follow
one another, binade after binade:

    e = max(floor(log2 |x|), e_min)        r = round(|x| * 2^(m - e))        code = r + (e - e_min) * 2^m

A carry into the next binade, a subnormal and a zero need no case of their own: the addition takes care of
them.

float32 has a faster road into formats of up to 5 mantissa bits. Rounding into them looks at the upper 16 bits
of a float32 and at whether any lower bit is set. "Rounding to odd" keeps both in 16 bits; a table knows the
rest.

Sources: IEEE 754-2019, section 4.3 (directions; ties where there is one digit) and 7.4 (overflow); Boldo and
Melquiond 2008, doi:10.1109/TC.2007.70819 (rounding to odd).
"""

import functools

import numpy as np

from memkit.formats.decoding import decode
from memkit.formats.records import FloatFormat, Format, TableFormat, check_overflow, get_format
from memkit.formats.single import neighbours_of
from memkit.units import as_one_of

ROUNDINGS = ("nearest_even", "toward_zero", "up", "down", "stochastic")
CHUNK = 1 << 15
"""Values per step: the step's temporaries stay in a core's cache."""

_LARGEST_FLOAT64 = np.finfo(np.float64).max


def encode(
    values: object,
    fmt: str | Format,
    *,
    overflow: str,
    rounding: str = "nearest_even",
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """The codes of ``values`` in ``fmt``: ``uint8``, or wider where the format is.

    ``overflow`` says what becomes of infinity and of a value that rounds past the largest finite one:
    ``saturate`` (the largest finite value), ``inf`` or ``nan``. A direction that leads back inside never
    overflows: 500 ``toward_zero`` is 448 in E4M3FN. ``stochastic`` needs ``rng`` and goes up with a
    probability equal to the fraction left over. NaN keeps its sign and loses its payload.

    E8M0FNU has neither sign nor zero: zero and negative values become NaN, positive values below its smallest
    one become that one. Just above it, in (2^-127, 1.5 * 2^-127), torch and ml_dtypes both round up to 2^-126
    although 2^-127 is nearer; ``nearest_even`` does the same, so that codes agree bit for bit.

    Shapes: that of ``values``.
    Raises: TypeError: values are not real numbers. ValueError: an unknown rounding or overflow, an overflow
        the format has no code for, a NaN for a format without one.

    >>> [hex(code) for code in encode([0.1, 1.0, 500.0], "float8_e4m3fn", overflow="saturate")]
    ['0x1d', '0x38', '0x7e']
    """
    fmt = get_format(fmt)
    as_one_of("rounding", rounding, ROUNDINGS)
    check_overflow(fmt, overflow)
    if (rounding == "stochastic") != isinstance(rng, np.random.Generator):
        words = "stochastic rounding, and only it, needs a Generator"
        raise ValueError(f"rounding={rounding!r} with rng={rng!r}: {words}")
    values = as_real(values)
    if not fmt.num_nans and np.isnan(values).any():
        raise ValueError(f"values holds NaN, and {fmt.name} has no code for it")
    flat = np.ascontiguousarray(values).reshape(-1)
    codes = np.empty(flat.shape, np.min_scalar_type(2**fmt.bits - 1))
    if flat.dtype == np.float32 and rounding != "stochastic" and _upper_half_decides(fmt):
        _encode_by_table(flat, _code_table(fmt, rounding, overflow), codes)
    else:
        for start in range(0, flat.size, CHUNK):
            piece = slice(start, start + CHUNK)
            with np.errstate(invalid="ignore"):  # widening a signalling NaN
                wide = flat[piece].astype(np.float64)
            codes[piece] = _encode(wide, fmt, rounding, overflow, rng)
    return codes.reshape(values.shape)


def round_to(
    values: object,
    fmt: str | Format,
    *,
    overflow: str,
    rounding: str = "nearest_even",
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """``values`` as ``fmt`` would hold them: encoded and decoded. float32 stays float32, the rest is float64.

    >>> float(round_to(257, "bfloat16", overflow="inf"))
    256.0
    """
    values = as_real(values)
    codes = encode(values, fmt, overflow=overflow, rounding=rounding, rng=rng)
    return decode(codes, fmt, dtype=values.dtype.type)


def neighbours(values: object, fmt: str | Format) -> tuple[np.ndarray, np.ndarray]:
    """The format's nearest values strictly below and above ``values``; -inf or inf where there is none.

    >>> [float(value) for value in neighbours(448, "float8_e4m3fn")]
    [416.0, inf]
    """
    values = as_real(values)
    sides = np.array([neighbours_of(value, fmt) for value in values.ravel().tolist()]).reshape(-1, 2)
    return sides[:, 0].reshape(values.shape), sides[:, 1].reshape(values.shape)


def torch_overflow(fmt: str | Format, torch_version: str) -> str:
    """What ``tensor.to(dtype)`` on a CPU does with a float32 beyond the format's range, by torch release.

    E4M3FN is the one that changed: NaN up to 2.12; the largest finite value, even for infinity, since 2.13.

    Source: torch/headeronly/util/Float8_e4m3fn.h of each release; pytorch/pytorch#178817.

    >>> torch_overflow("float8_e4m3fn", "2.12.0"), torch_overflow("float8_e4m3fn", "2.13.0+cpu")
    ('nan', 'saturate')
    """
    fmt = get_format(fmt)
    if fmt.name == "float8_e4m3fn":
        major, minor = torch_version.split(".")[:2]
        return "saturate" if (int(major), int(minor)) >= (2, 13) else "nan"
    choices = dict.fromkeys(("float32", "float16", "bfloat16", "float8_e5m2"), "inf")
    choices |= dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), "nan")
    if fmt.name not in choices:
        raise ValueError(f"torch has no conversion to {fmt.name}; it has float8_e4m3fn, {', '.join(choices)}")
    return choices[fmt.name]


def as_real(values: object) -> np.ndarray:
    """``values`` as float32 or float64, exactly."""
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        if array.dtype.itemsize == 8 and ((array > 2**53) | (array < -(2**53))).any():
            raise ValueError("values holds a whole number beyond 2^53, where float64 has gaps")
        return array.astype(np.float64)
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise TypeError(f"values of dtype {array.dtype} are not real numbers that float64 holds")
    return array.astype(np.float64 if array.dtype.itemsize == 8 else np.float32, copy=False)


def _encode(
    x: np.ndarray, fmt: Format, rounding: str, overflow: str, rng: np.random.Generator | None
) -> np.ndarray:
    """Codes of one piece of float64 values."""
    if isinstance(fmt, TableFormat):
        return _encode_in_table(x, fmt, rounding, rng)
    m, e_min = fmt.mantissa_bits, fmt.min_exponent
    is_negative, is_nan, is_infinite = np.signbit(x), np.isnan(x), np.isinf(x)
    x = np.where(is_nan, 0.0, np.clip(x, -_LARGEST_FLOAT64, _LARGEST_FLOAT64))
    e = np.maximum(np.frexp(x)[1].astype(np.int64) - 1, e_min)
    e[x == 0] = e_min  # frexp says 0
    r = _round_to_whole(np.ldexp(x, m - e), rounding, rng)
    code = np.abs(r).astype(np.int64) + ((e - e_min) << m)
    if not fmt.has_zero:  # the smallest value has code 0 instead of 2^m, and nothing lies below it
        code = np.maximum(code - 2**m, 0)
        if rounding == "nearest_even":  # torch and ml_dtypes go up from just above the smallest value
            code = np.maximum(code, np.abs(x) > fmt.smallest_normal)

    leads_out = {"toward_zero": False, "up": ~is_negative, "down": is_negative}.get(rounding, True)
    overflows = (code > fmt.largest_code) & leads_out | is_infinite
    code = np.minimum(code, fmt.largest_code)
    if overflow != "saturate":
        code[overflows] = fmt.infinity_code if overflow == "inf" else fmt.nan_code

    is_nan |= (x == 0) & (not fmt.has_zero) | is_negative & (x != 0) & (not fmt.sign_bits)
    code[is_nan] = fmt.nan_code or 0
    code = code.astype(np.uint64)
    if fmt.specials == "fnuz":  # there is no -0: its code is the NaN
        is_negative &= code != 0
    code[is_negative] |= np.uint64(fmt.sign_mask)
    return code


def _round_to_whole(r: np.ndarray, rounding: str, rng: np.random.Generator | None) -> np.ndarray:
    if rounding == "stochastic":
        return np.floor(r) + (rng.random(r.shape) < r - np.floor(r))
    return {"nearest_even": np.rint, "toward_zero": np.trunc, "up": np.ceil, "down": np.floor}[rounding](r)


def _encode_in_table(
    x: np.ndarray, fmt: TableFormat, rounding: str, rng: np.random.Generator | None
) -> np.ndarray:
    """A tie goes to the value that is an even number of places from zero."""
    code_at = np.argsort(fmt.table)
    values = np.array(fmt.table)[code_at]
    x = np.clip(x, fmt.min, fmt.max)
    down, up = np.searchsorted(values, x, side="right") - 1, np.searchsorted(values, x)
    from_below, to_above = x - values[down], values[up] - x
    match rounding:
        case "nearest_even":
            is_odd = (down - np.searchsorted(values, 0.0)) % 2 == 1
            goes_up = (from_below > to_above) | (from_below == to_above) & is_odd
        case "toward_zero":
            goes_up = x < 0
        case "up" | "down":
            goes_up = rounding == "up"
        case _:
            goes_up = rng.random(x.shape) * (values[up] - values[down]) < from_below
    return code_at[np.where(goes_up, up, down)]


def _upper_half_decides(fmt: Format) -> bool:
    """Whether a float32's upper half fixes the code: it must reach two bits below the last one kept."""
    upper_mantissa_bits, upper_smallest_exponent = 7, -133
    return (
        isinstance(fmt, FloatFormat)
        and fmt.mantissa_bits + 2 <= upper_mantissa_bits
        and fmt.min_exponent - fmt.mantissa_bits - 2 >= upper_smallest_exponent
    )


@functools.cache
def _code_table(fmt: FloatFormat, rounding: str, overflow: str) -> np.ndarray:
    """The code of each float32 whose lower 16 bits are zero (odd upper half: of all that lie around it)."""
    upper = np.arange(1 << 16, dtype=np.uint32)
    with np.errstate(invalid="ignore"):  # signalling NaNs are among them
        values = (upper << 16).view(np.float32).astype(np.float64)
    return _encode(values, fmt, rounding, overflow, None).astype(np.min_scalar_type(2**fmt.bits - 1))


def _encode_by_table(x: np.ndarray, table: np.ndarray, codes: np.ndarray) -> None:
    """Round to odd in 16 bits, ``upper | (lower != 0)``, and look each code up, into ``codes``."""
    bits = x.view(np.uint32)
    odd, index = np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.intp)
    for start in range(0, x.size, CHUNK):
        piece = bits[start : start + CHUNK]
        odd, index = odd[: piece.size], index[: piece.size]
        np.bitwise_and(piece, 0xFFFF, out=odd)
        np.add(odd, 0xFFFF, out=odd)  # carries into bit 16 if a lower bit is set
        np.bitwise_or(odd, piece, out=odd)
        np.right_shift(odd, 16, out=odd)
        index[:] = odd
        np.take(table, index, out=codes[start : start + piece.size], mode="clip")
