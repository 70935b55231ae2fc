"""The training step on one rank of many: DDP, ``ZeroRedundancyOptimizer``, ``fully_shard``, as PyTorch has them.

The same build is measured on real ranks (gloo, nccl) and traced as one rank of 512 in a group that sends nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from itertools import cycle

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from memkit.program.transformer import Transformer, make_step_optimizer, training_build
from memkit.setup import TrainingSetup
from stepscope.program import job  # noqa: F401 - a Transformer makes blocks with experts from its row
from stepscope.setup import Layout


def wrap_model(model: nn.Module, layout: Layout, device: str) -> nn.Module:
    """The model as a rank of ``layout`` keeps it: each of its blocks a group, then the rest."""
    if not layout.is_fully_sharded:
        model = DistributedDataParallel(
            model, gradient_as_bucket_view=layout.gradient_as_bucket_view
        )
        if dist.get_backend() == "fake" and not model._comm_hooks:  # a traced script's has one
            model.register_comm_hook(None, sent_at_once)
        return model
    shape, names = (layout.dp_size,), ("shard",)
    if layout.num_replicas > 1:
        shape, names = (layout.num_replicas, layout.dp_size), ("replicate", "shard")
    offload = CPUOffloadPolicy(pin_memory=False) if layout.offloads else OffloadPolicy()
    choices = {
        "mesh": init_device_mesh(device, shape, mesh_dim_names=names),
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=layout.param_dtype and getattr(torch, layout.param_dtype),
            reduce_dtype=layout.reduce_dtype and getattr(torch, layout.reduce_dtype),
        ),
        "offload_policy": offload,
    }
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=layout.stage == 3, **choices)
    return fully_shard(model, **choices)


def sent_at_once(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A group that sends nothing has no result to give to DDP's own hook."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def send_after_the_last(model: nn.Module, num_micro_batches: int) -> nn.Module:
    """Gradients of a window are sent after its last micro-batch alone: DDP's ``no_sync()``, and FSDP2's like."""
    numbers = cycle(range(1, num_micro_batches + 1))

    def before_forward(*_) -> None:
        is_last = next(numbers) == num_micro_batches
        if isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = is_last
        else:
            model.set_requires_gradient_sync(is_last)

    model.register_forward_pre_hook(before_forward)
    return model


def sharded_build(
    setup: TrainingSetup,
    layout: Layout,
    next_batch=None,
    *,
    syncs_each: bool = True,
    watch: Callable | None = None,
) -> Callable:
    """``training_build`` on a rank of a layout; a process group is there already.

    ``syncs_each``: gradients of a window are sent after each micro-batch, and not after the last alone. ``watch``
    may put hooks on the model.

    Raises: ValueError: plain torch cannot run the setup's precision or optimizer.
    """
    dtype = layout.param_dtype or setup.precision.compute_dtype
    in_dtype = replace(setup, precision=replace(setup.precision, compute_dtype=dtype))

    def make_optimizer(
        setup: TrainingSetup, named: dict[str, nn.Parameter]
    ) -> torch.optim.Optimizer:
        plain = make_step_optimizer(setup, named)
        if layout.stage != 1 or plain is None:  # asked without parameters, whether there is one
            return plain
        known = signature(type(plain)).parameters
        choices = {name: value for name, value in plain.defaults.items() if name in known}
        return ZeroRedundancyOptimizer(list(named.values()), type(plain), **choices)

    def make_model(_) -> nn.Module:
        model = wrap_model(Transformer(in_dtype), layout, setup.device)
        if not syncs_each:
            send_after_the_last(model, setup.grad_accum_steps)
        return watch(model) if watch else model

    return training_build(setup, next_batch, make_model, make_optimizer)


@contextmanager
def one_rank_of(world_size: int) -> Iterator[None]:
    """Rank 0 of a process group that sends nothing, so that one process can trace its share of any number of ranks."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
