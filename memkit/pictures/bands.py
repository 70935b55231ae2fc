"""Every allocation as a band over time (chapter 07): the picture of PyTorch's memory visualiser, computed here.

A block is as high as its bytes and as long as its life. Blocks lie on those that were there before them; when
one is freed, all above it drop. So the upper edge is what the program asked for, and the long bands at the
bottom are what never goes away.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memkit.pictures.axes import Scale, byte_ticks, thinned
from memkit.pictures.colours import LOOKS
from memkit.pictures.over_time import UNKNOWN, corners, lay
from memkit.pictures.svg import FAINT, Chart
from memkit.timeline import Event, MemoryTimeline
from memkit.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Band:
    """One block: from event ``start`` to event ``end``, its lower edge at ``ys[i]`` bytes from event ``xs[i]`` on."""

    event: Event
    start: int
    end: int
    xs: Sequence[int]
    ys: Sequence[int]


def stack_bands(events: Sequence[Event], max_bands: int = 500) -> tuple[list[Band], list[int], list[int]]:
    """The ``max_bands`` largest blocks stacked in the order of birth, and after each event the bytes of all and of
    the smaller ones."""
    births = [event for event in events if event.num_bytes > 0]
    chosen = {event.block for event in sorted(births, key=lambda event: -event.num_bytes)[:max_bands]}
    live: list[Band] = []
    done: list[Band] = []
    totals, rest, total, height = [], [], 0, 0
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
        totals.append(total)
        rest.append(total - height)
    return sorted(done + live, key=lambda band: band.start), totals, rest


def allocations_figure(timeline: MemoryTimeline, title: str = "Every allocation of the step") -> Chart:
    """Blocks as bands over the events; the smaller ones as one pale area on top. A band tells bytes, part and line.

    Raises: ValueError: the timeline carries no events.
    """
    if not timeline.events:
        raise ValueError(f"this {timeline.source} timeline carries no events to draw")
    events, (bands, totals, rest) = timeline.events, stack_bands(timeline.events)
    chart, top = Chart(800, 430, title), max(*totals, 1)
    x = Scale(low=0, high=len(events), start=86, end=786)
    y = Scale(low=0, high=top * 1.04, start=356, end=40)
    y.ticks_beside(chart, byte_ticks(top), 86, 786)
    _mark_phases(chart, events, x, y)
    floor = [total - small for total, small in zip(totals, rest, strict=True)]
    tip = f"smaller blocks: at most {format_bytes(max(rest))}"
    lay(chart, x, y, floor, rest, LOOKS[UNKNOWN], shade=0.45, tip=tip)
    for band in bands:
        event, part = band.event, band.event.part or UNKNOWN
        end = band.end if band.end < len(events) else "the end"
        tip = f"{format_bytes(event.num_bytes)}, {part.replace('_', ' ')}, {event.where or event.op}"
        tells = {"tip": f"{tip}, event {band.start} to {end}", "data": {"bytes": event.num_bytes}}
        chart.area([outline_of(band, x, y)], LOOKS.get(event.part, LOOKS[UNKNOWN]), **tells)
    chart.line(thinned([(a, y(b)) for a, b in corners(totals, x)]), stroke_width=1)
    there = {band.event.part or UNKNOWN for band in bands}
    parts = [(look, part.replace("_", " ")) for part, look in LOOKS.items() if part in there]
    chart.legend([*parts, (LOOKS[UNKNOWN], "pale: smaller blocks")], 10, 408, 780, 11)
    peak = totals.index(top)
    where = events[peak]
    chart.alt = (
        f"{title}: {len(events)} events, {len(bands)} largest blocks as bands. The peak of {format_bytes(top)} "
        f"is at event {peak}, {where.where or where.op or 'line not recorded'}."
    )
    return chart


def outline_of(band: Band, x: Scale, y: Scale) -> list[tuple[float, float]]:
    """A band's outline: along the lower edge, and back along the upper one."""
    ends = [*band.xs[1:], band.end]
    lower = [(at, low) for start, end, low in zip(band.xs, ends, band.ys, strict=True) for at in (start, end)]
    upper = [(at, low + band.event.num_bytes) for at, low in reversed(lower)]
    return thinned([(x(a), y(b)) for a, b in lower]) + thinned([(x(a), y(b)) for a, b in upper])


def _mark_phases(chart: Chart, events: Sequence[Event], x: Scale, y: Scale) -> None:
    """A line where a phase begins, and its name where there is room."""
    starts = [i for i, e in enumerate(events) if i == 0 or e.phase != events[i - 1].phase]
    for start, end in zip(starts, [*starts[1:], len(events)], strict=True):
        if events[start].phase and (end - start) / len(events) > 0.035:
            chart.line([(x(start), y.start), (x(start), y.end)], shade=FAINT)
            middle, name = (x(start) + x(end)) / 2, events[start].phase
            chart.place([(middle, y.start + 4, name)], [(middle, y.start + 18, name)], [], size=11, at="top")
