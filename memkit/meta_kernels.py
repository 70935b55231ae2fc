"""Kernels that torch has for CUDA and not for ``meta`` tensors: what they return, and nothing computed."""

from contextlib import contextmanager

import torch
from torch import Tensor

FUSED_STEPS = ("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_", "_fused_adagrad_.tensor_lr")
"""Optimizer steps in one kernel: they write over weights and states and allocate nothing."""


def rms_norm(x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None):
    """The normalized values and, in float32, one root mean square for each row."""
    kept = x.dim() - len(normalized_shape)
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return torch.empty_like(x), x.new_empty((*x.shape[:kept], *(1 for _ in normalized_shape)), dtype=wide)


def recurrent(mode, func, args, kwargs):
    """An LSTM, GRU or RNN, with a warning."""
    mode.warn_once(
        "recurrent",
        f"{func.__name__} is traced as small operations; CUDA runs one of cuDNN, with a reserve",
        is_told_in_torch=True,
    )
    return func(*args, **kwargs)


@contextmanager
def meta_kernels():
    """Inside, RMSNorm runs as one kernel, as on CUDA, and the fused steps of SGD and Adagrad run at all."""
    library = torch.library.Library("aten", "IMPL", "Meta")
    library.m.impl("_fused_rms_norm", "Meta", rms_norm, False)
    for name in FUSED_STEPS:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.m.impl(name, "Meta", lambda *_, **__: None, False)
    try:
        yield
    finally:
        library._destroy()
