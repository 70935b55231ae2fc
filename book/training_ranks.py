"""Chapters 05 and 09 on real ranks: what each way to train keeps and sends, and that all train as one process does.

On this machine: ``run_on_ranks("book.training_ranks", 2, ["sharding"])``. On a cluster, one process a GPU:

    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 \\
        -m book.training_ranks accumulation

The first argument is a job, ``sharding`` (DDP, ZeRO's stages, FSDP2) or ``accumulation`` (what a window sends and
keeps); names after it choose some of its ways. Each rank trains on sequences of its own; the oracle is one process
that trains on all of them.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from tqdm import tqdm

from book.ranks import Collectives, join_group, report
from book.small_gpt import SMALL_GPT
from memkit.measuring.measure import measure_memory
from stepscope.program.sharded import sharded_build
from memkit.program.transformer import Transformer, training_build
from stepscope.setup.layouts import Layout
from memkit.setup.models import TINY_LLAMA
from memkit.setup.recipes import Precision
from memkit.setup.training import TrainingSetup
from memkit.timeline import Event, MemoryTimeline

SETUP = TrainingSetup(model=replace(TINY_LLAMA, num_layers=3), seq_len=64, device="cpu")
FP64 = Precision(name="fp64", weight_dtype="float64", gradient_dtype="float64", compute_dtype="float64")
WINDOW = TrainingSetup(
    model=SMALL_GPT, precision=FP64, seq_len=64, micro_batch_size=2, grad_accum_steps=4, device="cpu",
    attention="stored",  # the other kernels have no float64 on a card
)
NUM_STEPS = 3  # DDP settles its buckets in the second
MEASUREMENTS = 3  # gloo's threads may free a buffer late, or where the profiler cannot see it: that only adds bytes
SENT = ("allgather", "reduce_scatter", "allreduce", "broadcast")


@dataclass(frozen=True, kw_only=True)
class Way:
    """What a rank trains, how the run is spread, and when gradients are sent.

    ``syncs_each``: after each micro-batch, and not after the last alone. ``all_reduces_each``: HSDP's sum over its
    replicas too, and not the reduce-scatter inside each alone.
    """

    setup: TrainingSetup
    layout: Layout
    syncs_each: bool = True
    all_reduces_each: bool = True


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
    return {name: Way(setup=replace(SETUP, device=device), layout=layout) for name, layout in layouts.items()}


def windows(world: int, device: str = "cpu") -> dict[str, Way]:
    """Steps of two micro-batches, whose gradients are sent after each or after the last."""
    return {
        f"{name}, sent after {when}": replace(
            way, setup=replace(way.setup, grad_accum_steps=2), syncs_each=when == "each"
        )
        for name, way in steps(world, device).items() if name in ("DDP", "ZeRO-2", "ZeRO-3", "HSDP")
        for when in ("each", "the last")
    }


def accumulations(world: int, device: str = "cpu") -> dict[str, Way]:
    """Ways to accumulate four micro-batches of the small GPT, in float64, so that gradients can be compared."""
    spread = {name: replace(way, setup=replace(WINDOW, device=device)) for name, way in steps(world).items()}
    ways = {
        "DDP": spread["DDP"],
        "DDP, no_sync": replace(spread["DDP"], syncs_each=False),
        "DDP, no_sync, bucket view": replace(spread["DDP, bucket view"], syncs_each=False),
        "FSDP2": spread["ZeRO-3"],
        "FSDP2, no gradient sync": replace(spread["ZeRO-3"], syncs_each=False),
    }
    if "HSDP" in spread:
        ways["HSDP, no all-reduce"] = replace(spread["HSDP"], all_reduces_each=False)
    return ways


def batches(setup: TrainingSetup, ranks: range) -> Callable[[], tuple[Tensor, Tensor]]:
    """A source of the micro-batches of these ranks in turn: each step new ones, the same in every run.

    Those of a window are uneven, in another order on each rank, so that only a weighting by tokens is right; their
    mean is the setup's ``seq_len``.
    """
    generators = {rank: torch.Generator().manual_seed(rank) for rank in ranks}
    turns, size = ((number, rank) for number in count() for rank in ranks), setup.grad_accum_steps

    def next_batch() -> tuple[Tensor, Tensor]:
        number, rank = next(turns)
        seq_len = setup.seq_len * (2 * ((number + rank) % size) + 1) // size
        shape = (setup.micro_batch_size, seq_len + 1)
        tokens = torch.randint(setup.model.vocab_size, shape, generator=generators[rank]).to(setup.device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return next_batch


class Watched:
    """What hooks see of a model in training: a step's loss, its gradients, and the gradient bytes kept in its window.

    Each loss is weighted by its tokens on the way, relative to the mean micro-batch.
    """

    def __init__(self, setup: TrainingSetup, all_reduces_each: bool = True):
        self.setup, self.all_reduces_each = setup, all_reduces_each
        self.loss = torch.zeros((), device=setup.device, dtype=torch.float64)
        self.number, self.kept_bytes = 0, 0
        self.buckets: dict[int, int] = {}
        self.gradients: list[Tensor] = []

    def watch(self, model: nn.Module) -> nn.Module:
        """The model, with its hooks."""
        self.model = model
        model.register_forward_pre_hook(self.before_forward, prepend=True)  # before FSDP2 gathers the root's weights
        model.register_forward_hook(self.weigh)
        if isinstance(model, DistributedDataParallel):
            model.register_comm_hook(self.buckets, noting_buckets)
        return model

    def before_forward(self, *_) -> None:
        """Note what the micro-batches before this one left."""
        self.number = self.number % self.setup.grad_accum_steps + 1
        if self.number == 1:
            self.loss.zero_()
        else:
            self.kept_bytes = gradient_bytes(self.model)
        if not self.all_reduces_each:
            self.model.set_requires_all_reduce(self.number == self.setup.grad_accum_steps)

    def weigh(self, _, batch: tuple[Tensor, Tensor], loss: Tensor) -> Tensor:
        """The loss as it counts among those of all micro-batches and ranks."""
        loss = loss * (batch[1].numel() / (self.setup.micro_batch_size * self.setup.seq_len))
        self.loss += loss.detach() / self.setup.grad_accum_steps
        return loss

    def before_optimizer(self, *_) -> None:
        """Keep the gradients, which the step lets go of; add what DDP's buckets hold besides."""
        self.gradients = [parameter.grad for parameter in self.model.parameters()]
        own = {gradient.untyped_storage().data_ptr() for gradient in self.gradients if self.buckets}
        self.kept_bytes += sum(num_bytes for pointer, num_bytes in self.buckets.items() if pointer not in own)
        self.buckets.clear()


