"""DDP, ZeRO's stages and FSDP2 on real ranks: what each keeps, what each sends, and that all train alike.

On this machine: ``run_on_ranks("memkit.measuring.sharded_ranks", 2)``. On a cluster, one process a GPU:

    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 \\
        -m memkit.measuring.sharded_ranks

Each rank trains on sequences of its own; one process that trains on all of them is the oracle.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from memkit.measuring.measure import measure_memory
from memkit.measuring.ranks import Collectives, join_group, report
from memkit.program.sharded import sharded_build
from memkit.program.transformer import training_build
from memkit.setup.layouts import Layout
from memkit.setup.models import TINY_LLAMA
from memkit.setup.training import TrainingSetup
from memkit.timeline import Event, MemoryTimeline

SETUP = TrainingSetup(model=replace(TINY_LLAMA, num_layers=3), seq_len=64, device="cpu")
NUM_STEPS, MICRO_BATCHES = 3, 2
MEASUREMENTS = 3  # gloo's threads may free a buffer late, or where the profiler cannot see it: that only adds bytes
SENT = ("allgather", "reduce_scatter", "allreduce", "broadcast")


def all_layouts(world: int) -> dict[str, Layout]:
    """The ways to spread a run over so many ranks; HSDP takes an even number of four or more."""
    ways = {
        "DDP": Layout(stage=0, dp_size=world),
        "DDP, bucket view": Layout(stage=0, dp_size=world, gradient_as_bucket_view=True),
        "ZeRO-1": Layout(stage=1, dp_size=world),
        "ZeRO-2": Layout(stage=2, dp_size=world),
        "ZeRO-3": Layout(stage=3, dp_size=world),
    }
    if world > 2 and world % 2 == 0:
        ways["HSDP"] = Layout(stage=3, dp_size=world // 2, num_replicas=2)
    return ways


def windows(world: int) -> dict[str, tuple[Layout, bool]]:
    """Windows of several micro-batches: the layout, and whether gradients are sent after each or after the last."""
    return {
        f"{name}, sent after {when}": (layout, when == "each")
        for name, layout in all_layouts(world).items() if name in ("DDP", "ZeRO-2", "ZeRO-3", "HSDP")
        for when in ("each", "the last")
    }  # fmt: skip


def batches(setup: TrainingSetup, ranks: range) -> Callable[[], tuple[Tensor, Tensor]]:
    """A source of the sequences of these ranks: each step new ones, the same in every run."""
    generators = [torch.Generator().manual_seed(rank) for rank in ranks]
    shape = (setup.micro_batch_size, setup.seq_len + 1)

    def next_batch():
        rows = [torch.randint(setup.model.vocab_size, shape, generator=generator) for generator in generators]
        tokens = torch.cat(rows).to(setup.device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return next_batch


def trained(build: Callable) -> tuple[list[float], Collectives]:
    """The mean loss of all ranks in each of a few steps, and the collectives of the last.

    DDP settles its buckets in the second step, so the last is the third.
    """
    torch.manual_seed(0)  # the same weights everywhere
    step, losses = build(), []
    for _ in range(NUM_STEPS):
        with Collectives() as collectives:
            loss = step()
        loss = loss.to(torch.float64)
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
    return losses, collectives


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


def of_a_step(setup: TrainingSetup, layout: Layout) -> dict:
    """Peak of the last step, the lowest of a few measurements, with losses and collectives of a layout on this rank."""
    build = build_of(setup, layout)
    timelines = [measure_memory(build, device=setup.device) for _ in range(MEASUREMENTS)]
    losses, collectives = trained(build)
    peak = min(step_peak(timeline, collectives) for timeline in timelines)
    return {"peak_bytes": peak, "losses": losses, "sent": sent(collectives)}


def of_a_window(setup: TrainingSetup, layout: Layout, syncs_each: bool) -> dict:
    """Losses and collectives of a step of several micro-batches."""
    losses, collectives = trained(build_of(window_of(setup), layout, syncs_each))
    return {"losses": losses, "sent": sent(collectives)}


def window_of(setup: TrainingSetup) -> TrainingSetup:
    """A step of several micro-batches."""
    return replace(setup, grad_accum_steps=MICRO_BATCHES)


def build_of(setup: TrainingSetup, layout: Layout, syncs_each: bool = True) -> Callable:
    """The program of this rank, on its own sequences; made anew each time, so that all see the same."""
    mine = range(dist.get_rank(), dist.get_rank() + 1)
    return lambda: sharded_build(setup, layout, batches(setup, mine), syncs_each=syncs_each)()


def sent(collectives: Collectives) -> dict[str, int]:
    """Bytes by kind."""
    return {name: collectives.num_bytes[name] for name in SENT if collectives.counts[name]}


def main() -> None:
    """Run every layout, or those named, on the ranks that ``torchrun`` started; rank 0 reports."""
    setup, world = replace(SETUP, device=join_group()), dist.get_world_size()
    result = {"world": world, "device": setup.device, "ways": {}, "windows": {}}
    for name in sys.argv[1:] or [*all_layouts(world), *windows(world)]:
        if name in windows(world):
            result["windows"][name] = of_a_window(setup, *windows(world)[name])
        else:
            result["ways"][name] = of_a_step(setup, all_layouts(world)[name])
    for kind, one in (("oracle", setup), ("window_oracle", window_of(setup))):
        if result["ways" if kind == "oracle" else "windows"]:
            whole = replace(one, micro_batch_size=world * one.micro_batch_size)
            result[kind], _ = trained(training_build(whole, batches(one, range(world))))
    if dist.get_rank() == 0:
        report(result)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
