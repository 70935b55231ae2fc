"""torch as it was before a program was traced or measured: a notebook runs many."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from memkit.setup.training import DEVICES


def settings() -> tuple[Callable[[], object], ...]:
    """What a program may set for all of torch, as calls that put it back."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return (
        partial(torch.set_default_device, context and context.device),
        partial(torch.set_default_dtype, torch.get_default_dtype()),
        partial(torch.set_grad_enabled, torch.is_grad_enabled()),
        partial(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode()),
        partial(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()),
        partial(torch.set_num_threads, torch.get_num_threads()),
        partial(torch.set_anomaly_enabled, torch.is_anomaly_enabled()),
        *(partial(torch.set_autocast_enabled, each, torch.is_autocast_enabled(each)) for each in DEVICES),
        *(partial(torch.set_autocast_dtype, each, torch.get_autocast_dtype(each)) for each in DEVICES),
        torch.clear_autocast_cache,
    )


def stacks() -> tuple[int, int, tuple | None]:
    """How many modes stand, and the innermost ``saved_tensors_hooks`` (checkpointing's)."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack(), hooks


@contextmanager
def torch_as_before() -> Iterator[None]:
    """What a program sets for all of torch, or leaves on when it fails, is as before at the end."""
    to_put_back = settings()
    num_function_modes, num_dispatch_modes, hooks = stacks()
    try:
        yield
    finally:
        for put_back in to_put_back:
            put_back()
        while stacks()[0] > num_function_modes:
            torch.overrides._pop_mode()
        while stacks()[1] > num_dispatch_modes:
            torch.utils._python_dispatch._pop_mode()
        # A checkpoint whose function failed leaves its hooks on while somebody holds the error.
        while stacks()[2] not in (hooks, None):
            torch._C._autograd._pop_saved_tensors_default_hooks()
