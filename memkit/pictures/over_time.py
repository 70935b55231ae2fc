"""Memory over time: every allocation and free of a step in order, stacked by part, one panel a timeline.

For chapters 01, 04, 05, 07, 08 and 09. The bars of ``memkit.pictures.timeline`` show named instants; here one sees
how a step gets from one to the next: the sawtooth of micro-batches, the second run of a checkpoint, the spike at the
logits.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from memkit.events import Events
from memkit.pictures.axes import Scale, byte_ticks, draw_limit, thinned
from memkit.pictures.colours import LOOKS
from memkit.pictures.svg import GREY, Chart
from memkit.timeline import PARTS, MemoryTimeline
from memkit.units import format_bytes

UNKNOWN = "not attributed"
"""What a recording has, whose events name neither part nor phase."""


def over_time_figure(
    panels: Mapping[str, MemoryTimeline], *, step: int | None = 2, title: str = "", limit: tuple[str, int] | None = None
) -> Chart:
    """One panel a timeline, all on one scale of bytes; across, the events of ``step`` (None: all) in program order.

    ``limit`` is a card's name and bytes, a line where it is in view.

    Raises: ValueError: no timeline, one without events, or a step that it does not have.
    """
    if not panels:
        raise ValueError("over_time_figure needs at least one timeline")
    drawn = {name: steps_of(timeline, step) for name, timeline in panels.items()}
    highest = max(sum(height[peak] for height in heights.values()) for heights, _, peak in drawn.values())
    top = highest * 1.09  # a mark and its room above the highest moment
    chart, told = Chart(800, 60 + 185 * len(panels), title), []
    for number, (name, (heights, phases, peak)) in enumerate(drawn.items()):
        y = Scale(low=0, high=top, start=205 + 185 * number, end=70 + 185 * number)
        x = Scale(low=0, high=len(next(iter(heights.values()))), start=92, end=640)
        y.ticks_beside(chart, byte_ticks(top), x.start, x.end)
        _draw(chart, x, y, heights, phases)
        if limit:
            card = f"{limit[0]}: {format_bytes(limit[1], 1)}"
            draw_limit(chart, y, limit[1], x.start, x.end, limit[0])
            chart.words(x.end - 4, y.inside(limit[1]) - 9, card, anchor="end", boxed=True)
        total = sum(height[peak] for height in heights.values())
        chart.words(x(peak + 0.5), y(total) - 1, "▼", 11, anchor="middle", at="bottom")
        phase = next(phase for phase, start, end in phases if start <= peak < end)
        place = f"in the {phase}" if phase else f"at event {peak}"
        chart.words(92, y.end - 12, f"{name}: peak {format_bytes(total)} {place}", 13)
        told.append(f"{name}: the peak, {format_bytes(total)}, is {place}")
    there = (UNKNOWN, *PARTS) if any(UNKNOWN in heights for heights, _, _ in drawn.values()) else PARTS
    chart.legend([(LOOKS[part], part.replace("_", " ")) for part in reversed(there)], 660, 80, 140, row=27)
    chart.alt = f"{title or 'Memory over time'}, stacked by part, event by event. {'; '.join(told)}."
    return chart


def steps_of(
    timeline: MemoryTimeline, step: int | None
) -> tuple[dict[str, list[int]], list[tuple[str, int, int]], int]:
    """Heights by part at the events of one step, its phases as (name, first, end), and where the highest moment is."""
    if not timeline.events:
        raise ValueError(f"this {timeline.source} timeline carries no events to draw")
    runs, phases, start, number = [], [], 0, 0
    for (number, phase), events in groupby(timeline.events, key=lambda event: (event.step, event.phase)):
        end = start + len(list(events))
        runs.append((phase, start, end, number))
        start = end
    if not (chosen := [run for run in runs if step in (None, run[3]) and run[0] != "init"]):
        raise ValueError(f"step={step} is not among the {number} steps of this {timeline.source} timeline")
    first, last = chosen[0][1], chosen[-1][2]
    parts = Events(timeline.events).levels(lambda event: event.part or ("temporary" if event.phase else UNKNOWN)).parts
    heights = {part: height[first:last] for part, height in parts.items()}
    totals = [sum(column) for column in zip(*heights.values(), strict=True)]
    neighbours = zip((("",), *chosen), chosen, (*chosen[1:], ("",)), strict=False)
    for before, (phase, start, end, number), after in neighbours:
        if phase == "forward" and before[::3] == ("backward", number) != after[::3]:
            # names that the loop drops after its last backward; a fused optimizer has no event of its own
            phase, start = "backward", first + phases.pop()[1]
        phases.append((phase, start - first, end - first))
    return heights, phases, totals.index(max(totals))


def corners(ys: Iterable[float], x: Scale) -> list[tuple[float, float]]:
    """A staircase of values, one an event, as the corners where it turns."""
    turns, number = [], 0
    for value, same in groupby(ys):
        end = number + len(list(same))
        turns += [(x(number), value), (x(end), value)]
        number = end
    return turns


def lay(chart: Chart, x: Scale, y: Scale, floor: Sequence[int], heights: Sequence[int], look, **tells) -> list[int]:
    """Heights over the events on top of a floor, as one area; returns what it reaches, the next one's floor."""
    ceiling = [low + high for low, high in zip(floor, heights, strict=True)]
    edges = (*corners(ceiling, x), *reversed(corners(floor, x)))
    chart.area([thinned((a, y(b)) for a, b in edges)], look, **tells)
    return ceiling


def _draw(chart: Chart, x: Scale, y: Scale, heights: Mapping[str, list[int]], phases) -> None:
    floor = [0] * int(x.high)
    for part in (*PARTS, UNKNOWN):
        if not any(heights.get(part, ())):
            continue
        most = max(heights[part])
        tip, data = f"{part.replace('_', ' ')}: at most {format_bytes(most)}", {"part": part, "bytes": most}
        floor = lay(chart, x, y, floor, heights[part], LOOKS[part], tip=tip, data=data)
    chart.line(thinned((a, y(b)) for a, b in corners(floor, x)), stroke_width=0.8)  # so that a needle is seen
    for phase, start, end in phases:
        chart.line([(x(end), y.start), (x(end), y.end)], shade=GREY, stroke_width=0.7, stroke_dasharray="2 2")
        middle = (x(start) + x(end)) / 2
        chart.place([(middle, y.start + 3, phase)], [(middle, y.start + 15, phase)], [], size=11, at="top", shade=GREY)
