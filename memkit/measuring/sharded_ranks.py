"""DDP, ZeRO's stages and FSDP2 on real ranks: what each keeps, what each sends, and that all train alike.

On this machine: ``run_on_ranks("memkit.measuring.sharded_ranks", 2)``. On a cluster, one process a GPU:

    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 \\
        -m memkit.measuring.sharded_ranks

Each rank trains on sequences of its own; one process that trains on all of them is the oracle.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from memkit.measuring.measure import measure_memory
from memkit.measuring.ranks import Collectives, report
from memkit.program.sharded import sharded_build
from memkit.program.transformer import training_build
from memkit.setup.layouts import Layout
from memkit.setup.models import TINY_LLAMA
from memkit.setup.training import TrainingSetup
from memkit.timeline import Event

SETUP = TrainingSetup(model=replace(TINY_LLAMA, num_layers=3), seq_len=64, device="cpu")
NUM_STEPS = 3
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


def peaks(events: Sequence[Event], copied: set[int]) -> dict[str, int]:
    """The highest bytes of each phase of the last step, without gloo's own copies of what it reduces.

    nccl makes none. Gloo frees them in a thread of its own, which the profiler does not see.
    """
    copies = {event.block for event in events if event.op == "aten.clone" and event.num_bytes in copied}
    now, highest = 0, Counter()
    for event in events:
        if event.block not in copies:
            now += event.num_bytes
        if event.step == events[-1].step:
            highest[event.phase] = max(highest[event.phase], now)
    return dict(highest)


def main() -> None:
    """Run every layout, or those named, on the ranks that ``torchrun`` started; rank 0 reports."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    setup, rows = replace(SETUP, device=device), {}
    whole = replace(setup, micro_batch_size=world * setup.micro_batch_size)
    oracle, _ = trained(training_build(whole, batches(setup, range(world))))
    for name in sys.argv[1:] or all_layouts(world):
        layout = all_layouts(world)[name]

        def build(layout: Layout = layout) -> Callable:
            return sharded_build(setup, layout, batches(setup, range(rank, rank + 1)))()

        timeline, (losses, collectives) = measure_memory(build, device=device), trained(build)
        rows[name] = {
            "peak_bytes": timeline.peak_bytes, "losses": losses,
            "peaks": peaks(timeline.events, collectives.sizes["reduce_scatter"]),
            "sent": {name: collectives.num_bytes[name] for name in SENT if collectives.counts[name]},
        }  # fmt: skip
    if rank == 0:
        report({"world": world, "oracle": oracle, "ways": rows})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
