"""The number line: every value of one or two formats, by power of two or by size."""

import math

import ipywidgets
import numpy as np

from memkit.formats.decoding import all_values
from memkit.formats.reading import number_text
from memkit.formats.records import FORMATS, FloatFormat, Format
from memkit.formats.rounding import neighbours
from memkit.pictures.number_line import MAX_BITS, NumberLinePicture
from memkit.units import as_one_of, as_whole_number
from memkit.widgets.panel import LABEL, WIDE, Number, Panel, View, choice, switch

NAMES = tuple(name for name, fmt in FORMATS.items() if fmt.bits <= MAX_BITS)
NONE = "no second format"
MAX_ZOOM = 280
"""Halvings: enough to come down from bfloat16's largest value to below its smallest."""


class NumberLine(Panel):
    """One or two formats, logarithmic or linear, and a zoom → their values as ticks, subnormal ones apart.

    ``zoom`` halves so many times what is shown: of the linear line the length, with ``around`` in its middle;
    of the logarithmic one the largest value, the smallest positive one staying at its left end.
    """

    def __init__(self, **values):
        self.line = NumberLinePicture()
        controls = {
            "format": choice("Format", list(NAMES), "float8_e4m3fn"),
            "second": choice("Second", [NONE, *NAMES], "float8_e5m2"),
            "is_log": switch("logarithmic", True),
            "zoom": Number("Zoom", 0, low=0, high=20),
            "around": ipywidgets.FloatText(0.0, description="Around (linear)", style=LABEL, layout=WIDE),
        }
        super().__init__(controls, **values)

    def view(self, format: str, second: str, is_log: bool, zoom: int, around: float) -> View:
        """The ticks between the ends that the zoom leaves."""
        for name, value, allowed in (("format", format, NAMES), ("second", second, (NONE, *NAMES))):
            as_one_of(name, value, allowed)
        if not isinstance(is_log, bool):
            raise ValueError(f"is_log={is_log!r} is neither True nor False")
        zoom = as_whole_number("zoom", zoom)
        if zoom > MAX_ZOOM:
            raise ValueError(f"zoom={zoom} is above {MAX_ZOOM}: no format here reaches so far down")
        formats = [FORMATS[name] for name in (format, second) if name != NONE]
        low, high = window(formats, is_log, zoom, around)
        if is_log and not low < high:
            raise ValueError(f"zoom={zoom} leaves nothing: the smallest positive value is {number_text(low)}")
        self.line.redraw(*formats, is_log=is_log, low=low, high=high)
        return View(
            png=self.line.png(),
            alt=self.line.alt,
            words=(*map(summary, formats), *([contrast(*formats)] if len(formats) == 2 else [])),
            table=rows(formats, low, high),
        )


def window(formats: list[Format], is_log: bool, zoom: int, around: float) -> tuple[float, float]:
    """The ends of what is shown.

    >>> window([FORMATS["int4"]], False, 0, 0.0), window([FORMATS["bfloat16"]], False, 125, 256.0)
    ((-8.0, 7.0), (248.03125, 263.96875))
    """
    if isinstance(around, bool) or not isinstance(around, (int, float)) or not math.isfinite(around):
        raise ValueError(f"around={around!r} is not a finite number")
    first, last = min(fmt.min for fmt in formats), max(fmt.max for fmt in formats)
    if not first <= around <= last:
        raise ValueError(f"around={around!r} is outside the values, {number_text(first)} to {number_text(last)}")
    if is_log:
        return min(least(fmt) for fmt in formats), last / 2**zoom
    if not zoom:
        return float(first), float(last)
    half = (last / 2 - first / 2) / 2**zoom
    return around - half, around + half


def least(fmt: Format) -> float:
    """The smallest positive value."""
    values = all_values(fmt)
    return float(values[values > 0][0])


def gap_at(fmt: Format, value: float) -> float:
    """Distance from ``value`` to the next larger value of the format; infinite where there is none."""
    return float(neighbours(value, fmt)[1]) - value


def summary(fmt: Format) -> str:
    """Count, ends, and where the values crowd."""
    values = all_values(fmt)
    ends = f"{number_text(least(fmt))} to {number_text(fmt.max)}"
    inside = np.count_nonzero(np.abs(values) <= 1) / values.size
    return f"{fmt.name}: {values.size} values, the positive ones from {ends}; {inside:.0%} lie within ±1."


def contrast(first: Format, second: Format) -> str:
    """Which of two formats reaches further and which is finer at 1."""
    spans = [fmt.max / least(fmt) for fmt in (first, second)]
    if "nf4" in (first.name, second.name):  # a table: compared as shares of the largest value
        gaps = [float(np.diff(all_values(fmt)).min() / fmt.max) for fmt in (first, second)]
        fine = (first, second)[gaps[1] < gaps[0]]
        return (
            f"As shares of their largest values, {fine.name} is the finer: its smallest step is "
            f"{min(gaps):.3f}, the other's {max(gaps):.3f}."
        )
    steps = [gap_at(fmt, 1.0) if fmt.max > 1 else float("inf") for fmt in (first, second)]
    wide = (first, second)[spans[1] > spans[0]]
    reach = f"{wide.name} spans {np.log2(max(spans)):.0f} powers of two, the other {np.log2(min(spans)):.0f}"
    if steps[0] == steps[1]:
        return f"{reach}; at 1 their steps are equal, {number_text(steps[0])}."
    fine = (first, second)[steps[1] < steps[0]]
    sizes = f"{number_text(min(steps))} against {number_text(max(steps))}"
    return f"{reach}; at 1 {fine.name} is the finer, a step of {sizes}."


def rows(formats: list[Format], low: float, high: float) -> tuple[tuple[str, ...], ...]:
    """The facts of each format and what is in view."""
    table = [("format", "values", "in view", "subnormal", "smallest positive", "largest", "step at 1")]
    for fmt in formats:
        values = all_values(fmt)
        shown = np.count_nonzero((values >= low) & (values <= high))
        has_subnormals = isinstance(fmt, FloatFormat) and fmt.has_subnormals
        small = (
            np.count_nonzero((np.abs(values) < fmt.smallest_normal) & (values != 0)) if has_subnormals else 0
        )
        step = number_text(gap_at(fmt, 1.0)) if fmt.max > 1 else "none"
        ends = number_text(least(fmt)), number_text(fmt.max)
        table.append((fmt.name, str(values.size), str(shown), str(small), *ends, step))
    return tuple(table)
