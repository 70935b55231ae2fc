"""Play a traced training step through the allocator: from what the program asks to what a named card must
hold.

A trace knows the requests. The allocator adds what no tensor shows: rounding, the unsplit rest of a block,
the workspaces of cuBLAS, segments that hold more than is used, and the request that finds no room.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from memkit.allocator.caching import CachingAllocator, OutOfMemory
from memkit.allocator.config import AllocatorConfig
from memkit.allocator.heap import Driver
from memkit.allocator.replays import Failure, Replay
from memkit.allocator.workspaces import workspace_bytes
from memkit.timeline import PARTS, Event, Instant, MemoryTimeline

MATRIX_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_scaled_mm"})
"""Operations that call cuBLAS; the first one of a thread allocates its workspace."""


def replay_trace(
    trace: MemoryTimeline,
    config: AllocatorConfig | None = None,
    *,
    capacity_bytes: int | None = None,
    outside_bytes: int = 0,
    compute_capability: tuple[int, int] | None = None,
) -> Replay:
    """Bytes that the allocator would count and hold for the events of ``trace``, starting from an empty card.

    With a ``compute_capability`` the workspaces of cuBLAS are allocated where that card would: at the first
    matrix product of the forward and at the first of the backward, whose threads have a handle each.

    Raises: ValueError: the trace carries no events.

    >>> from memkit import TrainingSetup, models, replay_trace, trace_memory, training_build
    >>> trace = trace_memory(training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=64)))
    >>> replay = replay_trace(trace, compute_capability=(9, 0))
    >>> replay.peak_allocated_bytes < replay.peak_reserved_bytes
    True
    """
    if not trace.events:
        raise ValueError(f"this {trace.source} timeline carries no events to replay")
    allocator = CachingAllocator(config, Driver(capacity_bytes, outside_bytes))
    player = _TracePlayer(allocator, workspace_bytes(compute_capability) if compute_capability else 0)
    instants: list[Instant] = []
    for like, events in _by_phase(trace):
        player.play(events)
        if player.failure is not None:
            instants.append(player.now(f"out of memory in {events[-1].phase or 'the trace'}"))
            break
        instants += player.instants(like)
    timeline = MemoryTimeline(
        instants=tuple(instants),
        source=trace.source,
        device="cuda",
        events=trace.events,
        reserved_peak_bytes=allocator.peak["reserved"],
        provenance=trace.provenance,
    )
    return Replay(
        timeline=timeline,
        config=allocator.config,
        allocator=allocator,
        allocated=tuple(player.allocated),
        reserved=tuple(player.reserved),
        failure=player.failure,
        causes=tuple(player.causes),
    )


def _by_phase(trace: MemoryTimeline) -> list[tuple[list[Instant], Sequence[Event]]]:
    """The instants that end each phase, with the events since the phase before.

    A phase ends with its last event; what lies between two phases goes to the later one.
    """
    ends = {(e.phase, e.step, e.micro_batch): position for position, e in enumerate(trace.events, start=1)}
    played, out = 0, []
    for key, instants in groupby(trace.instants, key=lambda i: (i.name.removesuffix(" peak"), i.step, i.micro_batch)):
        end = max(played, ends.get(key, played))
        out.append((list(instants), trace.events[played:end]))
        played = end
    return [*out, ([], trace.events[played:])] if played < len(trace.events) else out


class _TracePlayer:
    """Plays events and keeps the sum of the blocks by part, now and at the phase's peak."""

    def __init__(self, allocator: CachingAllocator, workspace: int):
        self.allocator, self.workspace = allocator, workspace
        self.live: dict[int, tuple[int, str | None]] = {}  # block number: address, part
        self.parts: dict[str | None, int] = dict.fromkeys(PARTS, 0)
        self.peak_parts = dict(self.parts)
        self.threads: set[bool] = set()
        self.allocated: list[int] = []
        self.reserved: list[int] = []
        self.causes: list[int] = []
        self.failure: Failure | None = None

    def play(self, events: Sequence[Event]) -> None:
        self.peak_parts = dict(self.parts)
        peak = self.allocator.allocated_bytes
        for event in events:
            try:
                self._play_one(event)
            except OutOfMemory as error:
                where = event.where or event.op
                self.failure = Failure(
                    event=len(self.allocated),
                    requested_bytes=error.requested_bytes,
                    where=where,
                    message=str(error),
                )
            self.causes += [len(self.allocated)] * (len(self.allocator.trace) - len(self.causes))
            self.allocated.append(self.allocator.allocated_bytes)
            self.reserved.append(self.allocator.reserved_bytes)
            if self.allocated[-1] > peak:
                peak, self.peak_parts = self.allocated[-1], dict(self.parts)
            if self.failure is not None:
                return

    def _play_one(self, event: Event) -> None:
        if event.num_bytes > 0:
            self._hold(event.block, event.num_bytes, event.part)
            is_backward = event.phase == "backward"
            calls_cublas = bool(MATRIX_PRODUCTS & set(event.op.split(".")))
            if self.workspace and calls_cublas and is_backward not in self.threads:
                self.threads.add(is_backward)
                self._hold(("workspace", is_backward), self.workspace, "temporary")
        elif event.block in self.live:
            address, part = self.live.pop(event.block)
            self.parts[part] -= self.allocator.blocks[address].size
            self.allocator.free(address)

    def _hold(self, number, num_bytes: int, part: str | None) -> None:
        address = self.allocator.malloc(num_bytes)
        self.live[number] = (address, part)
        self.parts[part] = self.parts.get(part, 0) + self.allocator.blocks[address].size

    def now(self, name: str) -> Instant:
        return _instant(name, self.parts)

    def instants(self, like: list[Instant]) -> list[Instant]:
        """The phase's instants, named, numbered and ordered as in the trace."""
        return [
            replace(
                _instant(i.name, self.peak_parts if i.name.endswith(" peak") else self.parts),
                step=i.step,
                micro_batch=i.micro_batch,
            )
            for i in like
        ]


def _instant(name: str, parts: dict[str | None, int]) -> Instant:
    """An instant of known parts; as soon as some bytes have no part, none of the parts is known for sure."""
    if parts.get(None):
        return Instant(name=name, total_bytes=sum(parts.values()))
    return Instant(name=name, **{part: parts[part] for part in PARTS})
