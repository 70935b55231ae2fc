"""Gradient accumulation on several ranks, six ways: what each way sends, what it keeps, and that all agree.

On this machine: ``run_on_ranks("memkit.measuring.accumulating_ranks", 2)``. On a cluster, one process a GPU:

    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 \\
        -m memkit.measuring.accumulating_ranks

The ranks share a window of uneven micro-batches of the small GPT's text. One process with all of it is the oracle.
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from memkit.measuring.ranks import Collectives, join_group, report
from memkit.program.sharded import wrap_model
from memkit.program.small_gpt import make_small_gpt, text_batches
from memkit.setup.layouts import Layout

LENGTHS = (24, 64, 16, 48)
"""Tokens of each micro-batch's sequences: uneven, so that only a weighting by tokens is right."""


SENT = ("allreduce", "reduce_scatter", "allgather")
WAYS = ("DDP", "DDP, no_sync", "DDP, no_sync, bucket view", "FSDP2", "FSDP2, no gradient sync", "HSDP, no all-reduce")
"""The last replicates shards, which takes four ranks or more."""


def window_of(rank: int, device: str) -> list[tuple[Tensor, Tensor]]:
    """The micro-batches of one rank: two sequences each, every rank's lengths in another order."""
    lengths = LENGTHS[rank % len(LENGTHS) :] + LENGTHS[: rank % len(LENGTHS)]
    return [
        next(text_batches(1, batch_size=2, seq_len=length, seed=100 * rank + number, device=device))
        for number, length in enumerate(lengths)
    ]


def wrapped(way: str, model: nn.Module, device: str) -> nn.Module:
    """The model as this way of accumulating wants it: replicated (DDP), sharded (FSDP2), or both (HSDP)."""
    world = dist.get_world_size()
    layout = Layout(stage=0, dp_size=world, gradient_as_bucket_view="bucket view" in way)
    if not way.startswith("DDP"):
        replicas = 2 if way.startswith("HSDP") else 1
        layout = Layout(stage=3, dp_size=world // replicas, num_replicas=replicas)
    model = wrap_model(model, layout, device)
    if way.startswith("DDP"):
        model.buckets = {}
        model.register_comm_hook(model.buckets, noting_buckets)
    return model


def noting_buckets(buckets: dict, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's own all-reduce of a bucket, its storage noted."""
    storage = bucket.buffer().untyped_storage()
    buckets[storage.data_ptr()] = storage.nbytes()
    return allreduce_hook(None, bucket)


def accumulate(way: str, model: nn.Module, window: list[tuple[Tensor, Tensor]], num_tokens: int) -> tuple[float, int]:
    """Forward and backward of a window: the loss of all ranks' tokens, and the gradient bytes kept meanwhile."""
    total, kept_bytes = torch.zeros((), device=window[0][0].device, dtype=torch.float64), 0
    for number, (inputs, targets) in enumerate(window, start=1):
        is_last = number == len(window)
        if is_last and way.startswith("DDP"):
            model.buckets.clear()  # the first backward's buckets are cut anew for the second
        if "no gradient sync" in way:
            model.set_requires_gradient_sync(is_last)
        if "no all-reduce" in way:
            model.set_requires_all_reduce(is_last)
        with model.no_sync() if "no_sync" in way and not is_last else nullcontext():
            loss = model(inputs, targets) * targets.numel() * dist.get_world_size() / num_tokens
            loss.backward()
        total += loss.detach() / dist.get_world_size()
        if number == 1:
            kept_bytes = gradient_bytes(model)
    dist.all_reduce(total)
    if way.startswith("DDP"):  # buckets are made with the model; the hook has seen them at the end
        grads = {parameter.grad.untyped_storage().data_ptr() for parameter in model.parameters()}
        kept_bytes += sum(num_bytes for pointer, num_bytes in model.buckets.items() if pointer not in grads)
    return total.item(), kept_bytes


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


def whole_gradient(model: nn.Module) -> Tensor:
    """All gradients in one row, gathered where they are sharded."""
    grads = [parameter.grad for parameter in model.parameters()]
    return torch.cat([(g.full_tensor() if hasattr(g, "full_tensor") else g).flatten() for g in grads])


def main() -> None:
    """Run every way on the ranks that ``torchrun`` started; rank 0 reports."""
    device, rank, world = join_group(), dist.get_rank(), dist.get_world_size()
    windows = [window_of(number, device) for number in range(world)]
    num_tokens = sum(targets.numel() for window in windows for _, targets in window)
    alone = make_small_gpt(dtype=torch.float64, device=device)
    losses = [
        alone(inputs, targets) * targets.numel() / num_tokens for window in windows for inputs, targets in window
    ]
    sum(losses).backward()
    oracle, oracle_loss = whole_gradient(alone), sum(losses).item()
    rows = {}
    for way in WAYS if world % 2 == 0 and world > 2 else WAYS[:-1]:
        model = wrapped(way, make_small_gpt(dtype=torch.float64, device=device), device)
        with Collectives() as collectives:
            loss, kept_bytes = accumulate(way, model, windows[rank], num_tokens)
        collectives.counts["allreduce"] -= 1  # the loss's, of 8 bytes
        difference = (whole_gradient(model) - oracle).abs().max() / oracle.abs().max()
        rows[way] = {
            "loss": loss, "difference": difference.item(), "kept_bytes": kept_bytes,
            "collectives": {name: count for name, count in collectives.counts.items() if count and name in SENT},
            "sent_bytes": sum(collectives.num_bytes[name] for name in SENT) - 8,
        }  # fmt: skip
    if rank == 0:
        parameter_bytes = sum(parameter.nbytes for parameter in alone.parameters())
        report({"world": world, "oracle_loss": oracle_loss, "parameter_bytes": parameter_bytes, "ways": rows})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
