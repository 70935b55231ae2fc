"""The number line: every value of one or two formats, by power of two or by size."""

import math
from bisect import bisect_left
from itertools import pairwise

from memkit.formats.reading import number_text
from memkit.formats.records import FORMATS, FloatFormat, Format
from memkit.formats.single import neighbours_of, values_of
from memkit.pictures.number_line import MAX_BITS, between, default_range, line_values, number_line_figure
from memkit.widgets.explorer import Choice, Entry, Explorer, Number, Switch, View

NAMES = tuple(name for name, fmt in FORMATS.items() if fmt.bits <= MAX_BITS)
NONE = "no second format"
MAX_ZOOM = 280
"""Halvings: more than bfloat16 needs to come from its largest value down to steps of its smallest."""
BLOCK_TABLE = "nf4"


class NumberLine(Explorer):
    """One or two formats, logarithmic or linear, and a zoom → their values as ticks, subnormal ones apart.

    ``zoom`` halves the line so many times, with ``around`` in its middle. ``is_scaled`` shows each format as shares
    of its largest value; a table of shares, ``nf4``, beside another format turns it on.
    """

    def followed(self, changes: dict) -> dict:
        """Shares for a table of shares beside another format."""
        pair = [{**self.state, **changes}[name] for name in ("format", "second")]
        if "is_scaled" not in changes and {"format", "second"} & set(changes):
            changes = {**changes, "is_scaled": BLOCK_TABLE in pair and NONE not in pair and pair[0] != pair[1]}
        return changes

    def view(
        self,
        format=Choice("Format", NAMES, "float8_e4m3fn"),
        second=Choice("Second", [NONE, *NAMES], "float8_e5m2"),
        is_log=Switch("logarithmic", True),
        is_scaled=Switch("as shares of the largest value", False),
        zoom=Number("Zoom", 0, low=0, high=8),
        around=Entry("Around", 1.0),
    ) -> View:
        """The ticks between the ends that the zoom leaves."""
        if zoom > MAX_ZOOM:
            raise ValueError(f"zoom={zoom} is above {MAX_ZOOM}: no format here has steps so small")
        formats = [FORMATS[name] for name in (format, second) if name != NONE]
        low, high = window(formats, is_log, zoom, around, is_scaled)
        return View(
            chart=number_line_figure(*formats, is_log=is_log, low=low, high=high, is_scaled=is_scaled),
            words=(
                *map(summary, formats),
                *(beside(fmt, around, is_scaled) for fmt in formats if zoom),
                *([contrast(*formats)] if len(formats) == 2 else []),
            ),
            table=rows(formats, low, high, is_scaled),
            ends={"zoom": deepest(formats, is_log, around, is_scaled)},
        )


def window(formats: list[Format], is_log: bool, zoom: int, around: float, is_scaled=False) -> tuple[float, float]:
    """The ends of what is shown: the whole line halved ``zoom`` times, with ``around`` in the middle.

    >>> window([FORMATS["int4"]], False, 0, 1.0), window([FORMATS["bfloat16"]], False, 125, 256.0)
    ((-8.0, 7.0), (248.03125, 263.96875))
    >>> window([FORMATS["float8_e4m3fn"]], True, 3, 1.0)
    (0.46..., 2.1...)
    """
    if isinstance(around, bool) or not isinstance(around, (int, float)) or not math.isfinite(around):
        raise ValueError(f"around={around!r} is not a finite number")
    first, last = default_range(formats, is_log, is_scaled)
    if not zoom:
        return first, last
    if not first <= around <= last:
        ends = f"{number_text(first)} to {number_text(last)}"
        raise ValueError(f"around={around!r} is outside the values shown, {ends}")
    if is_log:
        share = (last / first) ** (0.5 / 2**zoom)
        return around / share, around * share
    half = (last / 2 - first / 2) / 2**zoom
    return around - half, around + half