def noting_buckets(buckets: dict, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's own all-reduce of a bucket, its storage noted."""
    storage = bucket.buffer().untyped_storage()
    buckets[storage.data_ptr()] = storage.nbytes()
    return allreduce_hook(None, bucket)


def gradient_bytes(model: nn.Module) -> int:
    """Bytes of the gradients that a rank keeps between two micro-batches, those that FSDP2 keeps apart included."""
    grads = [parameter.grad for parameter in model.parameters()]
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", None)
        for group in state()._fsdp_param_groups if state else ():
            grads.append(group._partial_reduce_output)
            for parameter in group.fsdp_params:
                unsharded = getattr(parameter, "_unsharded_param", None)
                grads += [parameter.unsharded_accumulated_grad, getattr(unsharded, "grad", None)]
    local = [grad.to_local() if hasattr(grad, "to_local") else grad for grad in grads if grad is not None]
    storages = [grad.untyped_storage() for grad in local]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def trained(build: Callable, watched: Watched) -> tuple[list[float], Tensor, Collectives]:
    """The loss of all ranks in each of a few steps, and the last one's whole gradient in one row and collectives."""
    torch.manual_seed(0)  # the same weights everywhere
    step, losses = build(), []
    hook = register_optimizer_step_pre_hook(watched.before_optimizer)
    for _ in range(NUM_STEPS):
        with Collectives() as collectives:
            step()
        dist.all_reduce(watched.loss)
        losses.append(watched.loss.item() / dist.get_world_size())
    hook.remove()
    whole = [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in watched.gradients]
    return losses, torch.cat([gradient.flatten() for gradient in whole]), collectives


@cache
def oracle_of(setup: TrainingSetup) -> tuple[list[float], Tensor]:
    """Losses and gradient of one process that trains on the micro-batches of all ranks."""
    world = dist.get_world_size()
    whole = replace(setup, grad_accum_steps=world * setup.grad_accum_steps)
    watched = Watched(whole)
    build = training_build(whole, batches(setup, range(world)), lambda own: watched.watch(Transformer(own)))
    losses, gradient, _ = trained(build, watched)
    return losses, gradient


def row_of(way: Way) -> dict:
    """A way beside its oracle; what the last step sent, kept in its window and, of one micro-batch, held at most."""
    watched, (oracle, whole) = Watched(way.setup, way.all_reduces_each), oracle_of(way.setup)
    losses, gradient, collectives = trained(build_of(way, watched.watch), watched)
    sent = [name for name in SENT if collectives.counts[name]]
    row = {
        "losses": losses, "oracle": oracle, "difference": ((gradient - whole).abs().max() / whole.abs().max()).item(),
        "collectives": {name: collectives.counts[name] for name in sent},
        "sent": {name: collectives.num_bytes[name] for name in sent},
    }
    if way.setup.grad_accum_steps > 1:
        return row | {"kept_bytes": watched.kept_bytes}
    timelines = [measure_memory(build_of(way), device=way.setup.device) for _ in range(MEASUREMENTS)]
    return row | {"peak_bytes": min(step_peak(timeline, collectives) for timeline in timelines)}


def build_of(way: Way, watch: Callable | None = None) -> Callable:
    """The program of this rank, on its own sequences; made anew each time, so that all see the same."""
    mine = range(dist.get_rank(), dist.get_rank() + 1)
    return lambda: sharded_build(
        way.setup, way.layout, batches(way.setup, mine), syncs_each=way.syncs_each, watch=watch
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


JOBS = {"sharding": lambda *where: steps(*where) | windows(*where), "accumulation": accumulations}


def main() -> None:
    """Run a job's ways, or those named, on the ranks that ``torchrun`` started; rank 0 reports."""
    job, *names = sys.argv[1:] or ["sharding"]
    device, world = join_group(), dist.get_world_size()
    ways = JOBS[job](world, device)
    is_first, names = dist.get_rank() == 0, names or [*ways]
    rows = {name: row_of(ways[name]) for name in (tqdm(names, leave=False) if is_first else names)}
    if is_first:
        report({"world": world, "device": device, "ways": rows})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
