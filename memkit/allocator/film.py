"""The allocator step by step: its state after each event of a trace, and a few short stories worth watching.

A ``Film`` plays a trace through the allocator and stops where it is told. Each ``Still`` says in words what
just happened and holds what a picture needs: segments, the blocks in them, the holes between.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from memkit.allocator.caching import CachingAllocator, OutOfMemory
from memkit.allocator.config import AllocatorConfig
from memkit.allocator.heap import Block, Driver
from memkit.timeline import Event
from memkit.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A block as it lies in its segment: ``offset`` and ``size`` in bytes, ``rest_bytes`` handed out unasked."""

    offset: int
    size: int
    rest_bytes: int
    is_free: bool
    label: str
    part: str | None
    is_new: bool  # made by the last event


@dataclass(frozen=True, kw_only=True)
class Row:
    """A segment, or a run of mapped pages, with its pieces from left to right."""

    size: int
    is_small: bool
    is_expandable: bool
    stream: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, kw_only=True)
class Still:
    """The allocator after ``index`` events."""

    index: int
    words: str
    rows: tuple[Row, ...]
    allocated_bytes: int
    reserved_bytes: int
    largest_hole_bytes: int
    failure: str = ""  # what an out-of-memory error would say

    @property
    def hole_bytes(self) -> int:
        """Free bytes inside segments: cached, for whoever fits."""
        return self.reserved_bytes - self.allocated_bytes


class Film:
    """A trace and the allocator that plays it; going forward is cheap, going back starts again."""

    def __init__(
        self,
        events: Sequence[Event],
        config: AllocatorConfig | None = None,
        capacity_bytes: int | None = None,
    ):
        if not events:
            raise ValueError("a film needs at least one event")
        self.events, self.config, self.capacity_bytes = tuple(events), config, capacity_bytes
        self._rewind()

    def __len__(self) -> int:
        return len(self.events)

    def _rewind(self) -> None:
        self.allocator = CachingAllocator(self.config, Driver(self.capacity_bytes))
        self.position, self.words, self.failure = 0, "an empty card", ""
        self.address_of: dict[int, int] = {}
        self.event_at: dict[int, Event] = {}
        self.last_address: int | None = None

    def still(self, index: int) -> Still:
        """The state after the first ``index`` events; after a failure nothing more happens."""
        if not 0 <= index <= len(self.events):
            raise ValueError(f"index={index} is outside 0 to {len(self.events)}")
        if index < self.position:
            self._rewind()
        while self.position < index and not self.failure:
            self._play(self.events[self.position])
            self.position += 1
        holes = [block.size for block in self.allocator.blocks.values() if block.is_free and block.mapped]
        return Still(
            index=self.position,
            words=self.words,
            rows=tuple(self._row(run) for run in self.allocator.segments()),
            allocated_bytes=self.allocator.allocated_bytes,
            reserved_bytes=self.allocator.reserved_bytes,
            largest_hole_bytes=max(holes, default=0),
            failure=self.failure,
        )

    def _play(self, event: Event) -> None:
        allocator, start = self.allocator, len(self.allocator.trace)
        name = event.where or event.op or f"block {event.block}"
        self.last_address = None
        if event.num_bytes < 0:
            address = self.address_of.pop(event.block)
            allocator.free(address)
            del self.event_at[address]
            self.words = f"free {name}, {format_bytes(-event.num_bytes)}"
            return
        try:
            address = allocator.malloc(event.num_bytes)
        except OutOfMemory as error:
            free = format_bytes(allocator.driver.free_bytes)
            self.words = (
                f"{name} wants {format_bytes(event.num_bytes)}: out of memory, {free} left on the card"
            )
            self.failure = str(error)
            return
        self.address_of[event.block] = self.last_address = address
        self.event_at[address] = event
        asked = [
            f"{_VERBS[a]} {format_bytes(size)}" for a, _, size, _ in allocator.trace[start:] if a in _VERBS
        ]
        source = ", ".join(asked) if asked else "from a cached block"
        block = allocator.blocks[address]
        self.words = (
            f"{name} wants {format_bytes(event.num_bytes)}, gets {format_bytes(block.size)}: {source}"
        )

    def _row(self, run: list[Block]) -> Row:
        head = run[0]
        return Row(
            size=sum(block.size for block in run),
            is_small=head.pool.is_small,
            is_expandable=head.span is not None,
            stream=head.stream,
            pieces=tuple(self._piece(block, head.address) for block in run),
        )

    def _piece(self, block: Block, start: int) -> Piece:
        event = self.event_at.get(block.address) if block.allocated else None
        return Piece(
            offset=block.address - start,
            size=block.size,
            rest_bytes=block.size - block.requested_bytes if block.allocated else 0,
            is_free=block.is_free,
            label="" if event is None else event.where or event.op or str(event.block),
            part=None if event is None else event.part,
            is_new=block.address == self.last_address,
        )


_VERBS = {
    "segment_alloc": "cudaMalloc of",
    "segment_map": "maps",
    "segment_free": "cudaFree of",
    "segment_unmap": "unmaps",
}
