"""From what a program asks to what a named card must hold: chapter 07's replays, and those of the public runs.

A trace knows the requests. The allocator adds what no tensor shows: rounding, the unsplit rest of a block,
the workspaces of cuBLAS, segments that hold more than is used, and the request that finds no room.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from memkit.fit import NEWEST, workspace_bytes
from memkit.timeline import PARTS, Instant, MemoryTimeline
from stepscope.allocator.caching import CachingAllocator
from stepscope.allocator.config import AllocatorConfig
from stepscope.allocator.heap import Driver
from stepscope.allocator.replays import Player, Replay


def replay_trace(
    trace: MemoryTimeline,
    config: AllocatorConfig | None = None,
    *,
    capacity_bytes: int | None = None,
    outside_bytes: int = 0,
    compute_capability: tuple[int, int] | None = None,
    torch_version: str = NEWEST,
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
    player = Player(allocator, workspace)
    for event in trace.events:
        player.play(event)
        if player.failure is not None:
            break
    timeline = MemoryTimeline(
        instants=tuple(_instants(trace, player)),
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


def _instants(trace: MemoryTimeline, player: Player) -> Iterator[Instant]:
    """The instants of the trace in bytes of whole blocks, up to a failure.

    A phase ends with its last event; what lies between two phases goes to the later one.
    """
    ends = {(e.phase, e.step, e.micro_batch): position for position, e in enumerate(trace.events, start=1)}
    failed_at = len(trace.events) if player.failure is None else player.failure.event
    start = 0
    for key, like in groupby(trace.instants, key=lambda i: (i.name.removesuffix(" peak"), i.step, i.micro_batch)):
        end = max(start, ends.get(key, start))
        if failed_at < end:
            break
        for i in like:
            index = player.levels.peak(start, end) if i.name.endswith(" peak") else end - 1
            yield replace(_instant(i.name, player.levels.at(index)), step=i.step, micro_batch=i.micro_batch)
        start = end
    else:
        end = len(trace.events)
    if player.failure is not None:
        yield _instant(f"out of memory in {trace.events[end - 1].phase or 'the trace'}", player.parts)


def _instant(name: str, parts: dict[str | None, int]) -> Instant:
    """An instant of known parts; as soon as some bytes have no part, none of the parts is known for sure."""
    if parts.get(None):
        return Instant(name=name, total_bytes=sum(parts.values()))
    return Instant(name=name, **{part: parts[part] for part in PARTS})
