"""Chapter 02's title figure: every positive value of FP8's two formats, by power of two.

Normal and subnormal values differ by colour, by height and by a line of their own in words.
"""

import math
from pathlib import Path

from memkit.formats.records import get_format
from memkit.formats.rounding import all_values
from memkit.formats.single import number_text
from memkit.pictures.colours import BLUE, GREEN, VERMILION
from memkit.pictures.svg import FAINT, GREY, SUPERSCRIPTS, Chart, Scale


def number_line_figure(*names: str) -> Chart:
    """A row of ticks for each of two formats, each telling its value; subnormal values are short."""
    formats = [get_format(name) for name in names]
    low, high = min(fmt.smallest_subnormal for fmt in formats), max(fmt.max for fmt in formats)
    chart = Chart(800, 300, " and ".join(names))
    chart.words(786, 20, "positive values, logarithmic", 12, anchor="end", shade=GREY)
    x = Scale(low=low, high=high, start=34, end=766, is_log=True)
    left, right = math.log2(low), math.log2(high)
    step = max(1, math.ceil((right - left) / 12))
    powers = range(math.ceil(left / step) * step, math.floor(right) + 1, step)
    ticks = [
        (2.0**power, f"2{str(power).translate(SUPERSCRIPTS)}" if power else "1") for power in powers
    ]
    x.ticks_below(chart, ticks, 44, 258)
    told = f"A number line by power of two from {number_text(low)} to {number_text(high)}."
    for fmt, y, colour in zip(formats, (96, 206), (BLUE, VERMILION), strict=True):
        values = all_values(fmt)
        positive = sorted(
            values[values > 0].tolist(), key=lambda value: value < fmt.smallest_normal
        )
        chart.line([(x.start - 10, y), (x.end + 10, y)], shade=FAINT)
        for value in positive:
            ink, tall = (colour, 22) if value >= fmt.smallest_normal else (GREEN, 11)
            tells = {"tip": number_text(value, 9), "data": {"value": repr(value)}}
            chart.line([(x(value), y - tall), (x(value), y + tall)], ink, stroke_width=1.2, **tells)
        count = sum(value < fmt.smallest_normal for value in positive)
        parts = [
            fmt.name,
            f"{len(positive)} of {len(values)} values",
            f"largest {number_text(fmt.max)}",
        ]
        if fmt.has_subnormals:
            parts.insert(2, f"{count} subnormal (short ticks)")
        chart.words(24, y - 32, "  ·  ".join(parts), 12.5, boxed=True)
        told += f" {', '.join(parts).replace(' (short ticks)', '')}."
    chart.alt = told
    return chart


number_line_figure("float8_e4m3fn", "float8_e5m2").write_files(Path(__file__).with_suffix(""))
