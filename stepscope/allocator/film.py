"""The allocator step by step, for the lab and the pictures of chapter 07: its state after each event of a trace.

An ``AllocatorState`` says in words what just happened and holds what a picture needs: segments, the blocks in them,
the holes between.

The lab plays four short stories. A story is a list of moves: a block's name, its bytes and its part where it is
allocated, and its name alone where it is freed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from memkit.timeline import Event
from memkit.units import KIB, MIB, format_bytes
from stepscope.allocator.caching import AllocatorConfig, Block, CachingAllocator, Driver
from stepscope.allocator.replay import Player


@dataclass(frozen=True)
class Piece:
    """A block as it lies in its segment: ``offset`` and ``size`` in bytes, ``rest_bytes`` handed out unasked."""

    offset: int
    size: int
    rest_bytes: int
    is_free: bool
    label: str
    part: str | None
    is_new: bool  # made by the last event


@dataclass(frozen=True)
class Row:
    """A segment, or a run of mapped pages, with its pieces from left to right."""

    size: int
    is_small: bool
    is_expandable: bool
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, kw_only=True)
class AllocatorState:
    """The allocator after ``index`` events."""

    index: int
    words: str
    rows: tuple[Row, ...]
    failure: str = ""  # what an out-of-memory error would say

    @property
    def reserved_bytes(self) -> int:
        return sum(row.size for row in self.rows)

    @property
    def holes(self) -> list[int]:
        """Sizes of what is free inside segments: cached, for whoever fits."""
        return [piece.size for row in self.rows for piece in row.pieces if piece.is_free]

    @property
    def hole_bytes(self) -> int:
        return sum(self.holes)

    @property
    def largest_hole_bytes(self) -> int:
        return max(self.holes, default=0)

    @property
    def allocated_bytes(self) -> int:
        return self.reserved_bytes - self.hole_bytes


class Film:
    """A short trace played through the allocator: a state after each event, up to the one that finds no room."""

    def __init__(
        self,
        events: Sequence[Event],
        config: AllocatorConfig | None = None,
        capacity_bytes: int | None = None,
    ):
        if not events:
            raise ValueError("a film needs at least one event")
        self.events, self.capacity_bytes = tuple(events), capacity_bytes
        self.allocator = CachingAllocator(config, Driver(capacity_bytes))
        self.player = Player(self.allocator)
        self.states: list[AllocatorState] = []
        self._add("an empty card")
        for event in self.events:
            start = len(self.allocator.trace)
            self.player.play(event)
            self._add(self._words(event, start), event)
            if self.player.failure:  # an allocator that has failed is not played on
                break

    def __len__(self) -> int:
        return len(self.events)

    def state(self, index: int) -> AllocatorState:
        """The state after the first ``index`` events; after a failure nothing more happens."""
        if not 0 <= index <= len(self.events):
            raise ValueError(f"index={index} is outside 0 to {len(self.events)}")
        return self.states[min(index, len(self.states) - 1)]

    def _add(self, words: str, new: Event | None = None) -> None:
        """The allocator as it is now, after the event ``new``."""
        born_at, failure = dict(self.player.live.values()), self.player.failure
        self.states.append(
            AllocatorState(
                index=len(self.states),
                words=words,
                rows=tuple(_row(run, born_at, new) for run in self.allocator.segments()),
                failure=failure.message if failure else "",
            )
        )

    def _words(self, event: Event, start: int) -> str:
        """What an event did, ``start`` being the length of the allocator's trace before it."""
        name, allocator = name_of(event), self.allocator
        if event.num_bytes <= 0:
            return f"free {name}, {format_bytes(-event.num_bytes)}"
        wants = f"{name} wants {format_bytes(event.num_bytes)}"
        if self.player.failure:
            return f"{wants}: out of memory, {format_bytes(allocator.driver.free_bytes)} left on the card"
        taken = [e for e in allocator.trace[start:] if e.action in _VERBS]
        asked = ", ".join(f"{_VERBS[e.action]} {format_bytes(e.size)}" for e in taken)
        block = allocator.blocks[self.player.live[event.block][0]]
        return f"{wants}, gets {format_bytes(block.size)}: {asked or 'from a cached block'}"


