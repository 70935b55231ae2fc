"""The number line: every value of one or two formats, by power of two or by size."""

import numpy as np

from memkit.formats.decoding import all_values
from memkit.formats.reading import number_text
from memkit.formats.records import FORMATS, FloatFormat, Format
from memkit.formats.rounding import neighbours
from memkit.pictures.number_line import MAX_BITS, NumberLinePicture
from memkit.units import as_whole_number
from memkit.widgets.panel import Number, Panel, View, choice, switch

NAMES = tuple(name for name, fmt in FORMATS.items() if fmt.bits <= MAX_BITS)
NONE = "no second format"
MAX_ZOOM = 280
"""Halvings: enough to come down from bfloat16's largest value to below its smallest."""


class NumberLine(Panel):
    """One or two formats, logarithmic or linear, and a zoom → their values as ticks, subnormal ones apart.

    ``zoom`` halves the largest value shown so many times; zero stays in the middle of the linear line, the
    smallest positive value at the left end of the logarithmic one.
    """

    def __init__(self, **values):
        self.line = NumberLinePicture()
        controls = {
            "format": choice("Format", list(NAMES), "float8_e4m3fn"),
            "second": choice("Second", [NONE, *NAMES], "float8_e5m2"),
            "is_log": switch("logarithmic", True),
            "zoom": Number("Zoom", 0, low=0, high=20),
        }
        super().__init__(controls, **values)

    def view(self, format: str, second: str, is_log: bool, zoom: int) -> View:
        """The ticks between the ends that the zoom leaves."""
        for name, value, allowed in (("format", format, NAMES), ("second", second, (NONE, *NAMES))):
            if not isinstance(value, str) or value not in allowed:
                raise ValueError(f"{name}={value!r} is not one of {', '.join(allowed)}")
        if not isinstance(is_log, bool):
            raise ValueError(f"is_log={is_log!r} is neither True nor False")
        zoom = as_whole_number("zoom", zoom)
        if zoom > MAX_ZOOM:
            raise ValueError(f"zoom={zoom} is above {MAX_ZOOM}: no format here reaches so far down")
        formats = [FORMATS[name] for name in (format, second) if name != NONE]
        high = max(fmt.max for fmt in formats) / 2**zoom
        low = min(least(fmt) for fmt in formats) if is_log else -high
        if is_log and not low < high:
            raise ValueError(f"zoom={zoom} leaves nothing: the smallest positive value is {number_text(low)}")
        self.line.redraw(*formats, is_log=is_log, low=low, high=high)
        return View(
            png=self.line.png(),
            alt=self.line.alt,
            words=(*map(summary, formats), *([contrast(*formats)] if len(formats) == 2 else [])),
            table=rows(formats, low, high),
        )


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
