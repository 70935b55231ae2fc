"""Every allocation as a band over time: the stacked picture of PyTorch's memory visualiser, computed here.

A block is as high as its bytes and as long as its life. Blocks lie on those that were there before them; when
one is freed, all above it drop. So the upper edge is what the program asked for, and the long bands at the
bottom are what never goes away.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from memkit.pictures.axes import Scale, byte_ticks, draw_limit, thinned
from memkit.pictures.colours import LOOKS
from memkit.pictures.over_time import corners, lay
from memkit.pictures.svg import FAINT, Chart
from memkit.timeline import Event, MemoryTimeline
from memkit.units import format_bytes

UNKNOWN = "not attributed"
NEEDLE = 4  # pixels below which a band gets a margin in which a click still means it


@dataclass(frozen=True, kw_only=True)
class Band:
    """One block: from event ``start`` to event ``end``, its lower edge at ``ys[i]`` bytes from event ``xs[i]`` on."""

    event: Event
    start: int
    end: int
    xs: Sequence[int]
    ys: Sequence[int]

    @property
    def num_bytes(self) -> int:
        return self.event.num_bytes


@dataclass(frozen=True, kw_only=True)
class Bands:
    """The bands of the largest blocks, and ``rest[i]``: the bytes of all smaller ones after event ``i``.

    ``rest_by_part`` splits those by what they are for.
    """

    bands: tuple[Band, ...]
    totals: tuple[int, ...]
    rest: tuple[int, ...]
    rest_by_part: Mapping[str | None, tuple[int, ...]] = field(default_factory=dict)


def stack_bands(events: Sequence[Event], max_bands: int = 500) -> Bands:
    """Stack ``max_bands`` blocks in the order of birth, and sum the others.

    Three of four are those of the largest area, bytes by life; the rest are the largest of those that live
    shortly, for they make the needles of the picture, and often its peak.
    """
    births = {event.block: event for event in events if event.num_bytes > 0}
    areas = dict.fromkeys(births, 0)
    for index, event in enumerate(events):
        if event.block in areas:
            areas[event.block] += event.num_bytes * (len(events) - index)
    chosen = set(sorted(areas, key=areas.get, reverse=True)[: max_bands - max_bands // 4])
    brief = [block for block in sorted(births, key=lambda b: -births[b].num_bytes) if block not in chosen]
    chosen |= set(brief[: max_bands - len(chosen)])
    live: list[Band] = []
    done: list[Band] = []
    totals, rest, total, height = [], [], 0, 0
    parts = {block: event.part for block, event in births.items()}
    rest_now = dict.fromkeys(parts.values(), 0)
    rest_by_part = {part: [] for part in rest_now}
    for index, event in enumerate(events):
        total += event.num_bytes
        if event.block in chosen and event.num_bytes > 0:
            live.append(Band(event=event, start=index, end=len(events), xs=[index], ys=[height]))
            height += event.num_bytes
        elif event.block in chosen:
            place = next((i for i, band in enumerate(live) if band.event.block == event.block), None)
            if place is not None:
                gone = live.pop(place)
                height -= gone.event.num_bytes
                done.append(replace(gone, end=index))
                for above in live[place:]:
                    above.xs.append(index)
                    above.ys.append(above.ys[-1] - gone.event.num_bytes)
        if event.block not in chosen:
            part = parts.get(event.block)
            rest_now[part] = rest_now.get(part, 0) + event.num_bytes
        for part, heights in rest_by_part.items():
            heights.append(rest_now[part])
        totals.append(total)
        rest.append(total - height)
    bands = tuple(sorted(done + live, key=lambda band: band.start))
    smaller = {part: tuple(heights) for part, heights in rest_by_part.items()}
    return Bands(bands=bands, totals=tuple(totals), rest=tuple(rest), rest_by_part=smaller)


def allocations_figure(
    timeline: MemoryTimeline,
    max_bands: int = 500,
    title: str = "Every allocation of the step",
    capacity: tuple[str, int] | None = None,
    stacked: Bands | None = None,
) -> Chart:
    """Blocks as bands over the events, stacked as PyTorch's visualiser stacks them; the smaller ones as one pale area.

    A band tells its bytes, part, line and life; its ``data-pick`` is its place in ``stacked.bands``, which
    ``stack_bands`` makes if it is not given. ``capacity`` is a card's name and bytes, as a line.

    Raises: ValueError: the timeline carries no events.
    """
    if not timeline.events:
        raise ValueError(f"this {timeline.source} timeline carries no events to draw")
    stacked = stacked or stack_bands(timeline.events, max_bands)
    events, top = timeline.events, max(max(stacked.totals), 1)
    chart = Chart(800, 430, title)
    x = Scale(low=0, high=len(events), start=86, end=786)
    y = Scale(low=0, high=top * 1.04, start=356, end=40)
    y.ticks_beside(chart, byte_ticks(top), 86, 786)
    _mark_phases(chart, events, x, y)
    _draw_bands(chart, stacked, x, y)
    chart.line(thinned([(a, y(b)) for a, b in corners(stacked.totals, x)]), stroke_width=1)
    if capacity:
        name, num_bytes = capacity
        draw_limit(chart, y, num_bytes, 86, 786, name)
        if num_bytes < y.high:
            words = f"{name}: {format_bytes(num_bytes, 1)}"
            chart.words(782, y(num_bytes) - 9, words, anchor="end", boxed=True)
    there = {band.event.part or UNKNOWN for band in stacked.bands}
    parts = [(look, part.replace("_", " ")) for part, look in LOOKS.items() if part in there]
    chart.legend([*parts, (LOOKS[UNKNOWN], "pale: smaller blocks")], 10, 408, 780, 11)
    peak = stacked.totals.index(top)
    where = events[peak]
    chart.alt = (
        f"{title}: {len(events)} events, {len(stacked.bands)} largest blocks as bands. The peak of {format_bytes(top)} "
        f"is at event {peak}, {where.where or where.op or 'line not recorded'}."
    )
    return chart


def _draw_bands(chart: Chart, stacked: Bands, x: Scale, y: Scale) -> None:
    """The smaller blocks as one pale area a part, then each large block as a band."""
    floor = [total - rest for total, rest in zip(stacked.totals, stacked.rest, strict=True)]
    for part, heights in stacked.rest_by_part.items():
        tip = f"smaller blocks, {part or UNKNOWN}: at most {format_bytes(max(heights))}".replace("_", " ")
        floor = lay(chart, x, y, floor, heights, LOOKS.get(part, LOOKS[UNKNOWN]), shade=0.45, tip=tip)
    for number, band in enumerate(stacked.bands):
        margin = {"stroke": "transparent", "stroke_width": 6} if x(band.end) - x(band.start) < NEEDLE else {}
        event, part = band.event, band.event.part or UNKNOWN
        end = band.end if band.end < len(stacked.totals) else "the end"
        tip = f"{format_bytes(band.num_bytes)}, {part.replace('_', ' ')}, {event.where or event.op}"
        tells = {"tip": f"{tip}, event {band.start} to {end}", "data": {"pick": number, "bytes": band.num_bytes}}
        chart.area([outline_of(band, x, y)], LOOKS.get(event.part, LOOKS[UNKNOWN]), **tells, **margin)


def outline_of(band: Band, x: Scale, y: Scale) -> list[tuple[float, float]]:
    """A band's outline: along the lower edge, and back along the upper one."""
    ends = [*band.xs[1:], band.end]
    lower = [(at, low) for start, end, low in zip(band.xs, ends, band.ys, strict=True) for at in (start, end)]
    upper = [(at, low + band.num_bytes) for at, low in reversed(lower)]
    return thinned([(x(a), y(b)) for a, b in lower]) + thinned([(x(a), y(b)) for a, b in upper])


def _mark_phases(chart: Chart, events: Sequence[Event], x: Scale, y: Scale) -> None:
    """A line where a phase begins, and its name where there is room."""
    starts = [i for i, e in enumerate(events) if i == 0 or e.phase != events[i - 1].phase]
    for start, end in zip(starts, [*starts[1:], len(events)], strict=True):
        if events[start].phase and (end - start) / len(events) > 0.035:
            chart.line([(x(start), y.start), (x(start), y.end)], shade=FAINT)
            middle, name = (x(start) + x(end)) / 2, events[start].phase
            chart.place([(middle, y.start + 4, name)], [(middle, y.start + 18, name)], [], size=11, at="top")
