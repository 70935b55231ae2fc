"""From values to codes: rounding arrays into a format, with the rounding and the overflow chosen by name.

All values of a format of up to 16 bits stand on a line, and a number between two of them becomes one of the two: so a
search among the values, or among the places halfway between them, gives the code. Wider formats go number by number.

Source: IEEE 754-2019, section 4.3 (directions; ties where there is one digit) and 7.4 (overflow).
"""

import functools
import math

import numpy as np

from memkit.formats.decoding import MAX_TABLE_BITS, all_values, decode
from memkit.formats.records import Format, TableFormat, check_overflow, get_format
from memkit.formats.single import encode_one, neighbours_of
from memkit.units import as_one_of

ROUNDINGS = ("nearest_even", "toward_zero", "up", "down", "stochastic")
CHUNK = 1 << 15
"""Values that are searched for at once: their temporaries stay in a core's cache, which makes it twice as fast."""


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
    shape = values.shape
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        values = values.astype(np.float64).ravel()
    if not fmt.num_nans and np.isnan(values).any():
        raise ValueError(f"values holds NaN, and {fmt.name} has no code for it")
    chances = rng.random(values.shape) if rng else np.zeros(values.shape)
    if fmt.bits <= MAX_TABLE_BITS:
        pieces = [slice(start, start + CHUNK) for start in range(0, max(values.size, 1), CHUNK)]
        codes = np.concatenate([_on_line(values[p], fmt, rounding, overflow, chances[p]) for p in pieces])
    else:
        choices = {"overflow": overflow, "rounding": rounding}
        pairs = zip(values.tolist(), chances.tolist(), strict=True)
        codes = np.array([encode_one(x, fmt, **choices, chance=chance) for x, chance in pairs], np.uint64)
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


@functools.lru_cache(maxsize=32)
def _line(fmt: Format) -> tuple[np.ndarray, np.ndarray, int]:
    """A format's values ascending, the places halfway between them, and the place of zero among the values.

    The place of a float format's value, counted from zero, is its code. Beyond both ends stands one more value, the one
    that would come next: what is rounded to it overflows. A tie goes to the even place. So a search for the first
    halfway place that is not below a number ends at the nearest value.
    """
    values = all_values(fmt)
    if not isinstance(fmt, TableFormat):
        next_value = fmt.max + math.ldexp(1.0, fmt.max_exponent - fmt.mantissa_bits)
        values = np.array([*([-next_value] if fmt.sign_bits else []), *values, next_value])
    zero = int(np.searchsorted(values, 0.0))
    halfway = (values[:-1] + values[1:]) / 2
    goes_up = (np.arange(halfway.size) - zero) % 2 == 1
    if not fmt.min < 0:  # E8M0: with one digit neither neighbour is even, and the larger one takes the tie
        goes_up[:] = True
        halfway[0] = np.nextafter(values[0], np.inf)
    return values, np.where(goes_up, np.nextafter(halfway, -np.inf), halfway), zero


def _on_line(x: np.ndarray, fmt: Format, rounding: str, overflow: str, chances: np.ndarray) -> np.ndarray:
    """The code of each float64, from its place on the line of the format's values."""
    values, halfway, zero = _line(fmt)
    is_nan = np.isnan(x)
    within = np.clip(np.where(is_nan, 0.0, x), values[0], values[-1])
    if rounding == "nearest_even":
        place = np.searchsorted(halfway, within) - zero
    else:
        down = np.searchsorted(values, within, side="right") - 1
        left_over = within - values[down]
        goes_up = {"toward_zero": within < 0, "up": True, "down": False}.get(rounding)
        if rounding == "stochastic":
            goes_up = chances * (values[np.minimum(down + 1, values.size - 1)] - values[down]) < left_over
        place = down + (goes_up & (left_over > 0)) - zero
    if isinstance(fmt, TableFormat):
        return np.argsort(fmt.table)[place + zero]

    code, is_negative = np.abs(place), np.signbit(x)
    leads_out = {"toward_zero": False, "up": ~is_negative, "down": is_negative}.get(rounding, True)
    overflows = (code > fmt.largest_code) & leads_out | np.isinf(x)
    code = np.minimum(code, fmt.largest_code)
    if overflow != "saturate":
        code[overflows] = fmt.infinity_code if overflow == "inf" else fmt.nan_code
    is_nan |= (x == 0) & (not fmt.has_zero) | is_negative & (x != 0) & (not fmt.sign_bits)
    code[is_nan] = fmt.nan_code or 0
    if fmt.specials == "fnuz":  # there is no -0: its code is the NaN
        is_negative &= code != 0
    return code | np.where(is_negative, fmt.sign_mask, 0)