def deepest(formats: list[Format], is_log: bool, around: float, is_scaled: bool) -> int:
    """The zoom at which a few values fill the line."""
    if is_log:
        return 8
    first, last = default_range(formats, False, is_scaled)
    gap = min(gap_below(line_values(fmt, is_scaled), around) for fmt in formats)
    return max(2, round(math.log2((last / 2 - first / 2) / gap)))


def gap_below(line: tuple[float, ...], place: float) -> float:
    """Distance of the two values between which ``place`` lies, or of the last two at that end."""
    above = min(max(bisect_left(line, place), 1), len(line) - 1)
    return line[above] - line[above - 1]


def gap_at(fmt: Format, value: float) -> float:
    """Distance from ``value`` to the next larger value of the format; infinite where there is none."""
    return neighbours_of(value, fmt)[1] - value


def beside(fmt: Format, around: float, is_scaled: bool = False) -> str:
    """The next values on each side of a place, and how far they are.

    >>> beside(FORMATS["bfloat16"], 256.0)
    'Next to 256 in bfloat16: 255 below, 1 away; 258 above, 2 away.'
    """
    unit = fmt.max if is_scaled else 1.0
    sides = zip(("below", "above"), (side / unit for side in neighbours_of(around * unit, fmt)), strict=True)
    told = (f"{number_text(v)} {way}, {number_text(abs(v - around))} away" for way, v in sides if math.isfinite(v))
    return f"Next to {number_text(around)} in {fmt.name}: {'; '.join(told)}."


def summary(fmt: Format) -> str:
    """Count, ends, and where the values crowd."""
    values = values_of(fmt)
    ends = f"{number_text(least(fmt))} to {number_text(fmt.max)}"
    inside = len(between(values, -1, 1)) / len(values)
    return f"{fmt.name}: {len(values)} values, the positive ones from {ends}; {inside:.0%} lie within ±1."


def contrast(first: Format, second: Format) -> str:
    """Which of two formats reaches further and which is finer at 1."""
    spans = [fmt.max / least(fmt) for fmt in (first, second)]
    if "nf4" in (first.name, second.name):  # a table: compared as shares of the largest value
        gaps = [min(b - a for a, b in pairwise(values_of(fmt))) / fmt.max for fmt in (first, second)]
        fine = (first, second)[gaps[1] < gaps[0]]
        return (
            f"As shares of their largest values, {fine.name} is the finer: its smallest step is "
            f"{min(gaps):.3f}, the other's {max(gaps):.3f}."
        )
    steps = [gap_at(fmt, 1.0) if fmt.max > 1 else float("inf") for fmt in (first, second)]
    wide = (first, second)[spans[1] > spans[0]]
    reach = f"{wide.name} spans {math.log2(max(spans)):.0f} powers of two, the other {math.log2(min(spans)):.0f}"
    if steps[0] == steps[1]:
        return f"{reach}; at 1 their steps are equal, {number_text(steps[0])}."
    fine = (first, second)[steps[1] < steps[0]]
    sizes = f"{number_text(min(steps))} against {number_text(max(steps))}"
    return f"{reach}; at 1 {fine.name} is the finer, a step of {sizes}."


def least(fmt: Format) -> float:
    """The smallest positive value."""
    return default_range([fmt], True)[0]


def rows(formats: list[Format], low: float, high: float, is_scaled: bool) -> list[tuple[str, ...]]:
    """The facts of each format and what is in view."""
    table = [("format", "values", "in view", "subnormal", "smallest positive", "largest", "step at 1")]
    for fmt in formats:
        values = values_of(fmt)
        shown = len(between(line_values(fmt, is_scaled), low, high))
        has_subnormals = isinstance(fmt, FloatFormat) and fmt.has_subnormals
        small = sum(0 < abs(value) < fmt.smallest_normal for value in values) if has_subnormals else 0
        step = number_text(gap_at(fmt, 1.0)) if fmt.max > 1 else "none"
        ends = number_text(least(fmt)), number_text(fmt.max)
        table.append((fmt.name, str(len(values)), str(shown), str(small), *ends, step))
    return table
