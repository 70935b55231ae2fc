"""CUDA's kernels on tensors without values: which attention runs, and what has no ``meta`` kernel.

``F.scaled_dot_product_attention`` has four kernels on CUDA. Each refuses some inputs; the first in the order
of priority that is switched on (``sdpa_kernel``) and accepts the inputs runs. cuDNN's kernel, which recent
versions put first on Hopper and Blackwell, keeps the same tensors as the flash kernel and is treated as one
here.

Source: ATen/native/transformers/cuda/sdp_utils.cpp, for compute capability 8.0 or later.

The second half stands in for kernels that torch has for CUDA and not for ``meta`` tensors: what they return,
and nothing computed.
"""

import math
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

aten = torch.ops.aten


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:
    """``F.scaled_dot_product_attention`` by the kernel that CUDA would choose; its arguments may come by name.

    Shapes: query is [B, A, S, H]; key and value are [B, K, T, H]. Raises: RuntimeError: no kernel takes the inputs.
    """
    q, k, v = query, key, value
    if not q.dtype is k.dtype is v.dtype:  # torch's own check, which is made where a kernel runs
        raise RuntimeError(f"query, key and value have several dtypes: {q.dtype}, {k.dtype}, {v.dtype}")
    backend = choose_backend(q, k, v, attn_mask, is_causal, enable_gqa)
    if backend == SDPBackend.FLASH_ATTENTION:
        scale = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
        head_dim, padding = q.shape[-1], -q.shape[-1] % 8
        if padding:
            q, k, v = (torch.nn.functional.pad(t, (0, padding)) for t in (q, k, v))
        out = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :head_dim] if padding else out
    if backend == SDPBackend.EFFICIENT_ATTENTION:
        keeps_sums = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
        bias = None if attn_mask is None else additive(attn_mask, q, k)
        return aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, keeps_sums, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def choose_backend(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool, enable_gqa: bool
) -> SDPBackend:
    """The first kernel in the order of priority that is switched on and accepts the inputs."""
    is_half = q.dtype in (torch.float16, torch.bfloat16)
    is_dense = q.dim() == 4 and q.numel() > 0 and k.numel() > 0
    has_same_heads = q.shape[-3:-2] == k.shape[-3:-2]
    head_dim, alignment = q.shape[-1], 8 if is_half else 4
    takes_flash = is_dense and is_half and attn_mask is None and head_dim <= 256
    takes_flash = takes_flash and head_dim == k.shape[-1] == v.shape[-1] and (has_same_heads or enable_gqa)
    takes_flash = takes_flash and not (is_causal and q.shape[-2] != k.shape[-2])
    takes_efficient = is_dense and has_same_heads and (is_half or q.dtype is torch.float32)
    takes_efficient = takes_efficient and head_dim % alignment == 0 and v.shape[-1] % alignment == 0
    accepts = {
        SDPBackend.FLASH_ATTENTION: takes_flash and torch._C._get_flash_sdp_enabled(),
        SDPBackend.EFFICIENT_ATTENTION: takes_efficient and torch._C._get_mem_efficient_sdp_enabled(),
        SDPBackend.MATH: torch._C._get_math_sdp_enabled(),
    }
    if takes_flash and torch._C._get_cudnn_sdp_enabled() and not any(accepts.values()):
        return SDPBackend.FLASH_ATTENTION
    for number in torch._C._get_sdp_priority_order():
        backend = SDPBackend(number)
        if accepts.get(backend):
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def additive(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """The mask as the memory-efficient kernel reads it: additive, rows padded to a multiple of 16."""
    if mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, torch.full((), -math.inf, dtype=q.dtype, device=q.device))
    length = k.shape[-2]
    if length % 16:
        mask = torch.nn.functional.pad(mask, (0, -length % 16))[..., :length]
    return mask.expand(*q.shape[:-1], length)


HOST_OUTPUTS = {aten._scaled_dot_product_efficient_attention.default: (2, 3)}
"""Results that CUDA keeps in the host's memory: the random seed and offset of the memory-efficient kernel."""

FUSED_STEPS = ("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_", "_fused_adagrad_.tensor_lr")
"""Optimizer steps in one kernel: they write over weights and states and allocate nothing."""


def norm_in_one_kernel(x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None):
    """The normalized values and, in float32, one root mean square for each row."""
    kept = x.dim() - len(normalized_shape)
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return torch.empty_like(x), x.new_empty((*x.shape[:kept], *(1 for _ in normalized_shape)), dtype=wide)


KERNELS = {"_fused_rms_norm": norm_in_one_kernel}
"""What stands in for kernels that torch has for CUDA and not for ``meta``. Others may be added."""


@contextmanager
def kernels_on_meta(device: str):
    """Inside, ``KERNELS`` run on ``meta`` as one kernel each, and the fused steps of SGD run at all."""
    library = torch.library.Library("aten", "IMPL", "Meta")
    for name, kernel in KERNELS.items():
        library.m.impl(name, "Meta", kernel, False)
    for name in FUSED_STEPS:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.m.impl(name, "Meta", lambda *_, **__: None, False)
    try:
        yield
    finally:
        library._destroy()
