"""Lesson 11 on real ranks: what DDP, ZeRO's stages and FSDP2 keep and send, and that all train as one process does.

On this machine: ``run_on_ranks("book.training_ranks", 2)``. On a cluster, one process a GPU:

    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 \\
        -m book.training_ranks

The arguments choose some of its ways. ``accumulation_ranks`` has the sequences of each rank and the oracle.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from book.accumulation_ranks import Watched, beside_one_process, own_batches, run_ways
from book.ranks import Collectives
from memkit.measure import measure_memory
from memkit.models import TINY_LLAMA
from memkit.setup import TrainingSetup
from memkit.timeline import Event, MemoryTimeline
from stepscope.program.sharded import sharded_build
from stepscope.setup import Layout

SETUP = TrainingSetup(model=replace(TINY_LLAMA, num_layers=3), seq_len=64, device="cpu")
MEASUREMENTS = 3  # gloo's threads may free a buffer late, or where the profiler cannot see it: that only adds bytes


@dataclass(frozen=True, kw_only=True)
class Way:
    """What a rank trains, how the run is spread, and when gradients are sent.

    ``syncs_each``: after each micro-batch, and not after the last alone.
    """

    setup: TrainingSetup
    layout: Layout
    syncs_each: bool = True


def steps(world: int, device: str = "cpu") -> dict[str, Way]:
    """Steps of one micro-batch, spread over so many ranks; HSDP takes an even number of four or more."""
    layouts = {
        "DDP": Layout(stage=0, dp_size=world),
        "DDP, bucket view": Layout(stage=0, dp_size=world, gradient_as_bucket_view=True),
        "ZeRO-1": Layout(stage=1, dp_size=world),
        "ZeRO-2": Layout(stage=2, dp_size=world),
        "ZeRO-3": Layout(stage=3, dp_size=world),
    }
    if world > 2 and world % 2 == 0:
        layouts["HSDP"] = Layout(stage=3, dp_size=world // 2, num_replicas=2)
    return {
        name: Way(setup=replace(SETUP, device=device), layout=layout)
        for name, layout in layouts.items()
    }


def windows(world: int, device: str = "cpu") -> dict[str, Way]:
    """Steps of two micro-batches, whose gradients are sent after each or after the last."""
    return {
        f"{name}, sent after {when}": replace(
            way, setup=replace(way.setup, grad_accum_steps=2), syncs_each=when == "each"
        )
        for name, way in steps(world, device).items()
        if name in ("DDP", "ZeRO-2", "ZeRO-3", "HSDP")
        for when in ("each", "the last")
    }


def row_of(way: Way) -> dict:
    """A way beside one process; what the last step sent, kept in its window and, of one micro-batch, held at most."""
    watched = Watched(way.setup)
    row, collectives = beside_one_process(build_of(way, watched.watch), watched)
    if way.setup.grad_accum_steps > 1:
        return row | {"kept_bytes": watched.kept_bytes}
    timelines = [
        measure_memory(build_of(way), device=way.setup.device) for _ in range(MEASUREMENTS)
    ]
    return row | {"peak_bytes": min(step_peak(timeline, collectives) for timeline in timelines)}


def build_of(way: Way, watch: Callable | None = None) -> Callable:
    """The program of this rank, on its own sequences; made anew each time, so that all see the same."""
    return lambda: sharded_build(
        way.setup, way.layout, own_batches(way.setup), syncs_each=way.syncs_each, watch=watch
    )()


def step_peak(timeline: MemoryTimeline, collectives: Collectives) -> int:
    """The highest bytes of the last step, without what gloo makes for itself; nccl makes nothing."""
    if timeline.device == "cuda":
        return timeline.for_step(timeline.events[-1].step).peak_bytes
    copies, now, highest = gloos_own(timeline.events, collectives), 0, 0
    for event in timeline.events:
        if event.block not in copies:
            now += event.num_bytes
        if event.step == timeline.events[-1].step:
            highest = max(highest, now)
    return highest


def gloos_own(events: Sequence[Event], collectives: Collectives) -> set[int]:
    """The blocks that gloo made: a clone of what it reduces, flat tensors in which it gathers.

    It frees a clone in a thread of its own, which the profiler may not see. A flat tensor is born after the buffer of
    that size which it fills, and dies before it; a buffer of the program dies before the next one does.
    """
    copies, empty = set(), defaultdict(list)
    for event in events:
        if event.op == "aten.clone" and event.num_bytes in collectives.sizes["reduce_scatter"]:
            copies.add(event.block)
        elif event.op == "aten.empty" and abs(event.num_bytes) in collectives.sizes["allgather"]:
            buffers = empty[abs(event.num_bytes)]
            if event.num_bytes > 0:
                buffers.append(event.block)
            else:
                if buffers[-1] == event.block and len(buffers) > 1:
                    copies.add(event.block)
                buffers.remove(event.block)
    return copies


if __name__ == "__main__":
    run_ways(lambda world, device: steps(world, device) | windows(world, device), row_of)
