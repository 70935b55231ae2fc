"""A timeline as a picture: its instants as bars, or its events over time, whoever made it: formula, trace, measurement.

Bars show a step or choices (chapters 00, 01, 08, 10, explorers of plans). An instant of the training step is a bar,
its pieces are the parts.

Over time every allocation and free stands in order, stacked by part, one panel a timeline (chapters 01, 04, 05, 07 and
09): there one sees how a step gets from one to the next: the sawtooth of micro-batches, the second run of a checkpoint,
the spike at the logits.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from memkit.pictures.bars import Bar, bars_figure, short
from memkit.pictures.colours import LOOKS
from memkit.pictures.svg import (
    GREY,
    WIDE,
    Chart,
    Scale,
    broken,
    byte_ticks,
    draw_limit,
    redrawn,
    text_width,
    thinned,
)
from memkit.timeline import PARTS, Events, Instant, Levels, MemoryTimeline, provenance_line, where
from memkit.units import format_bytes

MAX_BARS = 16
"""More bars than this cannot be labelled at 800 pixels; then only the last step is drawn."""
REST = "not attributed"
"""Bytes of no part: what a measurement does not tell apart, and all of a recording whose events name neither part nor
phase."""


def drawn_instants(timeline: MemoryTimeline) -> list[Instant]:
    """The instants that get a bar: of micro-batches the first and last; the last step alone, if crowded."""
    last = max(i.micro_batch for i in timeline.instants)
    chosen = [i for i in timeline.instants if i.micro_batch in (1, last)]
    if len(chosen) > MAX_BARS:
        step = max(i.step for i in chosen)
        chosen = [i for i in chosen if i.step == step]
    return chosen


def sizes_of(instant: Instant) -> dict[str, int]:
    """Bytes of each part and of what no part accounts for, from the bottom of a bar; an unknown part has none."""
    parts = {part: size or 0 for part, size in instant.parts.items()}
    return {**parts, REST: instant.unattributed_bytes}


def named_parts(instants: Sequence[Instant]) -> list[tuple[str, str]]:
    """Parts with their names, from the top of a bar down."""
    rest = [REST] if any(instant.unattributed_bytes for instant in instants) else []
    return [(part, part.replace("_", " ")) for part in (*rest, *reversed(PARTS))]


def _names(instant: Instant, is_split: bool) -> tuple[str, tuple[str, int]]:
    """What stands below a bar: its moment, and the phase that it shares with its neighbours of the same step."""
    phase = instant.phase
    if phase in ("init", "zero_grad"):
        return "", (phase, instant.step)
    if is_split and phase in ("forward", "backward"):
        phase += f"\nbatch {instant.micro_batch}"
    return "peak" if instant.is_peak else "end", (phase, instant.step)


@redrawn
def timeline_figure(
    timeline: MemoryTimeline,
    capacity_bytes: int | None = None,
    card_name: str = "card",
    title: str = "Memory through a training step",
    width: float = WIDE,
) -> Chart:
    """A stacked bar per instant; beside them the parts of the peak in words and bytes.

    ``capacity_bytes`` draws the card as a line. A bar's ``data-pick`` is its number.
    """
    instants = drawn_instants(timeline)
    shown = max(instants, key=lambda i: i.total_bytes)
    is_split, bars, spans = len({i.micro_batch for i in instants}) > 1, [], {}
    for number, instant in enumerate(instants):
        if instant.name != "init":
            spans.setdefault(f"step {instant.step}", []).append(number)
        moment, phase = _names(instant, is_split)
        bars.append(
            Bar(
                name=moment,
                group=phase,
                pieces=sizes_of(instant),
                above=short(instant.total_bytes),
                whose=where(instant),
                data={"pick": number},
            )
        )
    sizes = {**shown.parts, REST: shown.unattributed_bytes}
    notes, limit = f"total: {format_bytes(shown.total_bytes)}", None
    if capacity_bytes is not None:
        capacity = format_bytes(capacity_bytes, 1)
        notes += f"\n\ndashed: {card_name}\n{capacity}"
        limit = f"{card_name}: {capacity}", capacity_bytes
    parts = [(part, f"{name}\n{format_bytes(sizes[part])}") for part, name in named_parts(instants)]
    source, head = provenance_line(timeline), f"Peak of the step:\n{where(shown)}"
    chart = bars_figure(
        title,
        bars,
        subtitle=source,
        chosen=instants.index(shown),
        spans=spans,
        limit=limit,
        head=head,
        beside=parts,
        notes=notes,
        width=width,
    )
    peak, last = timeline.peak, timeline.instants[-1]
    chart.alt = (
        f"{title} ({source}): stacked bars for {len(timeline.instants)} instants. "
        f"The tallest, {format_bytes(peak.total_bytes)}, is the {where(peak)}; "
        f"the last, {where(last)}, has {format_bytes(last.total_bytes)}."
    )
    return chart


@redrawn
def over_time_figure(
    panels: Mapping[str, MemoryTimeline],
    *,
    step: int | None = 2,
    title: str = "",
    limit: tuple[str, int] | None = None,
    marks_peak: bool = True,
    width: float = WIDE,
) -> Chart:
    """One panel a timeline, all on one scale of bytes; across, the events of ``step`` (None: all) in program order.

    ``limit`` is a card's name and bytes, a line where it is in view. Without ``marks_peak`` neither the picture nor its
    words say where the highest moment is, and only the first phase is drawn: a reader is to find it.

    Raises: ValueError: no timeline, one without events, or a step that it does not have.
    """
    if not panels:
        raise ValueError("over_time_figure needs at least one timeline")
    drawn = {name: steps_of(timeline, step) for name, timeline in panels.items()}
    if not marks_peak:  # of what follows the first phase nothing is drawn
        for heights, phases, _ in drawn.values():
            for sizes in heights.values():
                sizes[phases[0][2] :] = [0] * (len(sizes) - phases[0][2])
    # a mark has its room above the highest moment
    top = 1.09 * max(max(Levels(heights).totals) for heights, _, _ in drawn.values())
    chart, words = Chart(width, 60 + 185 * len(panels), title), []
    left, right = (64, width - 10) if chart.is_narrow else (92, 640)
    upper = 70 + chart.lower  # a panel's upper end
    for name, (heights, phases, peak) in drawn.items():
        x = Scale(low=0, high=len(next(iter(heights.values()))), start=left, end=right)
        total = Levels(heights).totals[peak]
        if marks_peak:
            phase = next(phase for phase, start, end in phases if start <= peak < end)
            place = f"in the {phase}" if phase else f"at event {peak}"
            words.append(f"{name}: the peak, {format_bytes(total)}, is {place}")
            name = f"{name}: peak {format_bytes(total)} {place}"
        else:
            words.append(name)
        if chart.is_narrow:
            name = broken(name, width - 20, 13)
            upper += 16 * name.count("\n")
        y = Scale(low=0, high=top, start=upper + 135, end=upper)
        y.ticks_beside(chart, byte_ticks(top), x.start, x.end)
        _draw_areas(chart, x, y, heights)
        _draw_phases(chart, x, y, phases)
        if limit:
            card = f"{limit[0]}: {format_bytes(limit[1], 1)}"
            draw_limit(chart, y, limit[1], x.start, x.end, limit[0])
            above = y.inside(limit[1]) - 9
            above = max(above, y.end + 8) if chart.is_narrow else above  # below the panel's name
            chart.words(x.end - 4, above, card, anchor="end", boxed=True)
        if marks_peak:
            chart.words(x(peak + 0.5), y(total) - 1, "▼", 11, anchor="middle", at="bottom")
        else:
            first, middle = x(phases[0][2]), (y.start + y.end) / 2
            grey = ("#999999", "///")
            chart.bar(first, x.end, middle, y.start - y.end, grey, shade=0.35)
            chart.words((first + x.end) / 2, middle, "?", 40, anchor="middle", boxed=True)
        if chart.is_narrow:  # above the axis too
            chart.words(10, y.end - 8, name, 13, at="bottom")
        else:
            chart.words(left, y.end - 12, name, 13)
        upper += 185
    has_rest = any(REST in heights for heights, _, _ in drawn.values())
    parts = [*reversed(PARTS), *[REST] * has_rest]
    entries = [(LOOKS[part], part.replace("_", " ")) for part in parts]
    if chart.is_narrow:
        chart.height = chart.legend(entries, 10, upper - 10, width - 16) - 10
    else:
        chart.legend(entries, 660, 80, 140, row=27)
    heading = title or "Memory over time"
    chart.alt = f"{heading}, stacked by part, event by event. {'; '.join(words)}."
    return chart


def steps_of(
    timeline: MemoryTimeline, step: int | None
) -> tuple[dict[str, list[int]], list[tuple[str, int, int]], int]:
    """Heights by part at the events of one step, its phases as (name, first, end), and where the highest moment is."""
    if not timeline.events:
        raise ValueError(f"this {timeline.source} timeline carries no events to draw")
    runs, phases, start, number = [], [], 0, 0
    for (number, phase), events in groupby(timeline.events, key=lambda e: (e.step, e.phase)):
        end = start + len(list(events))
        runs.append((phase, start, end, number))
        start = end
    if not (chosen := [run for run in runs if step in (None, run[3]) and run[0] != "init"]):
        steps = f"the {number} steps of this {timeline.source} timeline"
        raise ValueError(f"step={step} is not among {steps}")
    first, last = chosen[0][1], chosen[-1][2]
    levels = Events(timeline.events).levels(
        lambda event: event.part or ("temporary" if event.phase else REST)
    )
    heights = {part: height[first:last] for part, height in levels.parts.items()}
    neighbours = zip((("",), *chosen), chosen, (*chosen[1:], ("",)), strict=False)
    for before, (phase, start, end, number), after in neighbours:
        if phase == "forward" and before[::3] == ("backward", number) != after[::3]:
            # names that the loop drops after its last backward; a fused optimizer has no event of its own
            phase, start = "backward", first + phases.pop()[1]
        phases.append((phase, start - first, end - first))
    totals = Levels(heights).totals
    return heights, phases, totals.index(max(totals))


def corners(ys: Iterable[float], x: Scale) -> list[tuple[float, float]]:
    """A staircase of values, one an event, as the corners where it turns."""
    turns, number = [], 0
    for value, same in groupby(ys):
        end = number + len(list(same))
        turns += [(x(number), value), (x(end), value)]
        number = end
    return turns


def _draw_areas(chart: Chart, x: Scale, y: Scale, heights: Mapping[str, list[int]]) -> None:
    """Heights over the events as areas on top of one another, and a line along the top, so that a needle is seen."""
    floor = [0] * int(x.high)
    for part in (*PARTS, REST):
        if not (most := max(heights.get(part, (0,)))):
            continue
        ceiling = [low + high for low, high in zip(floor, heights[part], strict=True)]
        edges = (*corners(ceiling, x), *reversed(corners(floor, x)))
        tip = f"{part.replace('_', ' ')}: at most {format_bytes(most)}"
        data = {"part": part, "bytes": most}
        chart.area([thinned((a, y(b)) for a, b in edges)], LOOKS[part], tip=tip, data=data)
        floor = ceiling
    chart.line(thinned((a, y(b)) for a, b in corners(floor, x)), stroke_width=0.8)


def _draw_phases(chart: Chart, x: Scale, y: Scale, phases) -> None:
    """Where each phase ends, and its name below where there is room."""
    style = {"shade": GREY, "stroke_width": 0.7, "stroke_dasharray": "2 2"}
    for phase, start, end in phases:
        chart.line([(x(end), y.start), (x(end), y.end)], **style)
        middle = min((x(start) + x(end)) / 2, chart.width - 2 - text_width(phase, 11) / 2)
        ways = [(middle, y.start + 3, phase)], [(middle, y.start + 15, phase)], []
        chart.place(*ways, size=11, at="top", shade=GREY)