def _row(run: list[Block], born_at: dict[int, Event], new: Event | None) -> Row:
    head, pieces = run[0], []
    for block in run:
        born, rest_bytes, label, part = born_at.get(block.address), 0, "", None
        if born is not None:
            rest_bytes, label, part = block.size - block.requested_bytes, name_of(born), born.part
        is_new, offset = born is not None and born is new, block.address - head.address
        pieces.append(Piece(offset, block.size, rest_bytes, block.is_free, label, part, is_new))
    size = sum(block.size for block in run)
    return Row(size, head.pool.is_small, head.span is not None, tuple(pieces))


def name_of(event: Event) -> str:
    """The name of its block."""
    return event.where or event.op or f"block {event.block}"


_VERBS = {
    "segment_alloc": "cudaMalloc of",
    "segment_map": "maps",
    "segment_free": "cudaFree of",
    "segment_unmap": "unmaps",
}


Move = tuple[str, int] | tuple[str, int, str] | str


def events_of(moves: Iterable[Move]) -> list[Event]:
    """The moves as events; a block that is allocated without a part is an activation."""
    events: list[Event] = []
    births: dict[str, Event] = {}
    for number, move in enumerate(moves):
        if isinstance(move, str):
            born = births[move]
            events.append(replace(born, num_bytes=-born.num_bytes))
        else:
            name, num_bytes, part = (*move, "activations")[:3]
            births[name] = Event(number, num_bytes, part, where=name)
            events.append(births[name])
    return events


def rounding_story() -> list[Event]:
    """Sizes: 512 bytes, the two pools, a segment of 20 MiB for 3, and a rest too small to split off."""
    sizes = {"bias": 600 * KIB, "norm": 900 * KIB, "w1": 3 * MIB, "w2": 9 * MIB}
    weights = [(name, size, "weights") for name, size in sizes.items()]
    last = [("embedding", 19 * MIB, "weights"), ("x", 40 * MIB), "x", ("y", 39 * MIB + 512 * KIB)]
    return events_of([("loss", 4, "temporary"), *weights, *last])


def holes_story() -> list[Event]:
    """Every second block is freed: half the memory is free, and a request of three blocks finds no room."""
    layers = [f"layer {number}" for number in range(8)]
    requests = [("fits a hole", 6 * MIB, "temporary"), ("fits nowhere", 24 * MIB, "temporary")]
    return events_of([*((layer, 8 * MIB) for layer in layers), *layers[::2], *requests])


def growing_story() -> list[Event]:
    """Each batch has a longer sequence than the one before, so no cached block is ever large enough."""
    moves: list[Move] = [("weights", 24 * MIB, "weights")]
    for number, size in enumerate((20, 24, 28, 32, 36, 40), start=1):
        moves += [(f"batch {number}", size * MIB), f"batch {number}"]
    return events_of(moves)


def step_story() -> list[Event]:
    """Two steps of four layers: gradients are born while activations die, states appear at the first step."""
    sizes, layers = (12, 12, 12, 16), range(4)
    moves: list[Move] = [(f"w{i}", 4 * MIB, "weights") for i in layers]
    for step in range(2):
        moves += [(f"a{i}", sizes[i] * MIB) for i in layers]
        for i in reversed(layers):
            moves += [(f"da{i}", sizes[i] * MIB, "temporary"), (f"g{i}", 4 * MIB, "gradients")]
            moves += [f"a{i}", f"da{i}"]
        if step == 0:
            moves += [(f"m,v {i}", 8 * MIB, "optimizer_states") for i in layers]
        moves += [f"g{i}" for i in reversed(layers)]
    return events_of(moves)


STORIES: dict[str, Callable[[], list[Event]]] = {
    "rounding and pools": rounding_story,
    "holes": holes_story,
    "a growing sequence": growing_story,
    "a training step": step_story,
}
"""The stories by name, for the lab."""
