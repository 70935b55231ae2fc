"""Scales and round ticks: what a chart with axes adds to rectangles, lines and words."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from memkit.pictures.svg import FAINT, GREY, Chart
from memkit.units import format_bytes

DASHED = "6 4"
Ticks = Iterable[tuple[float, str]]
"""Values of an axis, each with its words."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps values from ``low`` to ``high`` to places from ``start`` to ``end``, by size or by power; draws its ticks.

    >>> Scale(low=0, high=8, start=100, end=20)(2), Scale(low=1, high=100, start=0, end=50, is_log=True)(10)
    (80.0, 25.0)
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log2(max(value, 1e-300)), math.log2(low), math.log2(high)
        return self.start + (self.end - self.start) * (value - low) / ((high - low) or 1)

    def inside(self, value: float) -> float:
        """The place of a value, at the nearer end where it lies outside."""
        return self(min(max(value, self.low), self.high))

    def ticks_beside(self, chart: Chart, ticks: Ticks, left: float, right: float, label="") -> None:
        """Pale lines across at values, their words at the left, and what the axis is."""
        for value, words in ticks:
            chart.line([(left, self(value)), (right, self(value))], shade=FAINT)
            chart.words(left - 6, self(value), words, 12, anchor="end", shade=GREY)
        chart.words(left, self.end - 6, label, 12, at="bottom", shade=GREY)

    def ticks_below(self, chart: Chart, ticks: Ticks, top: float, bottom: float, label="") -> None:
        """Pale lines upwards at values, their words below, and what the axis is."""
        ticks = list(ticks)
        for value, _ in ticks:
            chart.line([(self(value), top), (self(value), bottom)], shade=FAINT)
        chart.row([(self(value), words) for value, words in ticks], bottom + 5, 12, shade=GREY)
        chart.words(
            (self.start + self.end) / 2, bottom + 24, label, 12.5, anchor="middle", at="top"
        )


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most ``most`` round values from ``low`` to ``high``, evenly spaced.

    >>> round_ticks(0, 4.1), round_ticks(0, 4096, 8)[-1]
    ([0.0, 1.0, 2.0, 3.0, 4.0], 4000.0)
    """
    power = 10.0 ** math.floor(math.log10((high - low) / most or 1))
    for step in (power * factor for factor in (1, 2, 2.5, 5, 10, 20, 25)):
        numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        if len(numbers) <= most:
            return [number * step for number in numbers]
    return []


def byte_ticks(most: float) -> list[tuple[float, str]]:
    """Round places of an axis of bytes from 0 on, all in one unit.

    >>> [words for _, words in byte_ticks(11.3 * 2**30)]
    ['0 GiB', '2 GiB', '4 GiB', '6 GiB', '8 GiB', '10 GiB']
    """
    unit = format_bytes(int(most)).split()[1]
    num_bytes = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(unit)
    return [(tick * num_bytes, f"{tick:g} {unit}") for tick in round_ticks(0, most / num_bytes)]


def draw_limit(
    chart: Chart, y: Scale, num_bytes: int | None, left: float, right: float, name: str = ""
) -> None:
    """A card's capacity as a dashed line across, where it is in view; a caller with room writes its name there."""
    if num_bytes and num_bytes < y.high:
        ends = [(left, y(num_bytes)), (right, y(num_bytes))]
        tip = f"{name or 'card'}: {format_bytes(num_bytes)}"
        chart.line(
            ends, stroke_width=1.6, stroke_dasharray=DASHED, tip=tip, data={"bytes": num_bytes}
        )


def thinned(places: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Places on a grid of pixels; of those in one column the first, the highest, the lowest and the last.

    >>> thinned([(0.1, 5), (0.2, 90), (0.3, 7), (0.4, 8), (0.4, 9), (3, 9)])
    [(0, 5.0), (0, 5.0), (0, 90.0), (0, 9.0), (3, 9.0)]
    """
    kept = []
    for x, column in groupby(places, key=lambda place: round(place[0])):
        heights = [round(2 * y) / 2 for _, y in column]
        if len(heights) > 2:
            heights = [heights[0], min(heights), max(heights), heights[-1]]
        kept += [(x, y) for y in heights]
    return kept
