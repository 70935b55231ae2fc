"""The book's pictures of memory: any timeline, and several of them side by side.

Each function returns a ``Picture``: a matplotlib figure that a notebook shows and ``savefig`` writes.
"""


from memkit.pictures.picture import GREY, INK, Picture
from memkit.pictures.timeline import (
    TimelinePicture,
    axis_top,
    drawn_instants,
    memory_axis,
    name_parts,
    stack,
    stacked_patches,
)
from memkit.timeline import Instant, MemoryTimeline
from memkit.units import format_bytes, format_ratio

MAX_COMPARED = 10
"""More instants than this are not compared in one picture; then only the last step is drawn."""


def timeline_figure(timeline: MemoryTimeline, **choices) -> TimelinePicture:
    """Any timeline as stacked bars; ``choices`` are those of ``TimelinePicture.redraw``."""
    return TimelinePicture().redraw(timeline, **choices)


def compare_figure(*timelines: MemoryTimeline, title: str = "One training step, three ways") -> Picture:
    """Formula, trace and measurement side by side: for each instant that all of them know, one bar each.

    Above an instant stands the first ÷ the last of its bars; the bars are named in its first group.
    """
    known = [{(i.name, i.step, i.micro_batch): i for i in drawn_instants(t)} for t in timelines]
    keys = [key for key in known[-1] if all(key in instants for instants in known)] if timelines else []
    if not keys:
        raise ValueError(
            f"compare_figure needs timelines with an instant in common, got {len(timelines)} timelines"
        )
    if len(keys) > MAX_COMPARED:
        keys = [key for key in keys if key[1] == keys[-1][1]]
    picture = Picture()
    plot = picture.add_axes((0.11, 0.17, 0.67, 0.665))
    plot.yaxis.set_label_coords(-0.125, 0.5)
    bars: list[Instant] = []
    places: list[float] = []
    for group, key in enumerate(keys):
        bars += [instants[key] for instants in known]
        places += [group * (len(timelines) + 0.9) + number for number in range(len(timelines))]
    top = axis_top(max(bar.total_bytes for bar in bars))
    plot.set_ylim(0, top)
    memory_axis(plot)
    plot.set_xlim(-0.8, places[-1] + 0.8)
    stack(stacked_patches(plot), bars, places, 0.94, len(bars))
    at = {"transform": plot.get_xaxis_transform(), "ha": "center", "va": "top", "color": INK}
    for group, (name, *_) in enumerate(keys):
        own = slice(group * len(timelines), (group + 1) * len(timelines))
        middle, heights = sum(places[own]) / len(timelines), [bar.total_bytes for bar in bars[own]]
        for x, timeline in zip(places[own], timelines, strict=True):
            plot.text(x, -0.02, timeline.source[0], fontsize=8, **{**at, "color": GREY})
        phase, _, moment = name.partition(" ")
        label = phase.replace("_", "_\n") if phase in ("init", "zero_grad") else f"{phase}\n{moment or 'end'}"
        plot.text(middle, -0.075, label, fontsize=8.5, **at)
        ratio = format_ratio(heights[0], heights[-1])
        plot.text(
            middle, max(heights) + top * 0.012, ratio, fontsize=8.5, ha="center", va="bottom", color=INK
        )
    _write_sides(picture, timelines, bars, title)
    return picture


def _write_sides(picture: Picture, timelines, bars: list[Instant], title: str) -> None:
    """Title, what the letters under the bars mean, and the legend in words."""
    first, last = timelines[0].source, timelines[-1].source
    picture.text(0.012, 0.955, title, fontsize=11.5, fontweight="bold", va="center", color=INK)
    picture.text(0.012, 0.898, f"above the bars: {first} ÷ {last}", fontsize=9, va="center", color=GREY)
    side = picture.surface((0.8, 0, 0.2, 1))
    has_rest = any(bar.unattributed_bytes for bar in bars)
    for part, (swatch, name, _) in name_parts(side, top=0.85, row=0.085).items():
        swatch.set_visible(has_rest or part != "not attributed")
        name.set(visible=swatch.get_visible(), va="center", y=swatch.get_y() + swatch.get_height() / 2)
    for row, timeline in enumerate(timelines):
        line = f"{timeline.source[0]}  {timeline.source}"
        side.text(0, 0.3 - 0.06 * row, line, fontsize=9.5, va="top", color=INK)
    peaks = ", ".join(f"{t.source} {format_bytes(t.peak_bytes)}" for t in timelines)
    picture.alt = f"{title}: groups of stacked bars, one group per instant. Peaks: {peaks}."
