"""Scales, ticks and curves: what a chart with axes adds to rectangles, lines and words."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from memkit.pictures.svg import FAINT, GREY, OKABE_ITO, Chart

SHAPES = {
    "o": (12, 0, 1),
    "s": (4, 1 / 8, 1),
    "D": (4, 0, 1),
    "^": (3, 0, 1),
    "v": (3, 1 / 2, 1),
    "<": (3, 3 / 4, 1),
    "P": (4, 0, 0.35),
    "X": (4, 1 / 8, 0.35),
    "h": (6, 0, 1),
    "*": (5, 0, 0.45),
}
"""Marks of points: corners, turned by which share of a circle, and how far in the corners between them lie."""
DASHED = "6 4"
DASHES = ("", "7 4", "10 3 2 3", "2 3", "14 4", "5 2 1 2 1 2")
Ticks = Iterable[tuple[float, str]]
"""Values of an axis, each with its words."""
COLOURS = ("currentColor", OKABE_ITO[1], OKABE_ITO[0], OKABE_ITO[3], OKABE_ITO[4], OKABE_ITO[2])


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
        chart.words((self.start + self.end) / 2, bottom + 24, label, 12.5, anchor="middle", at="top")


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


def thinned(places: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Places on a grid of pixels; of those in one column the first, the highest, the lowest and the last.

    >>> thinned([(0.1, 5), (0.2, 90), (0.3, 7), (0.4, 8), (0.4, 9), (3, 9)])
    [(0, 5.0), (0, 5.0), (0, 90.0), (0, 9.0), (3, 9.0)]
    """
    kept = []
    for x, column in groupby(places, key=lambda place: round(place[0])):
        heights = [round(2 * y) / 2 for _, y in column]
        kept += [
            (x, y) for y in ((heights[0], min(heights), max(heights), heights[-1]) if len(heights) > 2 else heights)
        ]
    return kept


def outline_of(shape: str, x: float, y: float, size: float) -> list[tuple[float, float]]:
    """The corners of a mark around a place."""
    corners, turn, inner = SHAPES[shape]
    angles = [2 * math.pi * (turn + number / corners) for number in range(corners)]
    if inner < 1:
        angles = [angle + half for angle in angles for half in (0, math.pi / corners)]
    radii = [1.3 * size, 1.3 * size * inner] * len(angles) if inner < 1 else [1.3 * size] * len(angles)
    return [(x + r * math.sin(angle), y - r * math.cos(angle)) for angle, r in zip(angles, radii, strict=False)]


def point(chart: Chart, x: float, y: float, shape: str, colour: str, size: float = 4, is_filled=True, **tells):
    """A mark of a shape; hollow, it shows the ground."""
    fill = (colour if is_filled else "none", "")
    chart.area([outline_of(shape, x, y, size)], fill, stroke=colour, stroke_width=1.2, pointer_events="all", **tells)


@dataclass(frozen=True)
class Curve:
    """Named values over places: a line with its colour, dashes and mark; ``note`` stands below its name."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: str = "currentColor"
    dashes: str = ""
    shape: str = ""
    note: str = ""
    width: float = 2
    is_stepped: bool = False
    marks_every: int = 1
    marks_from: int = 0

    @property
    def stroke(self) -> dict:
        """Its width and dashes."""
        return {"stroke_width": self.width, "stroke_dasharray": self.dashes or "none"}

    def draw(self, chart: Chart, x: Scale, y: Scale) -> None:
        """The line and its marks."""
        places = [(x(a), y.inside(b)) for a, b in zip(self.xs, self.ys, strict=True)]
        line = places
        if self.is_stepped:
            line = [corner for (a, b), (c, _) in zip(places, [*places[1:], places[-1]]) for corner in ((a, b), (c, b))]
        chart.line(line, self.colour, **self.stroke)
        for a, b in places[self.marks_from :: self.marks_every] if self.shape else ():
            point(chart, a, b, self.shape, self.colour)

    def entry(self, chart: Chart, left: float, y: float) -> None:
        """A piece of the line, its name and its note."""
        chart.line([(left, y), (left + 34, y)], self.colour, **self.stroke)
        if self.shape:
            point(chart, left + 17, y, self.shape, self.colour)
        chart.words(left + 44, y, self.name, 12.5)
        chart.words(left + 44, y + 16, self.note, 12, shade=GREY)


def draw_curves(chart: Chart, curves: Iterable[Curve], x: Scale, y: Scale, left: float, top: float, row: float) -> None:
    """Curves on two scales, and their names below one another."""
    for number, curve in enumerate(curves):
        curve.draw(chart, x, y)
        curve.entry(chart, left, top + row * number)
