"""Slips that no table has to list: another unit, and addends that are missing, doubled or too many."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from numbers import Real


def agree(given: object, wanted: object, tolerance: float = 0.0) -> bool:
    """Whether two answers are the same: numbers within the relative ``tolerance``, the rest exactly.

    >>> agree([1.0, "fp32"], (1, "fp32")), agree(101, 100, 0.02), agree(101, 100)
    (True, True, False)
    """
    given, wanted = (
        value.tolist() if hasattr(value, "tolist") else value for value in (given, wanted)
    )
    if isinstance(given, Real) and isinstance(wanted, Real):
        return math.isclose(given, wanted, rel_tol=tolerance) if tolerance else given == wanted
    if isinstance(given, Mapping) and isinstance(wanted, Mapping):
        return given.keys() == wanted.keys() and all(
            agree(given[key], wanted[key], tolerance) for key in wanted
        )
    if isinstance(given, list | tuple) and isinstance(wanted, list | tuple):
        return len(given) == len(wanted) and all(
            map(partial(agree, tolerance=tolerance), given, wanted)
        )
    return type(given) is type(wanted) and bool(given == wanted)


UNITS = {
    "bits": 1 / 8,
    "bytes": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "tokens": 1,
    "thousands of tokens": 10**3,
    "parameters": 1,
    "millions": 10**6,
    "billions": 10**9,
    "share": 1,
    "percent": 0.01,
}
"""What one of each unit is worth in the first of its family."""

FAMILIES = (
    ("bits", "bytes", "KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB"),
    ("tokens", "thousands of tokens"),
    ("parameters", "millions", "billions"),
    ("share", "percent"),
)


def unit_slip(given: Sequence, wanted: Sequence, unit: str, tolerance: float = 0.0) -> str | None:
    """What to say if ``given`` is ``wanted`` in another unit of the same family, or with 1 GiB taken for 1 GB.

    >>> unit_slip([3], [3 * 2**10], "MiB")
    'That is the number of GiB. The answer is in MiB.'
    """
    family = next((family for family in FAMILIES if unit in family), ())
    close = max(tolerance, 1e-3)
    for other in family:
        factor = UNITS[other] / UNITS[unit]
        if other != unit and _agree_times(given, factor, wanted, close):
            bits = " A byte has 8." if other == "bits" else ""
            asked = "a share, from 0 to 1" if unit == "share" else f"in {unit}"
            return f"That is the number of {other}. The answer is {asked}.{bits}"
    for binary, decimal in (("GiB", "GB"), ("MiB", "MB"), ("KiB", "kB")) if "GiB" in family else ():
        factor = UNITS[binary] / UNITS[decimal]
        if _agree_times(given, factor, wanted, min(close, 0.005)):
            return f"You took 1 {binary} for {UNITS[decimal]:,} bytes. It is {UNITS[binary]:,}."
        if _agree_times(given, 1 / factor, wanted, min(close, 0.005)):
            return f"You took 1 {decimal} for {UNITS[binary]:,} bytes. It is {UNITS[decimal]:,}."
    return None


def part_slip(
    given: Sequence, wanted: Sequence, parts: Mapping, extras: Mapping, close: float
) -> str | None:
    """Which addends are missing, counted twice or do not belong there; several ways are all named.

    >>> part_slip([11], [15], {"weights": [4], "gradients": [4], "states": [7]}, {"casts": [2]}, 1e-9)
    'Several slips lead here: weights missing; or gradients missing.'
    """
    ways = dict.fromkeys(
        words
        for words, total in _ways(parts, extras)
        if agree(list(given), _plus(wanted, total), close)
    )
    if not ways:
        return None
    return (
        f"Your answer is what one gets with {next(iter(ways))}."
        if len(ways) == 1
        else f"Several slips lead here: {'; or '.join(list(ways)[:4])}."
    )


def _ways(parts: Mapping, extras: Mapping) -> Iterator[tuple[str, list]]:
    """Slips in words, with what each adds to the right answer; the plainest first."""
    missing = [(f"{name} missing", [-value for value in column]) for name, column in parts.items()]
    added = [(f"{name} counted too", list(column)) for name, column in extras.items()]
    doubled = [(f"{name} counted twice", list(column)) for name, column in parts.items()]
    yield from missing + added + doubled
    for (first, one), (second, other) in combinations(missing + added, 2):
        yield f"{first} and {second}", _plus(one, other)


def _plus(one: Sequence, other: Sequence) -> list:
    return [a + b for a, b in zip(one, other, strict=True)]


def _agree_times(given: Sequence, factor: float, wanted: Sequence, tolerance: float) -> bool:
    return any(wanted) and agree([value * factor for value in given], list(wanted), tolerance)
