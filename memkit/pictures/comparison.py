"""Formula, trace and measurement side by side: several timelines in one picture."""

from memkit.pictures.axes import Scale
from memkit.pictures.svg import GREY, LOOKS, Chart
from memkit.pictures.timeline import STACK, axis_top, drawn_instants, memory_axis, stacked_bar
from memkit.timeline import MemoryTimeline, where
from memkit.units import format_bytes, format_ratio

MAX_COMPARED = 10
"""More instants than this are not compared in one picture; then only the last step is drawn."""


def compare_figure(*timelines: MemoryTimeline, title: str = "One training step, three ways") -> Chart:
    """For each instant that all timelines know, a stacked bar of each.

    Above an instant stands the first ÷ the last of its bars; the letters below the bars name the timelines.

    Raises: ValueError: no instant in common.
    """
    known = [{(i.name, i.step, i.micro_batch): i for i in drawn_instants(t)} for t in timelines]
    keys = [key for key in known[-1] if all(key in instants for instants in known)] if timelines else []
    if not keys:
        raise ValueError(
            f"compare_figure needs timelines with an instant in common, got {len(timelines)} timelines"
        )
    if len(keys) > MAX_COMPARED:
        keys = [key for key in keys if key[1] == keys[-1][1]]
    sources = [timeline.source for timeline in timelines]
    chart = Chart(800, 430, title, f"above the bars: {sources[0]} ÷ {sources[-1]}")
    bars = [[instants[key] for instants in known] for key in keys]
    y = Scale(
        low=0, high=axis_top(max(bar.total_bytes for group in bars for bar in group)), start=357, end=71
    )
    pitch = len(timelines) + 0.9
    x = Scale(low=-0.8, high=len(keys) * pitch - 1.1, start=92, end=624)
    memory_axis(chart, y, 92, 624)
    ratios, names = [], []
    for number, group in enumerate(bars):
        middle = x(number * pitch + (len(timelines) - 1) / 2)
        for place, (bar, source) in enumerate(zip(group, sources, strict=True)):
            at = x(number * pitch + place)
            stacked_bar(
                chart, bar, at, 0.94 * (x(1) - x(0)), y, f"{where(bar)}, {source}", data={"source": source}
            )
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
