"""Chapter 05 on real ranks: what each way to accumulate sends and keeps, and that all train as one process does.

On this machine: ``run_on_ranks("book.accumulation_ranks", 2)``. On a cluster, one process a GPU:

    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 \\
        -m book.accumulation_ranks

The arguments choose some of its ways. Each rank trains on sequences of its own; the oracle is one process that trains
on all of them.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from tqdm import tqdm

from book.ranks import Collectives, join_group, report
from book.small_gpt import SMALL_GPT
from memkit.program.transformer import Transformer, training_build
from memkit.recipes import Precision
from memkit.setup import TrainingSetup

FP64 = Precision(
    name="fp64", weight_dtype="float64", gradient_dtype="float64", compute_dtype="float64"
)
WINDOW = TrainingSetup(
    model=SMALL_GPT,
    precision=FP64,
    seq_len=64,
    micro_batch_size=2,
    grad_accum_steps=4,
    device="cpu",
    attention="stored",  # the other kernels have no float64 on a card
)
NUM_STEPS = 3  # DDP settles its buckets in the second
SENT = ("allgather", "reduce_scatter", "allreduce", "broadcast")


@dataclass(frozen=True, kw_only=True)
class Way:
    """``wrap`` makes the model a rank's; ``sends``, if given, is told before each forward whether it is the window's
    last, and says so to the library."""

    setup: TrainingSetup
    wrap: Callable[[nn.Module], nn.Module]
    sends: Callable[[nn.Module, bool], None] | None = None


def fsdp2(model: nn.Module, device: str, num_replicas: int = 1) -> nn.Module:
    """Each block a group of shards, then the rest; with replicas it is HSDP."""
    shape, names = (dist.get_world_size(),), ("shard",)
    if num_replicas > 1:
        shape, names = (num_replicas, dist.get_world_size() // num_replicas), ("replicate", "shard")
    mesh = init_device_mesh(device, shape, mesh_dim_names=names)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def no_sync(model: DistributedDataParallel, is_last: bool) -> None:
    """What ``with model.no_sync()`` sets."""
    model.require_backward_grad_sync = is_last


def no_gradient_sync(model: nn.Module, is_last: bool) -> None:
    """Whole gradients are kept until the last."""
    model.set_requires_gradient_sync(is_last)


def no_all_reduce(model: nn.Module, is_last: bool) -> None:
    """The reduce-scatter inside each replica is done each time, the sum over replicas at the last."""
    model.set_requires_all_reduce(is_last)


def accumulations(world: int, device: str = "cpu") -> dict[str, Way]:
    """Ways to accumulate four micro-batches of the small GPT, in float64, so that gradients can be compared."""
    way = partial(Way, setup=replace(WINDOW, device=device))
    view = partial(DistributedDataParallel, gradient_as_bucket_view=True)
    sharded = partial(fsdp2, device=device)
    ways = {
        "DDP": way(wrap=DistributedDataParallel),
        "DDP, no_sync": way(wrap=DistributedDataParallel, sends=no_sync),
        "DDP, no_sync, bucket view": way(wrap=view, sends=no_sync),
        "FSDP2": way(wrap=sharded),
        "FSDP2, no gradient sync": way(wrap=sharded, sends=no_gradient_sync),
    }
    if world > 2 and world % 2 == 0:
        ways["HSDP, no all-reduce"] = way(
            wrap=partial(sharded, num_replicas=2), sends=no_all_reduce
        )
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
        tokens = torch.randint(setup.model.vocab_size, shape, generator=generators[rank]).to(
            setup.device
        )
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return next_batch


def own_batches(setup: TrainingSetup) -> Callable[[], tuple[Tensor, Tensor]]:
    """Those of this rank."""
    return batches(setup, range(dist.get_rank(), dist.get_rank() + 1))


class Watched:
    """What hooks see of a model in training: a step's loss, its gradients, and the gradient bytes kept in its window.

    Each loss is weighted by its tokens on the way, relative to the mean micro-batch.
    """

    def __init__(
        self, setup: TrainingSetup, sends: Callable[[nn.Module, bool], None] | None = None
    ):
        self.setup, self.sends = setup, sends
        self.loss = torch.zeros((), device=setup.device, dtype=torch.float64)
        self.number, self.kept_bytes = 0, 0
        self.buckets: dict[int, int] = {}
        self.gradients: list[Tensor] = []

    def watch(self, model: nn.Module) -> nn.Module:
        """The model, with its hooks."""
        self.model = model
        # it runs before FSDP2 gathers the root's weights
        model.register_forward_pre_hook(self.before_forward, prepend=True)
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
        if self.sends is not None:
            self.sends(self.model, self.number == self.setup.grad_accum_steps)

    def weigh(self, _, batch: tuple[Tensor, Tensor], loss: Tensor) -> Tensor:
        """The loss as it counts among those of all micro-batches and ranks."""
        loss = loss * (batch[1].numel() / (self.setup.micro_batch_size * self.setup.seq_len))
        self.loss += loss.detach() / self.setup.grad_accum_steps
        return loss

    def before_optimizer(self, *_) -> None:
        """Keep the gradients, which the step lets go of; add what DDP's buckets hold besides."""
        self.gradients = [parameter.grad for parameter in self.model.parameters()]
        own = {gradient.untyped_storage().data_ptr() for gradient in self.gradients if self.buckets}
        self.kept_bytes += sum(
            num_bytes for pointer, num_bytes in self.buckets.items() if pointer not in own
        )
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
    local = [
        grad.to_local() if hasattr(grad, "to_local") else grad for grad in grads if grad is not None
    ]
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
    whole = [
        grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in watched.gradients
    ]
    return losses, torch.cat([gradient.flatten() for gradient in whole]), collectives


