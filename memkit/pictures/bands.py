"""Every allocation as a band over time: the stacked picture of PyTorch's memory visualiser, computed here.

A block is as high as its bytes and as long as its life. Blocks lie on those that were there before them; when
one is freed, all above it drop. So the upper edge is what the program asked for, and the long bands at the
bottom are what never goes away.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from memkit.timeline import Event


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

    def bottom_at(self, x: float) -> int | None:
        """Its lower edge in bytes at event ``x``; ``None`` while the block does not live."""
        if not self.start <= x < self.end:
            return None
        return self.ys[bisect_right(self.xs, x) - 1]


@dataclass(frozen=True, kw_only=True)
class Bands:
    """The bands of the largest blocks, and ``rest[i]``: the bytes of all smaller ones after event ``i``.

    ``rest_by_part`` splits those by what they are for.
    """

    bands: tuple[Band, ...]
    totals: tuple[int, ...]
    rest: tuple[int, ...]
    rest_by_part: Mapping[str | None, tuple[int, ...]] = field(default_factory=dict)

    def at(self, x: float, num_bytes: float) -> Band | None:
        """The band under a point: event ``x``, height ``num_bytes``."""
        for band in self.bands:
            bottom = band.bottom_at(x)
            if bottom is not None and bottom <= num_bytes < bottom + band.num_bytes:
                return band
        return None

    def near(self, x: float, num_bytes: float, reach: int) -> Band | None:
        """The band under a point, or the nearest to the left or right of it at that height, ``reach`` events away."""
        for distance in range(reach + 1):
            for side in (x - distance, x + distance):
                if (band := self.at(side, num_bytes)) is not None:
                    return band
        return None


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
    return Bands(
        bands=tuple(sorted(done + live, key=lambda band: band.start)), totals=tuple(totals), rest=tuple(rest),
        rest_by_part={part: tuple(heights) for part, heights in rest_by_part.items()},
    )  # fmt: skip


