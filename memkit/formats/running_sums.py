"""A long sum in a narrow format: where it sticks, and three ways to keep it moving.

A total of T stands 2^(e - m) from its next larger value. Terms below half of that are lost one by one,
however many there are: to the nearest, T + t is T again. Stochastic rounding loses nothing on average,
Kahan's sum carries what was lost to the next term, and a float32 accumulator keeps 23 mantissa bits until the
total is read.

Sources: Kahan 1965, doi:10.1145/363707.363723; Figueroa 1995, doi:10.1145/221332.221334 (why rounding the
float64 sum of two values gives the right value of a format with up to 25 significant bits).
"""

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np

from memkit.formats.records import FloatFormat, get_format
from memkit.formats.single import rounder
from memkit.units import as_one_of, as_whole_number

METHODS = ("nearest", "stochastic", "kahan", "float32 accumulator")
MAX_MANTISSA_BITS = 24


def running_sum(
    term: float,
    num_terms: int,
    fmt: str | FloatFormat,
    *,
    method: str,
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """The total after each of ``num_terms`` additions of ``term``, from 0, with everything held in ``fmt``.

    ``term`` is rounded to ``fmt`` first, and totals saturate. ``nearest`` rounds each sum to the nearest
    value (ties to even), ``stochastic`` up or down by chance with ``rng``. ``kahan`` rounds to the nearest
    and keeps a second value for what was lost. ``float32 accumulator`` adds in float32 and rounds what is
    read.

    Raises: ValueError: an unknown method, a term that is not finite, a format without fields or too precise.

    >>> totals = running_sum(0.001, 4096, "bfloat16", method="nearest")
    >>> float(totals[-1]), num_moving_terms(totals)
    (0.5, 383)
    """
    fmt = get_format(fmt)
    if not isinstance(fmt, FloatFormat) or not fmt.has_zero or fmt.mantissa_bits > MAX_MANTISSA_BITS:
        raise ValueError(
            f"running_sum needs a float format with a zero and up to 24 mantissa bits, not {fmt.name}"
        )
    as_one_of("method", method, METHODS)
    if (method == "stochastic") != isinstance(rng, np.random.Generator):
        raise ValueError(f"method={method!r} with rng={rng!r}: stochastic, and only it, needs a Generator")
    if not math.isfinite(term):
        raise ValueError(f"term={term!r} is not a finite number")
    num_terms = as_whole_number("num_terms", num_terms)
    return np.array(list(islice(_endless(float(term), fmt, method, rng), num_terms)))


def sums_by_method(term: float, num_terms: int, fmt: str | FloatFormat, seed: int = 0) -> dict[str, np.ndarray]:
    """``running_sum`` by every method, for the rounding lab.

    >>> totals = sums_by_method(0.5, 600, "bfloat16")
    >>> float(totals["nearest"][-1]), float(totals["kahan"][-1])
    (128.0, 300.0)
    """
    chance = {"stochastic": np.random.default_rng(seed)}
    return {each: running_sum(term, num_terms, fmt, method=each, rng=chance.get(each)) for each in METHODS}


def _endless(term: float, fmt: FloatFormat, method: str, rng: np.random.Generator | None) -> Iterator[float]:
    """The totals of ``running_sum``, one after another."""
    nearest, by_chance = rounder(fmt), rounder(fmt, "stochastic")
    t = nearest(term)
    total = lost = 0.0
    exact = np.float32(0)
    while True:
        match method:
            case "nearest":
                total = nearest(total + t)
            case "stochastic":
                total = by_chance(total + t, rng.random())
            case "kahan":
                y = nearest(t - lost)
                larger = nearest(total + y)
                lost = nearest(nearest(larger - total) - y)
                total = larger
            case "float32 accumulator":
                with np.errstate(over="ignore"):
                    exact = exact + np.float32(t)
                total = nearest(float(exact))
        yield total


def num_moving_terms(totals: np.ndarray) -> int:
    """How many additions it took to reach the last total; those after it changed nothing.

    >>> num_moving_terms(np.array([1.0, 2.0, 2.0, 2.0]))
    2
    """
    moved = np.flatnonzero(np.diff(totals, prepend=0.0))
    return int(moved[-1]) + 1 if moved.size else 0


def sticking_point(term: float, fmt: str | FloatFormat) -> float:
    """The total at which a positive ``term``, added again and again and rounded to nearest, stops counting.

        2^e with the smallest e for which t <= 2^(e - m) / 2

    From there on the term is at most half the distance to the next value, and ties go back to 2^e, which is
    even. Infinite if the format ends before that.

    >>> sticking_point(0.001, "bfloat16"), sticking_point(1, "float16"), sticking_point(1, "float8_e4m3fn")
    (0.5, 2048.0, 16.0)
    """
    fmt = get_format(fmt)
    t = rounder(fmt)(float(term))
    if not t > 0:
        raise ValueError(f"term={term!r} is {t} in {fmt.name}; a sum of it goes nowhere")
    mantissa, exponent = math.frexp(t)  # t = mantissa * 2^exponent, with mantissa in [0.5, 1)
    e = exponent - (mantissa == 0.5) + fmt.mantissa_bits + 1
    return math.ldexp(1.0, e) if e <= fmt.max_exponent else math.inf
