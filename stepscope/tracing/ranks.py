"""One rank of a script of many, for ``stepscope report --ranks``: what ``torchrun`` or ``mp.spawn`` would start.

Rank 0 runs in this process, in a group that sends nothing (torch's own ``fake`` backend): it holds its share of any
number of ranks, and the buffers that it sends from and receives into. What NCCL allocates for itself is not in it.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore  # makes the backend known
from torch.utils._python_dispatch import _get_current_dispatch_mode

from stepscope.program.sharded import sent_at_once
from stepscope.tracing.patched import replaced
from stepscope.tracing.refusals import not_followed

JOIN, MAKE_PARALLEL = dist.init_process_group, DistributedDataParallel.__init__


def names_of_torchrun(num_ranks: int) -> dict[str, str]:
    """What ``torchrun --nproc-per-node N`` puts into the environment of its first rank."""
    numbers = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(num_ranks))
    numbers |= dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0")
    return numbers | {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def num_cards() -> int:
    """As many cards as ``torchrun`` started ranks on this machine; one without it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def join(
    backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, *rest, **more
) -> None:
    """``init_process_group`` in a group that sends nothing, of as many ranks as the script or ``torchrun`` says."""
    if backend == "fake":
        return JOIN(backend, init_method, timeout, world_size, rank, store, *rest, **more)
    size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        warnings.warn(
            f"rank 0 of {size}; what NCCL allocates for itself is not in the trace", stacklevel=2
        )
    return JOIN("fake", rank=max(rank, 0), world_size=size, store=FakeStore())


def with_buckets(function: Callable) -> Callable:
    """A function of DDP's that makes its buckets: they hold gradients to be sent, and count as gradients."""

    def called(*args, **kwargs):
        log = getattr(_get_current_dispatch_mode(), "log", None)
        start = len(log.sizes) if log else 0
        try:
            return function(*args, **kwargs)
        finally:
            if log:
                log.gradients.update(
                    b for b in log.live if b >= start and "empty" in str(log.births[b].op)
                )

    return called


def in_parallel(parallel, *args, **kwargs) -> None:
    """``DistributedDataParallel`` in a group that sends nothing, and has no result to give to DDP's own hook."""
    with_buckets(MAKE_PARALLEL)(parallel, *args, **kwargs)
    if dist.get_backend(parallel.process_group) == "fake":
        parallel.register_comm_hook(None, sent_at_once)


def on_one_card(parallel, module, device_ids=None, output_device=None, dim=0) -> None:
    """``DataParallel`` on a machine with one card calls its module; on several it is refused."""
    if num_cards() > 1 or len(device_ids or ()) > 1:
        raise not_followed(
            "DataParallel on several cards", "write DistributedDataParallel, and --ranks"
        )
    torch.nn.Module.__init__(parallel)
    parallel.module, parallel.dim, parallel.device_ids = module, dim, []


@contextmanager
def one_rank() -> Iterator[None]:
    """Inside, a script that joins a group of ranks is the first of them; the group is left at the end."""
    was_joined, forward = dist.is_initialized(), DistributedDataParallel._pre_forward
    first = lambda function, args=(), *_, **__: function(0, *args)
    joins = (dist, dist.distributed_c10d, dist.device_mesh)
    try:
        with replaced(
            *((home, "init_process_group", join) for home in joins),
            (dist, "is_nccl_available", lambda: True),
            (dist, "barrier", lambda *_, **__: None),
            (DistributedDataParallel, "__init__", in_parallel),
            (DistributedDataParallel, "_pre_forward", with_buckets(forward)),
            (torch.multiprocessing, "spawn", first),  # of spawn's ranks the first, in this process
        ):
            yield
    finally:
        if dist.is_initialized() and not was_joined:
            dist.destroy_process_group()
