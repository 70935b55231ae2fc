"""From values to codes: rounding arrays into a format, with the rounding and the overflow chosen by name.

It is the arithmetic of ``single``, on all values at once: scale each until the format's values
stand 1 apart, round to a whole number, and count on from the code of its power of two. Tables of
values (integers, NF4) take the nearest entry.

Source: IEEE 754-2019, section 4.3 (directions; ties where there is one digit) and 7.4 (overflow).
"""

import numpy as np

from memkit.formats.decoding import decode
from memkit.formats.records import FloatFormat, Format, TableFormat, check_overflow, get_format
from memkit.units import as_one_of

WHOLE = {"nearest_even": np.rint, "toward_zero": np.trunc, "up": np.ceil, "down": np.floor}
ROUNDINGS = (*WHOLE, "stochastic")


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
    probability equal to the fraction left over. NaN keeps its sign and loses its payload. Tables of
    values have ``nearest_even`` alone.

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
    if isinstance(fmt, TableFormat) and rounding != "nearest_even":
        raise ValueError(
            f"rounding={rounding!r}: {fmt.name} is a table of values: nearest_even alone"
        )
    values = as_real(values)
    shape = values.shape
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        values = values.astype(np.float64).ravel()
    if not fmt.num_nans and np.isnan(values).any():
        raise ValueError(f"values holds NaN, and {fmt.name} has no code for it")
    if isinstance(fmt, TableFormat):
        codes = _nearest_entries(values, fmt)
    else:
        codes = _float_codes(values, fmt, rounding, overflow, rng)
    return codes.reshape(shape).astype(np.min_scalar_type(2**fmt.bits - 1))


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
        raise ValueError(
            f"torch has no conversion to {fmt.name}; it has float8_e4m3fn, {', '.join(choices)}"
        )
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


def _nearest_entries(x: np.ndarray, fmt: TableFormat) -> np.ndarray:
    """The code of the nearest entry; a tie goes to the one an even number of places from zero."""
    order = np.argsort(fmt.table)
    values = np.array(fmt.table)[order]
    halfway = (values[:-1] + values[1:]) / 2
    place = np.searchsorted(halfway, x)  # of a tie the lower one
    is_tie = x == np.append(halfway, np.nan)[place]
    is_odd = (place - np.searchsorted(values, 0.0)) % 2 == 1
    return order[place + (is_tie & is_odd)]


def _float_codes(
    x: np.ndarray, fmt: FloatFormat, rounding: str, overflow: str, rng: np.random.Generator | None
) -> np.ndarray:
    """The code of each float64, as ``single.encode_one`` finds one."""
    m, e_min = fmt.mantissa_bits, fmt.min_exponent
    within = np.nan_to_num(x)  # NaN is 0 and infinity the largest number, until the end
    e = np.where(within == 0, e_min, np.maximum(np.frexp(within)[1] - 1, e_min))
    scaled = np.ldexp(within, m - e)
    if rng:
        down = np.floor(scaled)
        whole = down + (rng.random(x.shape) < scaled - down)
    else:
        whole = WHOLE[rounding](scaled)
    code = np.abs(whole).astype(np.int64) + ((e - e_min).astype(np.int64) << m)
    if not fmt.has_zero:  # the smallest value has code 0, and nothing lies below it
        code = np.maximum(code - 2**m, 0)
        if rounding == "nearest_even":  # torch and ml_dtypes go up from just above it
            code = np.maximum(code, x > fmt.smallest_normal)
    is_negative = np.signbit(x)
    leads_out = {"toward_zero": False, "up": ~is_negative, "down": is_negative}.get(rounding, True)
    overflows = (code > fmt.largest_code) & leads_out | np.isinf(x)
    code = np.minimum(code, fmt.largest_code)
    if overflow != "saturate":
        code[overflows] = fmt.infinity_code if overflow == "inf" else fmt.nan_code
    has_no_code = (x == 0) & (not fmt.has_zero) | is_negative & (x != 0) & (not fmt.sign_bits)
    code[np.isnan(x) | has_no_code] = fmt.nan_code or 0
    if fmt.specials == "fnuz":  # there is no -0: its code is the NaN
        is_negative &= code != 0
    return code.astype(np.uint64) | np.where(is_negative, np.uint64(fmt.sign_mask), np.uint64(0))
