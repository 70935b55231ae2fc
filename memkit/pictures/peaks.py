"""Stacked bars side by side: peaks of choices with a card's line, and formula, trace and measurement of one step."""

from collections.abc import Mapping, Sequence

from memkit.pictures.axes import Scale, point
from memkit.pictures.svg import GREY, LOOKS, Chart, text_width
from memkit.pictures.timeline import (
    STACK,
    axis_top,
    card_line,
    drawn_instants,
    memory_axis,
    short,
    stacked_bar,
)
from memkit.timeline import PARTS, Instant, MemoryTimeline, where
from memkit.units import format_bytes, format_ratio

MAX_COMPARED, NAME_SIZE = 10, 11.5
"""More instants than this are not compared in one picture; then only the last step is drawn."""


def name_parts(chart: Chart, left: float, top: float) -> None:
    """Swatch and name of every part, from the top of a bar down."""
    parts = [(LOOKS[part], part.replace("_", " ")) for part in reversed(PARTS)]
    chart.legend(parts, left, top, chart.width - left, 12, row=27)


def two_lines(name: str, room: float) -> str:
    """A name that is wider than its room, broken at the space nearest its middle, unless it says itself where.

    >>> two_lines("LoRA r = 16", 60), two_lines("LoRA r = 16", 90)
    ('LoRA\\nr = 16', 'LoRA r = 16')
    """
    spaces = [place for place, letter in enumerate(name) if letter == " "]
    if "\n" in name or not spaces or text_width(name, NAME_SIZE) <= room:
        return name
    middle = min(spaces, key=lambda place: abs(place - (len(name) - 1) / 2))
    return f"{name[:middle]}\n{name[middle + 1:]}"


def choices_figure(
    peaks: Mapping[str, Instant],
    title: str,
    subtitle: str = "",
    capacity_bytes: int = 0,
    chosen: int = -1,
    above: Sequence[str] = (),
    foot: str = "",
) -> Chart:
    """A stacked bar for each peak, its bytes above, its name in up to two lines below; a triangle marks the chosen.

    ``above`` is a second line above each bar, and ``foot`` says what the texts are; ``chosen`` is an index, -1 for
    none. A bar's ``data-pick`` is its number.

    Raises: ValueError: nothing to draw.
    """
    if not peaks:
        raise ValueError("choices_figure needs at least one peak")
    top = axis_top(max(peak.total_bytes for peak in peaks.values()), capacity_bytes)
    chart = Chart(800, 390, title, subtitle)
    y = Scale(low=0, high=top, start=310, end=70)
    x = Scale(low=-0.65, high=len(peaks) - 0.35, start=92, end=640)
    memory_axis(chart, y, 92, 640)
    tops, told = [], []
    for number, (name, peak) in enumerate(peaks.items()):
        flat, size = name.replace("\n", " "), format_bytes(peak.total_bytes)
        stacked_bar(chart, peak, x(number), 0.72 * (x(1) - x(0)), y, flat, data={"pick": number})
        tops.append((x(number), y(peak.total_bytes) - 3, "\n".join([short(peak.total_bytes), *above[number:][:1]])))
        mark = ", chosen" if number == chosen else ""
        told.append(f"{flat}{mark}: {size}, {above[number]}" if above else f"{flat} {size}")
    card_line(chart, y, capacity_bytes, 92, 640)
    broken = [(*at, text.replace(" ", "\n", 1)) for *at, text in tops]
    lines = 1 + bool(above) + chart.place(tops, broken, size=11.5, at="bottom", boxed=True)
    if chosen >= 0:
        point(chart, x(chosen), tops[chosen][1] - 7 - 14 * lines, "v", "currentColor", 5)
    room = 0.9 * (x(1) - x(0))
    chart.row([(x(n), two_lines(name, room)) for n, name in enumerate(peaks)], y.start + 5, NAME_SIZE)
    chart.words(92, 376, foot, 12, shade=GREY)
    name_parts(chart, 660, 100)
    chart.alt = f"{title}. {subtitle}. {foot or 'Stacked bars'}: {'; '.join(told)}."
    return chart


def compare_figure(*timelines: MemoryTimeline, title: str = "One training step, three ways") -> Chart:
    """For each instant that all timelines know, a stacked bar of each.

    Above an instant stands the first ÷ the last of its bars; the letters below the bars name the timelines.

    Raises: ValueError: no instant in common.
    """
    known = [{(i.name, i.step, i.micro_batch): i for i in drawn_instants(t)} for t in timelines]
    keys = [key for key in known[-1] if all(key in instants for instants in known)] if timelines else []
    if not keys:
        raise ValueError(f"compare_figure needs timelines with an instant in common, got {len(timelines)} timelines")
    if len(keys) > MAX_COMPARED:
        keys = [key for key in keys if key[1] == keys[-1][1]]
    sources = [timeline.source for timeline in timelines]
    chart = Chart(800, 430, title, f"above the bars: {sources[0]} ÷ {sources[-1]}")
    bars = [[instants[key] for instants in known] for key in keys]
    y = Scale(low=0, high=axis_top(max(bar.total_bytes for group in bars for bar in group)), start=357, end=71)
    pitch = len(timelines) + 0.9
    x = Scale(low=-0.8, high=len(keys) * pitch - 1.1, start=92, end=624)
    memory_axis(chart, y, 92, 624)
    ratios, names = [], []
    for number, group in enumerate(bars):
        middle = x(number * pitch + (len(timelines) - 1) / 2)
        for place, (bar, source) in enumerate(zip(group, sources, strict=True)):
            at = x(number * pitch + place)
            stacked_bar(chart, bar, at, 0.94 * (x(1) - x(0)), y, f"{where(bar)}, {source}", data={"source": source})
            chart.words(at, y.start + 4, source[0], 11, anchor="middle", at="top", shade=GREY)
        ratio = format_ratio(group[0].total_bytes, group[-1].total_bytes)
        ratios.append((middle, y(max(bar.total_bytes for bar in group)) - 3, ratio))
        phase, _, moment = keys[number][0].partition(" ")
        names.append((middle, phase if phase in ("init", "zero_grad") else f"{phase}\n{moment or 'end'}"))
    chart.place(ratios, size=12, at="bottom")
    chart.row(names, y.start + 20, 11.5)
    has_rest = any(bar.unattributed_bytes for group in bars for bar in group)
    parts = [part for part in reversed(STACK) if has_rest or part != "not attributed"]
    parts = parts[1:] + parts[:1] if has_rest else parts
    end = chart.legend([(LOOKS[part], part.replace("_", " ")) for part in parts], 644, 80, 156, 12.5, row=34)
    for number, source in enumerate(sources):
        chart.words(644, end + 10 + 24 * number, f"{source[0]}  {source}", 12.5)
    peaks = ", ".join(f"{t.source} {format_bytes(t.peak_bytes)}" for t in timelines)
    chart.alt = f"{title}: groups of stacked bars, one group per instant. Peaks: {peaks}."
    return chart
