"""What happens to memory, in order: blocks are allocated and freed, each for one part of a training step.

Formula, trace, measurement and recording all write down ``Events``. From them follow the bytes of each part at each
moment, the peak and the blocks that are allocated there. All of that is worked out here alone.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import attrgetter

from memkit.units import round_up

PARTS = ("weights", "gradients", "optimizer_states", "activations", "temporary")
"""What memory is for. Buffers count as weights, and so does a second set of the weights, such as EMA's; a cast made
by autocast, even of a weight, is temporary.

An activation is what the forward allocated and has not freed when the backward begins: tensors saved by autograd, the
loss, and whatever the program still holds. All else that is neither a weight, a gradient nor a state is temporary.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One allocation (``num_bytes`` > 0) or free (< 0) of a block, in program order.

    ``block`` names the block: a free carries the number of its allocation. ``num_bytes`` is what was asked
    for, before the allocator rounds. ``op`` is the operation that asked, ``where`` the model's own line or
    module. ``phase``, ``step`` and ``micro_batch`` are those of the instant that ends the phase.
    """

    block: int
    num_bytes: int
    part: str | None = None
    phase: str = ""
    op: str = ""
    where: str = ""
    is_scratch: bool = False  # allocated and freed inside one operation
    step: int = 1
    micro_batch: int = 1


def play(changes: Iterable[tuple[str, int]], now: dict[str, int]) -> dict[str, int]:
    """Apply changes, each a part and bytes, to ``now``. Returns the parts at the (first) highest moment.

    >>> now = dict.fromkeys(PARTS, 0)
    >>> play([("activations", 8), ("gradients", 3), ("activations", -8), ("gradients", 5)], now)["activations"]
    8
    >>> now["gradients"]
    8
    """
    peak, total = dict(now), sum(now.values())
    peak_total = total
    for part, num_bytes in changes:
        now[part] += num_bytes
        total += num_bytes
        if total > peak_total:
            peak, peak_total = dict(now), total
    return peak


@dataclass(frozen=True)
class Levels:
    """Bytes of each part after each event; ``parts[part][index]`` are those after event ``index``."""

    parts: dict[Hashable, list[int]]

    @cached_property
    def totals(self) -> list[int]:
        """Bytes of all parts after each event."""
        return [sum(column) for column in zip(*self.parts.values(), strict=True)]

    def at(self, index: int) -> dict[Hashable, int]:
        """Bytes by part after event ``index``; -1 is the moment before the first event, when there are none."""
        return {part: heights[index] if index >= 0 else 0 for part, heights in self.parts.items()}

    def peak(self, start: int = 0, end: int | None = None) -> int:
        """Which event of ``start`` to ``end`` brought most bytes, the first of equal ones.

        The moment before them counts too: where nothing rises above it the answer is ``start - 1``.
        """
        totals = self.totals
        stop = len(totals) if end is None else end
        return max(range(start - 1, stop), key=lambda index: totals[index] if index >= 0 else 0)


class Events(Sequence):
    """Allocations and frees in program order, and what follows from them: bytes at each moment, peak, blocks, phases.

    ``events`` is an iterable, or a function that makes one and is called when the first event is asked for.

    >>> events = Events([Event(1, 8, "weights"), Event(2, 4, "gradients"), Event(1, -8, "weights")])
    >>> events.levels().totals, events.peak(), [born.block for born in events.live_at(2)]
    ([8, 12, 4], 1, [2])
    """

    def __init__(self, events: Iterable[Event] | Callable[[], Iterable[Event]] = ()):
        self._source = events

    @cached_property
    def _made(self) -> tuple[Event, ...]:
        return tuple(self._source() if callable(self._source) else self._source)

    def __getitem__(self, index):
        return Events(self._made[index]) if isinstance(index, slice) else self._made[index]

    def __len__(self) -> int:
        return len(self._made)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._made)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._made == tuple(other)

    def __repr__(self) -> str:
        return "<events, when asked>" if callable(self._source) else repr(self._made)

    def levels(self, key: Callable[[Event], Hashable] | None = None, granularity: int = 1) -> Levels:
        """Bytes of each part, or under each ``key``, after each event, every block rounded up to ``granularity``.

        All of ``PARTS`` are there; ``None`` is there too where an event has no part.
        """
        key = key or attrgetter("part")
        now = dict.fromkeys((*PARTS, *map(key, self)), 0)
        parts = {part: [] for part in now}
        for event in self:
            size = event.num_bytes
            now[key(event)] += size if granularity == 1 else round_up(abs(size), granularity) * (1 if size > 0 else -1)
            for part, heights in parts.items():
                heights.append(now[part])
        return Levels(parts)

    def peak(self) -> int:
        """Which event brought the most bytes, the first of equal ones."""
        totals = list(accumulate(event.num_bytes for event in self))
        return totals.index(max(totals))

    def moment(self, index: int) -> str:
        """When an event was, in words: its phase and its step of so many; nothing where no phase is known.

        >>> Events([Event(1, 8, phase="init"), Event(2, 4, phase="forward"), Event(2, -4, phase="zero_grad")]).moment(1)
        'forward of step 1'
        >>> Events([Event(1, 8, phase="init"), Event(2, 4, phase="forward", step=2)]).moment(0)
        'init, before the first step'
        """
        event, num_steps = self[index], max(event.step for event in self)
        if event.phase in ("", "before"):
            return ""
        if event.phase == "init":
            return "init, before the first step"
        return f"{event.phase} of step {event.step}" + (f" of {num_steps}" if num_steps > 1 else "")

    def live_at(self, index: int) -> "Events":
        """The allocations of the blocks that are not yet freed after event ``index``."""
        live: dict[int, Event] = {}
        for event in self[: index + 1]:
            if event.num_bytes > 0:
                live[event.block] = event
            else:
                live.pop(event.block, None)
        return Events(live.values())

    def unfreed(self) -> set[int]:
        """Numbers of the blocks that are never freed."""
        born = {event.block for event in self if event.num_bytes > 0}
        return born - {event.block for event in self if event.num_bytes < 0}

    def by(self, key: Callable[[Event], Hashable]) -> dict[Hashable, "Events"]:
        """The events under each key, in order. Of allocations alone, that is what each line or part has allocated.

        >>> births = Events([Event(1, 8, "weights"), Event(2, 4, "gradients"), Event(3, 2, "weights")])
        >>> {part: own.num_bytes for part, own in births.by(lambda event: event.part).items()}
        {'weights': 10, 'gradients': 4}
        """
        groups: dict[Hashable, list[Event]] = {}
        for event in self:
            groups.setdefault(key(event), []).append(event)
        return {name: Events(own) for name, own in groups.items()}

    @property
    def num_bytes(self) -> int:
        """Bytes that are allocated after the last event."""
        return sum(event.num_bytes for event in self)
