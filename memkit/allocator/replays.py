"""The one way into the allocator, births and frees of named blocks played one after the other, and what was found.

Traces, estimates, films and recordings are all played by a ``Player``. It remembers where each block lies, sums
the blocks by part, and keeps the two totals after every event. A ``Replay`` is what it found.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace

from memkit.allocator.caching import CachingAllocator, OutOfMemory
from memkit.allocator.config import AllocatorConfig
from memkit.events import PARTS, Event, Levels
from memkit.timeline import MemoryTimeline
from memkit.units import aligned_table, format_bytes


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far the model's decisions were the recorded ones. ``mallocs`` are requests to the driver."""

    num_mallocs: int
    num_mallocs_predicted: int  # at the right moment and of the right size
    num_mallocs_extra: int  # by the model alone
    num_frees: int
    num_frees_predicted: int
    num_frees_extra: int
    num_allocations: int
    num_same_address: int
    first_other_address: int | None  # index of the event, None where all agree
    num_ambiguous_blocks: int  # blocks from before the recording whose size it does not tell
    recorded_reserved_peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The allocation that failed: index of its event, its size, and what was said."""

    event: int
    requested_bytes: int
    where: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a replay found. ``allocated`` and ``reserved`` are the bytes after each event that was played.

    ``causes`` has one index per entry of ``allocator.trace``: the event of ``timeline`` that made it happen
    (replayed traces only). Of a recording, ``device`` is the card, ``other_devices`` are those that the file has
    events of too, and ``lacks`` the actions that were not recorded; a free's missing half was put beside the other.
    """

    timeline: MemoryTimeline
    config: AllocatorConfig
    allocator: CachingAllocator
    allocated: tuple[int, ...]
    reserved: tuple[int, ...]
    failure: Failure | None = None
    agreement: Agreement | None = None
    causes: tuple[int, ...] = ()
    device: int | None = None
    other_devices: tuple[int, ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def peak_allocated_bytes(self) -> int:
        return self.allocator.peak["allocated"]

    @property
    def peak_reserved_bytes(self) -> int:
        return self.allocator.peak["reserved"]

    @property
    def peak_event(self) -> int:
        """Index of the event that brought ``allocated`` to its peak."""
        return max(range(len(self.allocated)), key=self.allocated.__getitem__)

    @property
    def fragmentation(self) -> float:
        """Share of the reserved bytes that no block uses, at the moment when the blocks use most."""
        if not self.reserved or not self.reserved[self.peak_event]:
            return 0.0
        return 1 - self.allocated[self.peak_event] / self.reserved[self.peak_event]

    def __str__(self) -> str:
        rows = [
            ["replay", f"of {len(self.allocated):,} events"],
            ["peak allocated", format_bytes(self.peak_allocated_bytes)],
            ["peak reserved", format_bytes(self.peak_reserved_bytes)],
            ["fragmentation at the peak", f"{self.fragmentation:.1%}"],
        ]
        if self.agreement is not None:
            a = self.agreement
            rows += [
                ["requests to the driver", f"{a.num_mallocs_predicted} of {a.num_mallocs}"],
                ["requests by the model alone", f"{a.num_mallocs_extra}"],
                ["returned to the driver", f"{a.num_frees_predicted} of {a.num_frees}"],
                ["same address", f"{a.num_same_address} of {a.num_allocations}"],
                ["recorded peak reserved", format_bytes(a.recorded_reserved_peak_bytes)],
            ]
        if self.other_devices:
            rows.insert(1, ["device", f"{self.device}; also recorded: {', '.join(map(str, self.other_devices))}"])
        if self.lacks:
            rows.append(["not recorded", ", ".join(self.lacks)])
        rows.append(["failed", "nothing" if self.failure is None else self.failure.message])
        return aligned_table(rows)


MATRIX_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_scaled_mm"})
"""Operations that call cuBLAS; the first one of a thread allocates its workspace."""


class Player:
    """Plays events on an allocator; after a ``failure`` it is not to be played on.

    ``live`` has the address and the birth of each block; ``parts`` the bytes of whole blocks by part, and ``levels``
    the same after each event (of what was born here); ``allocated`` and ``reserved`` are all bytes after each event;
    ``causes`` one event's index per entry of the allocator's ``trace``. ``workspace_bytes`` is what cuBLAS takes at
    the first matrix product of the forward and at the first of the backward, whose threads have a handle each.
    """

    def __init__(self, allocator: CachingAllocator, workspace_bytes: int = 0):
        self.allocator, self.workspace_bytes = allocator, workspace_bytes
        self.live: dict[Hashable, tuple[int, Event]] = {}
        self.parts: dict[str | None, int] = dict.fromkeys((*PARTS, None), 0)
        self.levels = Levels({part: [] for part in self.parts})
        self.threads: set[bool] = set()
        self.allocated: list[int] = []
        self.reserved: list[int] = []
        self.causes: list[int] = []
        self.failure: Failure | None = None

    def play(self, event: Event) -> None:
        """One birth or free. A free of a block that is not there changes nothing."""
        if event.num_bytes <= 0:
            self.let_go(event)
        else:
            try:
                self.hold(event)
                self._take_workspace(event)
            except OutOfMemory as error:
                self.fail(error.requested_bytes, event.where or event.op, str(error))
        self.note()

    def hold(self, event: Event, stream: int = 0) -> int:
        """A block is born; its address.

        Raises: OutOfMemory: there is no room for it.
        """
        address = self.allocator.malloc(event.num_bytes, stream)
        self.live[event.block] = address, event
        self.parts[self._part_of(event)] += self.allocator.blocks[address].size
        return address

    def let_go(self, event: Event) -> None:
        """Give a block back, if it is there."""
        if event.block in self.live:
            address, born = self.live.pop(event.block)
            self.parts[self._part_of(born)] -= self.allocator.blocks[address].size
            self.allocator.free(address)

    def fail(self, requested_bytes: int, where: str, message: str) -> None:
        """Nothing was found for a request."""
        event = len(self.allocated)
        self.failure = Failure(event=event, requested_bytes=requested_bytes, where=where, message=message)

    def note(self, num_events: int = 1) -> None:
        """Write down the totals after one event, or after several at once."""
        self.causes += [len(self.allocated)] * (len(self.allocator.trace) - len(self.causes))
        self.allocated += [self.allocator.allocated_bytes] * num_events
        self.reserved += [self.allocator.reserved_bytes] * num_events
        for part, heights in self.levels.parts.items():
            heights += [self.parts[part]] * num_events

    def replay(self, timeline: MemoryTimeline, **facts: object) -> Replay:
        """The ``Replay`` of what was played; ``facts`` are its other fields."""
        return Replay(
            timeline=timeline, config=self.allocator.config, allocator=self.allocator, failure=self.failure,
            allocated=tuple(self.allocated), reserved=tuple(self.reserved), **facts,
        )

    def _part_of(self, event: Event) -> str | None:
        return event.part if event.part in self.parts else None

    def _take_workspace(self, event: Event) -> None:
        is_backward = event.phase == "backward"
        calls_cublas = self.workspace_bytes and not MATRIX_PRODUCTS.isdisjoint(event.op.split("."))
        if calls_cublas and is_backward not in self.threads:
            self.threads.add(is_backward)
            block = "workspace", is_backward
            self.hold(replace(event, block=block, num_bytes=self.workspace_bytes, part="temporary"))
