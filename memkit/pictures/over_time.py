"""Memory over time: every allocation and free of a step in order, stacked by part, one panel a timeline.

The bars of ``memkit.pictures.timeline`` show named instants; here one sees how a step gets from one to the next: the
sawtooth of micro-batches, the second run of a checkpoint, the spike at the logits.
"""

from collections.abc import Mapping
from itertools import groupby, pairwise

from matplotlib.collections import PolyCollection
from matplotlib.ticker import MultipleLocator

from memkit.pictures.breakdown import round_step
from memkit.pictures.picture import GREY, INK, Picture, hatched
from memkit.pictures.timeline import LOOK, memory_axis
from memkit.timeline import PARTS, Event, MemoryTimeline
from memkit.units import format_bytes

PHASE_NAMES = {"zero_grad": "zero", "optimizer": "optim"}
SHORTEST_NAMED = 0.045
"""Share of the axis below which a phase's name does not fit."""


def levels(events: tuple[Event, ...]) -> dict[str, list[int]]:
    """Bytes of each part after each event; what has no part counts as temporary.

    >>> levels((Event(1, 8, "weights"), Event(2, 4, "gradients"), Event(1, -8, "weights")))["weights"]
    [8, 8, 0]
    """
    now, heights = dict.fromkeys(PARTS, 0), {part: [] for part in PARTS}
    for event in events:
        now[event.part or "temporary"] += event.num_bytes
        for part, height in heights.items():
            height.append(now[part])
    return heights


def over_time_figure(panels: Mapping[str, MemoryTimeline], *, step: int = 2, title: str = "") -> Picture:
    """One panel a timeline, all on one scale of bytes; across, the events of ``step`` in program order.

    Raises: ValueError: no timeline, one without events, or a step that it does not have.
    """
    if not panels:
        raise ValueError("over_time_figure needs at least one timeline")
    drawn = {name: steps_of(timeline, step) for name, timeline in panels.items()}
    highest = max(sum(height[peak] for height in heights.values()) for heights, _, peak in drawn.values())
    tick = round_step(highest / 4)
    top = tick * -(-highest * 16 // (15 * tick))  # a mark and its room above the highest moment
    picture = Picture(8.0, 1.0 + 1.75 * len(panels))
    told = []
    for number, (name, (heights, phases, peak)) in enumerate(drawn.items()):
        height = 1.75 / (1.0 + 1.75 * len(panels))
        bottom = 0.2 / (1.0 + 1.75 * len(panels)) + height * (len(panels) - 1 - number) + 0.06
        plot = picture.add_axes((0.1, bottom, 0.7, height - 0.1))
        _draw(plot, heights, phases, top)
        plot.yaxis.set_major_locator(MultipleLocator(tick))
        total = sum(heights[part][peak] for part in PARTS)
        phase = next(phase for phase, start, end in phases if start <= peak < end)
        plot.plot([peak + 0.5], [total], "v", color=INK, markersize=6, clip_on=False)
        plot.set_title(f"{name}: peak {format_bytes(total)} in the {phase}", fontsize=10, loc="left", color=INK)
        told.append(f"{name}: the peak, {format_bytes(total)}, is in the {phase}")
    name_parts_in_rows(picture, top_inches=0.75)
    picture.text(0.012, 0.985, title, fontsize=11.5, fontweight="bold", va="top", color=INK)
    picture.alt = f"{title or 'Memory over time'}, stacked by part, event by event. {'; '.join(told)}."
    return picture


def steps_of(timeline: MemoryTimeline, step: int) -> tuple[dict[str, list[int]], list[tuple[str, int, int]], int]:
    """Heights by part at the events of one step, its phases as (name, first, end), and where the highest moment is."""
    if not timeline.events:
        raise ValueError(f"this {timeline.source} timeline carries no events to draw")
    runs, start, number = [], 0, 0
    for (number, phase), events in groupby(timeline.events, key=lambda event: (event.step, event.phase)):
        end = start + len(list(events))
        runs.append((phase, start, end, number))
        start = end
    chosen = [(phase, start, end) for phase, start, end, number in runs if number == step and phase != "init"]
    if not chosen:
        raise ValueError(f"step={step} is not among the {number} steps of this {timeline.source} timeline")
    first, last = chosen[0][1], chosen[-1][2]
    heights = {part: height[first:last] for part, height in levels(timeline.events).items()}
    totals = [sum(column) for column in zip(*heights.values(), strict=True)]
    phases = [(phase, start - first, end - first) for phase, start, end in chosen]
    for number, (before, after) in enumerate(pairwise(list(phases))):
        if before[0] == "forward" and after[0] == "optimizer":  # names that the loop drops after its last backward
            phases[number - 1 : number + 1] = [(phases[number - 1][0], phases[number - 1][1], before[2])]
    return heights, phases, totals.index(max(totals))


def _draw(plot, heights: dict[str, list[int]], phases: list[tuple[str, int, int]], top: int) -> None:
    width = len(heights["weights"])
    plot.set_xlim(0, width)
    plot.set_ylim(0, top)
    memory_axis(plot)
    plot.set_ylabel("")
    floor = [0] * width
    for part in PARTS:
        colour, hatch = LOOK[part]
        ceiling = [low + high for low, high in zip(floor, heights[part], strict=True)]
        outline = [(x + end, y) for x, y in enumerate(ceiling) for end in (0, 1)]
        outline += [(x + end, floor[x]) for x in range(width - 1, -1, -1) for end in (1, 0)]
        plot.add_collection(hatched(PolyCollection, [outline], facecolor=colour, hatch=hatch, linewidth=0))
        floor = ceiling
    plot.stairs(floor, range(width + 1), color=INK, linewidth=0.7, baseline=None)  # so that a needle is seen
    for phase, start, end in phases:
        plot.axvline(end, color=GREY, linewidth=0.6, linestyle=(0, (2, 2)))
        if (end - start) / width > SHORTEST_NAMED:
            name = PHASE_NAMES.get(phase, phase)
            plot.text((start + end) / 2, -0.03 * top, name, ha="center", va="top", fontsize=8, color=GREY)


def name_parts_in_rows(picture: Picture, top_inches: float) -> None:
    """Swatch and name of every part, one row each, in the right fifth of a picture."""
    side = picture.surface((0.82, 0, 0.18, 1), xlim=(0, 1), ylim=(0, picture.get_figheight()))
    for row, part in enumerate(reversed(PARTS)):
        y = picture.get_figheight() - top_inches - 0.27 * row
        colour, hatch = LOOK[part]
        corners = [(0, y), (0.13, y), (0.13, y + 0.15), (0, y + 0.15)]
        side.add_collection(hatched(PolyCollection, [corners], facecolor=colour, hatch=hatch))
        side.text(0.18, y + 0.075, part.replace("_", " "), fontsize=9, va="center", color=INK)
