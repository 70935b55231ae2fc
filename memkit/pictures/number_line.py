"""All values of one or two formats on a line, by size or by power of two.

Normal and subnormal values differ by colour, by height and by a line of their own in words.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache

from memkit.formats.reading import number_text
from memkit.formats.records import FloatFormat, Format, get_format
from memkit.formats.single import values_of
from memkit.pictures.axes import Scale, round_ticks
from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import FAINT, GREY, PAPER, Chart

MAX_BITS = 16
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
COLOURS = (OKABE_ITO[0], OKABE_ITO[1])
ROWS = (96, 206)
NAMED = 130
"""Up to so many values in view, each tells its value under the pointer; more are drawn as one path."""


@lru_cache(maxsize=8)
def line_values(fmt: Format, is_scaled: bool = False) -> tuple[float, ...]:
    """Every value of a format; divided by the largest if ``is_scaled``, as a block is whose factor fits its largest."""
    return tuple(value / fmt.max for value in values_of(fmt)) if is_scaled else values_of(fmt)


def between(values: Sequence[float], low: float, high: float) -> Sequence[float]:
    """Those of ascending values that lie from ``low`` to ``high``."""
    return values[bisect_left(values, low) : bisect_right(values, high)]


def default_range(formats: Sequence[Format], is_log: bool, is_scaled: bool = False) -> tuple[float, float]:
    """What is shown unless asked otherwise: all positive values by power of two, or all values by size."""
    lines = [line_values(fmt, is_scaled) for fmt in formats]
    lows = [values[bisect_right(values, 0.0)] if is_log else values[0] for values in lines]
    return min(lows), max(values[-1] for values in lines)


def number_line_figure(
    *names: str | Format,
    is_log: bool = True,
    low: float | None = None,
    high: float | None = None,
    is_scaled: bool = False,
) -> Chart:
    """A row of ticks for each of one or two formats between ``low`` and ``high``, by power of two if ``is_log``.

    ``is_scaled`` shows each as shares of its largest value.

    Raises: ValueError: no format or more than two, one of more than 16 bits, or an empty range.
    """
    formats = tuple(get_format(name) for name in names)
    if not 1 <= len(formats) <= len(ROWS) or any(fmt.bits > MAX_BITS for fmt in formats):
        raise ValueError(f"formats={[fmt.name for fmt in formats]}: allowed are one or two of up to 16 bits")
    first, last = default_range(formats, is_log, is_scaled)
    low, high = first if low is None else low, last if high is None else high
    if not low < high or is_log and low <= 0:
        raise ValueError(f"low={low}, high={high}: low has to be below high, and above 0 by power of two")
    chart = Chart(800, 300, " and ".join(fmt.name for fmt in formats))
    kind = "positive values, logarithmic" if is_log else "linear"
    chart.words(786, 20, f"{kind}, as shares of the largest" if is_scaled else kind, 12, anchor="end", shade=GREY)
    x = Scale(low=low, high=high, start=34, end=766, is_log=is_log)
    x.ticks_below(chart, line_ticks(low, high, is_log), 44, 258)
    parts = [
        _draw_row(chart, fmt, x, y, colour, is_scaled) for fmt, y, colour in zip(formats, ROWS, COLOURS, strict=False)
    ]
    way = "by power of two" if is_log else "by size"
    told = "".join(f" {', '.join(words).replace(' (short ticks)', '')}." for words in parts)
    chart.alt = f"A number line {way} from {number_text(low)} to {number_text(high)}.{told}"
    return chart


def line_ticks(low: float, high: float, is_log: bool) -> list[tuple[float, str]]:
    """Round places; on a long logarithmic line powers of two, 1 among them."""
    left, right = (math.log2(low), math.log2(high)) if is_log else (low, high)
    if not is_log or right - left < 4:
        return [(tick, number_text(tick, 8)) for tick in round_ticks(low, high, 9)]
    step = max(1, math.ceil((right - left) / 12))
    powers = range(math.ceil(left / step) * step, math.floor(right) + 1, step)
    return [(2.0**power, f"2{str(power).translate(SUPERSCRIPTS)}" if power else "1") for power in powers]


def _draw_row(chart: Chart, fmt: Format, x: Scale, y: float, colour: str, is_scaled: bool) -> list[str]:
    """The values in view as ticks, subnormal ones short, zero as a ring; and the row in words."""
    values = line_values(fmt, is_scaled)
    shown = between(values, x.low, x.high)
    smallest_normal = fmt.smallest_normal if isinstance(fmt, FloatFormat) else 0.0
    smallest_normal /= fmt.max if is_scaled else 1
    normal = [value for value in shown if value and abs(value) >= smallest_normal]
    subnormal = [value for value in shown if 0 < abs(value) < smallest_normal]
    chart.line([(x.start - 10, y), (x.end + 10, y)], shade=FAINT)
    for chosen, ink, tall in ((normal, colour, 22), (subnormal, OKABE_ITO[3], 11)):
        if len(shown) <= NAMED:
            for value in chosen:
                tells = {"tip": number_text(value, 9), "data": {"value": repr(value)}}
                chart.line([(x(value), y - tall), (x(value), y + tall)], ink, stroke_width=1.2, **tells)
        elif chosen:
            places = sorted({round(x(value)) for value in chosen})
            chart.path("".join(f"M{place} {y - tall}v{2 * tall}" for place in places), ink)
    if 0.0 in shown:
        chart.rect(x(0) - 4, y - 4, 8, 8, (PAPER, ""), rx=4, stroke="currentColor", tip="0")
    all_of_them = f"{len(values)} values"
    count = f"{len(shown)} of {all_of_them}" if len(shown) < len(values) else all_of_them
    parts = [fmt.name, count, f"largest {number_text(fmt.max)}" + (", shown as 1" if is_scaled else "")]
    if isinstance(fmt, FloatFormat) and fmt.has_subnormals:
        parts.insert(2, f"{len(subnormal)} subnormal (short ticks)")
    chart.words(24, y - 32, "  ·  ".join(parts), 12.5, boxed=True)
    return parts
