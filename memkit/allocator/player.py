"""The one way into the allocator: births and frees of named blocks, played one after the other.

Traces, estimates, films and recordings are all played by a ``Player``. It remembers where each block lies, sums
the blocks by part, and keeps the two totals after every event.
"""

from collections.abc import Hashable
from dataclasses import replace

from memkit.allocator.caching import CachingAllocator, OutOfMemory
from memkit.allocator.replays import Failure, Replay
from memkit.events import PARTS, Event, Levels
from memkit.timeline import MemoryTimeline

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
        """A block is freed."""
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

    def replay(self, timeline: MemoryTimeline, **found: object) -> Replay:
        """What was played, with what else was found."""
        return Replay(
            timeline=timeline, config=self.allocator.config, allocator=self.allocator, failure=self.failure,
            allocated=tuple(self.allocated), reserved=tuple(self.reserved), **found,
        )  # fmt: skip

    def _part_of(self, event: Event) -> str | None:
        return event.part if event.part in self.parts else None

    def _take_workspace(self, event: Event) -> None:
        is_backward = event.phase == "backward"
        calls_cublas = self.workspace_bytes and not MATRIX_PRODUCTS.isdisjoint(event.op.split("."))
        if calls_cublas and is_backward not in self.threads:
            self.threads.add(is_backward)
            block = "workspace", is_backward
            self.hold(replace(event, block=block, num_bytes=self.workspace_bytes, part="temporary"))