@cache
def oracle_of(setup: TrainingSetup) -> tuple[list[float], Tensor]:
    """Losses and gradient of one process that trains on the micro-batches of all ranks."""
    world = dist.get_world_size()
    whole = replace(setup, grad_accum_steps=world * setup.grad_accum_steps)
    watched = Watched(whole)
    build = training_build(
        whole, batches(setup, range(world)), lambda own: watched.watch(Transformer(own))
    )
    losses, gradient, _ = trained(build, watched)
    return losses, gradient


def beside_one_process(build: Callable, watched: Watched) -> tuple[dict, Collectives]:
    """A rank's program beside its oracle: losses, gradients, and what the last step sent."""
    oracle, whole = oracle_of(watched.setup)
    losses, gradient, collectives = trained(build, watched)
    sent = [name for name in SENT if collectives.counts[name]]
    row = {
        "losses": losses,
        "oracle": oracle,
        "difference": ((gradient - whole).abs().max() / whole.abs().max()).item(),
        "collectives": {name: collectives.counts[name] for name in sent},
        "sent": {name: collectives.num_bytes[name] for name in sent},
    }
    return row, collectives


def row_of(way: Way) -> dict:
    """A way beside one process, and the bytes of gradients that its window keeps."""
    watched = Watched(way.setup, way.sends)
    build = training_build(
        way.setup, own_batches(way.setup), lambda own: watched.watch(way.wrap(Transformer(own)))
    )
    row, _ = beside_one_process(build, watched)
    return row | {"kept_bytes": watched.kept_bytes}


def run_ways(ways_of: Callable[[int, str], dict], row_of: Callable[[object], dict]) -> None:
    """Run all ways, or those named, on the ranks that ``torchrun`` started; rank 0 reports."""
    device, world = join_group(), dist.get_world_size()
    ways, is_first = ways_of(world, device), dist.get_rank() == 0
    names = sys.argv[1:] or [*ways]
    rows = {name: row_of(ways[name]) for name in (tqdm(names, leave=False) if is_first else names)}
    if is_first:
        report({"world": world, "device": device, "ways": rows})
    dist.destroy_process_group()


if __name__ == "__main__":
    run_ways(accumulations, row_of)
