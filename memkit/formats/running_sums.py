"""A long sum in a narrow format, and where it sticks (chapter 02).

A total of T stands 2^(e - m) from its next larger value. Terms below half of that are lost one by one, however many
there are: to the nearest, T + t is T again.

Source: Figueroa 1995, doi:10.1145/221332.221334 (why rounding the float64 sum of two values gives the right value of a
format with up to 25 significant bits).
"""

import math

import numpy as np

from memkit.formats.records import FloatFormat, get_format
from memkit.formats.single import decode_one, encode_one

MAX_MANTISSA_BITS = 24


def running_sum(term: float, num_terms: int, fmt: str | FloatFormat) -> np.ndarray:
    """The total after each of ``num_terms`` additions of ``term``, from 0, with everything held in ``fmt``.

    Each sum is rounded to the nearest value, ties to even, and saturates.

    Raises: ValueError: a format without fields or too precise.

    >>> float(running_sum(0.001, 4096, "bfloat16")[-1])
    0.5
    """
    fmt = get_format(fmt)
    if (
        not isinstance(fmt, FloatFormat)
        or not fmt.has_zero
        or fmt.mantissa_bits > MAX_MANTISSA_BITS
    ):
        raise ValueError(
            f"running_sum needs a float format with a zero and up to 24 mantissa bits, not {fmt.name}"
        )
    t, total, totals = _nearest(term, fmt), 0.0, []
    for _ in range(num_terms):
        total = _nearest(total + t, fmt)
        totals.append(total)
    return np.array(totals)


def _nearest(x: float, fmt: FloatFormat) -> float:
    return decode_one(encode_one(x, fmt, overflow="saturate"), fmt)


def sticking_point(term: float, fmt: str | FloatFormat) -> float:
    """The total at which a positive ``term``, added again and again and rounded to nearest, stops counting.

        2^e with the smallest e for which t <= 2^(e - m) / 2

    From there on the term is at most half the distance to the next value, and ties go back to 2^e, which is
    even. Infinite if the format ends before that.

    >>> sticking_point(0.001, "bfloat16"), sticking_point(1, "float16"), sticking_point(1, "float8_e4m3fn")
    (0.5, 2048.0, 16.0)
    """
    fmt = get_format(fmt)
    t = _nearest(term, fmt)
    if not t > 0:
        raise ValueError(f"term={term!r} is {t} in {fmt.name}; a sum of it goes nowhere")
    mantissa, exponent = math.frexp(t)  # t = mantissa * 2^exponent, with mantissa in [0.5, 1)
    e = exponent - (mantissa == 0.5) + fmt.mantissa_bits + 1
    return math.ldexp(1.0, e) if e <= fmt.max_exponent else math.inf
