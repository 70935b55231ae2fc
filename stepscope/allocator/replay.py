"""Births and frees of named blocks played through the allocator one after the other, and what was found.

Traces, estimates, the events of recordings and chapter 07's films are all played by a ``Player``. It remembers where
each block lies, sums the blocks by part, and keeps the two totals after every event. A ``Replay`` is a player of all
events of a trace.

``replay_trace`` goes from what a program asks to what a named card must hold. A trace knows the requests. The
allocator adds what no tensor shows: rounding, the unsplit rest of a block, the workspaces of cuBLAS, segments that
hold more than is used, and the request that finds no room.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from memkit.fit import ASSUMED_TORCH, workspace_bytes
from memkit.timeline import PARTS, Event, Instant, Levels, MemoryTimeline
from stepscope.allocator.caching import AllocatorConfig, CachingAllocator, Driver, OutOfMemory


@dataclass(frozen=True)
class Failure:
    """The allocation that failed: index of its event, its size, and what was said."""

    event: int
    requested_bytes: int
    where: str
    message: str


MATRIX_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_scaled_mm"})
"""Operations that call cuBLAS; the first one of a thread allocates its workspace."""


class Player:
    """Plays events on an allocator; after a ``failure`` it is not to be played on.

    ``live`` has the address and the birth of each block; ``parts`` the bytes of whole blocks by part, and ``levels``
    the same after each event; ``allocated`` and ``reserved`` are all bytes after each event; ``causes`` one event's
    index per entry of the allocator's ``trace``. ``workspace_bytes`` is what cuBLAS takes at the first matrix product
    of the forward and at the first of the backward, whose threads have a handle each.
    """

    def __init__(self, allocator: CachingAllocator, workspace_bytes: int = 0):
        self.allocator = allocator
        self.workspace_bytes = workspace_bytes
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
        number = len(self.allocated)
        try:
            if event.num_bytes > 0:
                self._allocate(event)
                self._take_workspace(event)
            elif event.block in self.live:
                address, born = self.live.pop(event.block)
                self.parts[born.part] -= self.allocator.blocks[address].size
                self.allocator.free(address)
        except OutOfMemory as error:
            where, asked = event.where or event.op, error.requested_bytes
            self.failure = Failure(number, asked, where, str(error))
        self.causes += [number] * (len(self.allocator.trace) - len(self.causes))
        self.allocated.append(self.allocator.allocated_bytes)
        self.reserved.append(self.allocator.reserved_bytes)
        for part, heights in self.levels.parts.items():
            heights.append(self.parts[part])

    def _allocate(self, event: Event) -> None:
        address = self.allocator.malloc(event.num_bytes)
        self.live[event.block] = address, event
        self.parts[event.part] += self.allocator.blocks[address].size

    def _take_workspace(self, event: Event) -> None:
        is_backward = event.phase == "backward"
        calls_cublas = self.workspace_bytes and not MATRIX_PRODUCTS.isdisjoint(event.op.split("."))
        if calls_cublas and is_backward not in self.threads:
            self.threads.add(is_backward)
            taken = {"num_bytes": self.workspace_bytes, "part": "temporary"}
            self._allocate(replace(event, block=("workspace", is_backward), **taken))


class Replay(Player):
    """What a trace's events did to an allocator, up to the first request that found no room.

    ``timeline`` has the trace's instants in bytes of whole blocks. Of a recording it is the recorded one, with the
    reserved bytes that the card had.
    """

    def __init__(self, trace: MemoryTimeline, allocator: CachingAllocator, workspace_bytes: int):
        super().__init__(allocator, workspace_bytes)
        for event in trace.events:
            self.play(event)
            if self.failure is not None:
                break
        self.timeline = MemoryTimeline(
            instants=tuple(_instants(trace, self)),
            source=trace.source,
            device="cuda",
            events=trace.events,
            reserved_peak_bytes=allocator.peak["reserved"],
            provenance=trace.provenance,
        )

    @property
    def peak_allocated_bytes(self) -> int:
        return self.allocator.peak["allocated"]

    @property
    def peak_reserved_bytes(self) -> int:
        return self.timeline.reserved_peak_bytes

    @property
    def peak_event(self) -> int:
        """Index of the event that brought ``allocated`` to its peak."""
        return max(range(len(self.allocated)), key=self.allocated.__getitem__)

    @property
    def fragmentation(self) -> float:
        """Share of the reserved bytes that no block uses, at the moment when the blocks use most."""
        reserved = self.reserved[self.peak_event] if self.reserved else 0
        return 1 - self.allocated[self.peak_event] / reserved if reserved else 0.0


def replay_trace(
    trace: MemoryTimeline,
    config: AllocatorConfig | None = None,
    *,
    capacity_bytes: int | None = None,
    outside_bytes: int = 0,
    compute_capability: tuple[int, int] | None = None,
    torch_version: str = ASSUMED_TORCH,
) -> Replay:
    """Bytes that the allocator would count and hold for the events of ``trace``, starting from an empty card.

    With a ``compute_capability`` the workspaces of cuBLAS are allocated where that card would: at the first
    matrix product of the forward and at the first of the backward, whose threads have a handle each. Their size
    hangs on ``torch_version`` too.

    Raises: ValueError: the trace carries no events.

    >>> from memkit import TrainingSetup, models, trace_memory, training_build
    >>> from stepscope import replay_trace
    >>> trace = trace_memory(training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=64)))
    >>> replay = replay_trace(trace, compute_capability=(9, 0))
    >>> replay.peak_allocated_bytes < replay.peak_reserved_bytes
    True
    """
    if not trace.events:
        raise ValueError(f"this {trace.source} timeline carries no events to replay")
    allocator = CachingAllocator(config, Driver(capacity_bytes, outside_bytes))
    workspace = workspace_bytes(compute_capability, torch_version) if compute_capability else 0
    return Replay(trace, allocator, workspace)


def _instants(trace: MemoryTimeline, player: Player) -> Iterator[Instant]:
    """The instants of the trace in bytes of whole blocks, up to a failure.

    A phase ends with its last event; what lies between two phases goes to the later one.
    """
    events, failure = trace.events, player.failure
    ends = {(e.phase, e.step, e.micro_batch): index for index, e in enumerate(events, start=1)}
    failed_at = len(events) if failure is None else failure.event
    start = 0
    for key, alike in groupby(
        trace.instants, key=lambda i: (i.name.removesuffix(" peak"), i.step, i.micro_batch)
    ):
        end = max(start, ends.get(key, start))
        if failed_at < end:
            break
        for i in alike:
            index = player.levels.peak(start, end) if i.is_peak else end - 1
            parts = player.levels.at(index)
            yield _instant(i.name, parts, step=i.step, micro_batch=i.micro_batch)
        start = end
    else:
        end = len(events)
    if failure is not None:
        yield _instant(f"out of memory in {events[end - 1].phase or 'the trace'}", player.parts)


def _instant(name: str, parts: dict[str | None, int], **when: int) -> Instant:
    """An instant of known parts; as soon as some bytes have no part, none of the parts is known for sure."""
    if parts.get(None):
        return Instant(name=name, total_bytes=sum(parts.values()), **when)
    return Instant(name=name, **{part: parts[part] for part in PARTS}, **when)
