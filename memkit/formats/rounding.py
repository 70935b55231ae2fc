"""Arrays of codes and values, to and fro, to the nearest value or by chance.

It is the arithmetic of ``single``, on all values at once: scale each until the format's values stand 1 apart, round
to a whole number, and count on from the code of its power of two. Tables of values (integers, NF4) take the nearest
entry. A code is a whole number, 0 to 2^bits - 1; every format of this book is a subset of float64, so decoding into
float64 is exact.

Sources: IEEE 754-2019, section 4.3 (ties where there is one digit) and 7.4 (overflow).
"""

import functools

import numpy as np

from memkit.formats.records import FloatFormat, Format, TableFormat, check_overflow, get_format
from memkit.formats.single import check_code, decode_one

MAX_TABLE_BITS, MAX_LISTED_BITS = 16, 19
"""``decode`` looks up formats of so many bits; ``all_values`` lists them up to TF32's width: float32 has 4 billion."""


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


def encode(
    values: object,
    fmt: str | Format,
    *,
    overflow: str,
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """The codes of ``values`` in ``fmt``: ``uint8``, or wider where the format is.

    ``overflow`` says what becomes of infinity and of a value that rounds past the largest finite one:
    ``saturate`` (the largest finite value), ``inf`` or ``nan``. Rounding is to the nearest value, ties to even; with
    ``rng`` it is stochastic: up with a probability equal to the fraction left over, which a table of values does not
    have. NaN keeps its sign and loses its payload.

    E8M0FNU has neither sign nor zero: zero and negative values become NaN, positive values below its smallest
    one become that one. Just above it, in (2^-127, 1.5 * 2^-127), torch and ml_dtypes both round up to 2^-126
    although 2^-127 is nearer; this does the same, so that codes agree bit for bit.

    Shapes: that of ``values``.
    Raises: TypeError: values are not real numbers. ValueError: an unknown overflow, one the format has no code for,
        a NaN for a format without one, a table of values with ``rng``.

    >>> [hex(code) for code in encode([0.1, 1.0, 500.0], "float8_e4m3fn", overflow="saturate")]
    ['0x1d', '0x38', '0x7e']
    """
    fmt = get_format(fmt)
    check_overflow(fmt, overflow)
    if rng is not None and isinstance(fmt, TableFormat):
        raise ValueError(f"rng={rng!r}: {fmt.name} is a table of values, to the nearest alone")
    values = as_real(values)
    shape = values.shape
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        values = values.astype(np.float64).ravel()
    if not fmt.num_nans and np.isnan(values).any():
        raise ValueError(f"values holds NaN, and {fmt.name} has no code for it")
    if isinstance(fmt, TableFormat):
        codes = _nearest_entries(values, fmt)
    else:
        codes = _float_codes(values, fmt, overflow, rng)
    return codes.reshape(shape).astype(np.min_scalar_type(2**fmt.bits - 1))


def round_to(
    values: object,
    fmt: str | Format,
    *,
    overflow: str,
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """``values`` as ``fmt`` would hold them: encoded and decoded. float32 stays float32, the rest is float64.

    >>> float(round_to(257, "bfloat16", overflow="inf"))
    256.0
    """
    values = as_real(values)
    codes = encode(values, fmt, overflow=overflow, rng=rng)
    return decode(codes, fmt, dtype=values.dtype.type)


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
    x: np.ndarray, fmt: FloatFormat, overflow: str, rng: np.random.Generator | None
) -> np.ndarray:
    """The code of each float64, as ``single.encode_one`` finds one."""
    m, e_min = fmt.mantissa_bits, fmt.min_exponent
    within = np.nan_to_num(x)  # NaN is 0 and infinity the largest number, until the end
    e = np.where(within == 0, e_min, np.maximum(np.frexp(within)[1] - 1, e_min))
    scaled = np.ldexp(within, m - e)
    if rng is not None:
        down = np.floor(scaled)
        whole = down + (rng.random(x.shape) < scaled - down)
    else:
        whole = np.rint(scaled)
    code = np.abs(whole).astype(np.int64) + ((e - e_min).astype(np.int64) << m)
    if not fmt.has_subnormals:  # the smallest value has code 0, and nothing lies below it
        code = np.maximum(code - 2**m, 0)
        if rng is None:  # torch and ml_dtypes go up from just above it
            code = np.maximum(code, x > fmt.smallest_normal)
    is_negative = np.signbit(x)
    overflows = (code > fmt.largest_code) | np.isinf(x)
    code = np.minimum(code, fmt.largest_code)
    if overflow != "saturate":
        code[overflows] = fmt.infinity_code if overflow == "inf" else fmt.nan_code
    has_no_code = (x == 0) & (not fmt.has_subnormals) | is_negative & (x != 0) & (not fmt.sign_bits)
    code[np.isnan(x) | has_no_code] = fmt.nan_code or 0
    if fmt.specials == "fnuz":  # there is no -0: its code is the NaN
        is_negative &= code != 0
    return code.astype(np.uint64) | np.where(is_negative, np.uint64(fmt.sign_mask), np.uint64(0))
