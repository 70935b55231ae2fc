"""CUDA's kernels on tensors without values: which attention runs, what has no ``meta`` kernel, and each one's scratch.

A kernel that splits its work over thread blocks or in passes takes buffers of its own and gives them back
before it returns. Their size follows from shapes and strides alone. Each function returns stages; the buffers
of one stage stand together. The arithmetic of sums and sorts is ``memkit.formula.kernels``'.

Source: flash_attn/flash_api.cpp, attention_backward.cu, Indexing.cu (index_put_with_sort_kernel), SoftMax.cu,
group_norm_kernel.cu, layer_norm_kernel.cu and Blas.cpp (prepare_matrix_for_cublas) of ATen/native.

``F.scaled_dot_product_attention`` has four kernels on CUDA. Each refuses some inputs; the first in the order
of priority that is switched on (``sdpa_kernel``) and accepts the inputs runs. cuDNN's kernel, which recent
versions put first on Hopper and Blackwell, keeps the same tensors as the flash kernel and is treated as one
here.

Source: ATen/native/transformers/cuda/sdp_utils.cpp, for compute capability 8.0 or later.

The last third stands in for kernels that torch has for CUDA and not for ``meta`` tensors: what they return,
and nothing computed.
"""

import math
from collections.abc import Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from memkit.formula import kernels
from memkit.formula.kernels import INDEX_BYTES, Stages, sort_bytes, sum_buffers

aten = torch.ops.aten
PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}
"""Products of matrices; the two factors are their last arguments."""


def reduction_buffers(x: Tensor, dims: int | Sequence[int] | None, value_bytes: int) -> Stages:
    """Scratch of a reduction of ``x`` over ``dims`` (all, if none are named)."""
    dims = [dims] if isinstance(dims, int) else dims or range(x.dim())
    names = {dim % x.dim() for dim in dims} if x.dim() else set()
    sizes = list(zip(x.shape, x.stride(), strict=True))
    reduced, kept = (
        [pair for dim, pair in enumerate(sizes) if (dim in names) == side] for side in (True, False)
    )
    return sum_buffers(reduced, kept, value_bytes) if x.numel() else []


def index_put_buffers(
    x: Tensor, indices, values: Tensor, accumulate: bool = False, *_, **__
) -> Stages:
    """Adding at indices sorts them: indices as one number, sorted, two orders, and the sort's own."""
    indexed = [index for index in indices if index is not None]
    if not accumulate or not indexed:
        return []
    shape = torch.broadcast_shapes(*(index.shape for index in indexed))
    num_indices, rows = math.prod(shape), math.prod(x.shape[: len(indexed)])
    index_bytes = num_indices * INDEX_BYTES
    copied = [] if values.is_contiguous() else [values.numel() * values.element_size()]
    return [
        [index_bytes],
        [index_bytes, *copied, *[index_bytes] * 3, sort_bytes(num_indices, rows - 1)],
    ]


def copied_factors(*factors: Tensor) -> list[int]:
    """Bytes of the factors that BLAS reads neither by rows nor by columns, and torch copies: an expanded gradient."""
    return [
        x.nbytes
        for x in factors
        if not any(
            x.stride(fast) == 1 and x.stride(slow) >= max(1, x.shape[fast])
            for fast, slow in ((-1, -2), (-2, -1))
        )
    ]


HELD_WHOLE = {
    aten.mse_loss.default: 2,
    aten.smooth_l1_loss.default: 2,
    aten.binary_cross_entropy.default: 3,
}
"""Losses that are made with all their elements; where the reduction is in their arguments."""


def bytes_of_loss(func, args: tuple, kwargs: dict | None) -> tuple[int | None, int]:
    """Bytes that a loss holds, where they are more than it has (else None), and those beside it while it is made.

    It is made with an element for each pair and then made smaller in place, which frees nothing; but for
    binary cross-entropy's, whose elements they are, there is a second tensor of all. Source:
    ATen/native/BinaryOps.cpp (``TORCH_META_FUNC(mse_loss)``), Loss.cpp and cuda/Loss.cu of torch 2.13.
    """
    place = HELD_WHOLE.get(func)
    if (
        place is None
        or (kwargs or {}).get("reduction", args[place] if len(args) > place else 1) == 0
    ):
        return None, 0
    dtype = torch.promote_types(args[0].dtype, args[1].dtype)
    num_bytes = math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape)) * dtype.itemsize
    return num_bytes, 0 if func is aten.binary_cross_entropy.default else num_bytes


def _flash(grad_out: Tensor, q: Tensor, k: Tensor, *_, **__) -> Stages:
    batch, num_heads, length, head_dim = q.shape
    return kernels.flash_backward_buffers(
        batch, num_heads, k.shape[1], length, head_dim, q.element_size()
    )


def _embeddings(grad: Tensor, indices: Tensor, num_weights: int, *_, **__) -> Stages:
    return kernels.embedding_backward_buffers(
        indices.numel(), num_weights, grad.shape[-1], grad.element_size(), indices.element_size()
    )


def _sums(x: Tensor, dims=None, *_, dtype=None, **__) -> Stages:
    wide = (dtype or x.dtype) in (torch.float64, torch.int64) or not x.is_floating_point()
    return reduction_buffers(x, dims, 8 if wide else 4)


def _groups(
    dy: Tensor, x, mean, deviation, weight, batch: int, channels: int, pixels, groups: int, *_
) -> Stages:
    per_channel, per_group = ([batch * each * mean.element_size()] for each in (channels, groups))
    return [per_channel * 3 + per_group * 2]


FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_backward.default
EFFICIENT_BACKWARD = aten._scaled_dot_product_efficient_attention_backward.default
SCRATCH = {
    FLASH_BACKWARD: _flash,
    EFFICIENT_BACKWARD: lambda dy, q, *_, **__: kernels.efficient_backward_buffers(
        *q.shape, q.element_size()
    ),
    **dict.fromkeys(
        (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim), _sums
    ),
    aten.linalg_vector_norm.default: lambda x, order=2, dims=None, *_, **__: _sums(x, dims),
    aten._softmax_backward_data.default: lambda dy, y, *_: [[y.nbytes]],  # dy times y
    aten._fused_rms_norm_backward.default: lambda dy, *_: [
        [] if dy.is_contiguous() else [dy.nbytes]
    ],
    aten.native_group_norm_backward.default: _groups,
    **dict.fromkeys((aten.index_put.default, aten.index_put_.default), index_put_buffers),
    aten._index_put_impl_.default: index_put_buffers,
    aten.embedding_dense_backward.default: _embeddings,
    **dict.fromkeys(PRODUCTS, lambda *factors, **__: [copied_factors(*factors[-2:])]),
}
"""Which operation takes which scratch; each function is called with the operation's arguments."""


BY_NAME = {}
"""The same on both devices, for operations of libraries that may not be there; whoever knows one adds it."""


aten = torch.ops.aten


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``F.scaled_dot_product_attention`` by the kernel that CUDA would choose; its arguments may come by name.

    Shapes: query is [B, A, S, H]; key and value are [B, K, T, H]. Raises: RuntimeError: no kernel takes the inputs.
    """
    q, k, v = query, key, value
    if not q.dtype is k.dtype is v.dtype:  # torch's own check, which is made where a kernel runs
        raise RuntimeError(
            f"query, key and value have several dtypes: {q.dtype}, {k.dtype}, {v.dtype}"
        )
    backend = choose_backend(q, k, v, attn_mask, is_causal, enable_gqa)
    if backend == SDPBackend.FLASH_ATTENTION:
        scale = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
        head_dim, padding = q.shape[-1], -q.shape[-1] % 8
        if padding:
            q, k, v = (torch.nn.functional.pad(t, (0, padding)) for t in (q, k, v))
        out = aten._scaled_dot_product_flash_attention(
            q, k, v, dropout_p, is_causal, False, scale=scale
        )[0]
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
    takes_flash = (
        takes_flash and head_dim == k.shape[-1] == v.shape[-1] and (has_same_heads or enable_gqa)
    )
    takes_flash = takes_flash and not (is_causal and q.shape[-2] != k.shape[-2])
    takes_efficient = is_dense and has_same_heads and (is_half or q.dtype is torch.float32)
    takes_efficient = takes_efficient and head_dim % alignment == 0 and v.shape[-1] % alignment == 0
    accepts = {
        SDPBackend.FLASH_ATTENTION: takes_flash and torch._C._get_flash_sdp_enabled(),
        SDPBackend.EFFICIENT_ATTENTION: takes_efficient
        and torch._C._get_mem_efficient_sdp_enabled(),
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

FUSED_STEPS = (
    "_fused_sgd_",
    "_fused_sgd_.tensor_lr",
    "_fused_adagrad_",
    "_fused_adagrad_.tensor_lr",
)
"""Optimizer steps in one kernel: they write over weights and states and allocate nothing."""


def norm_in_one_kernel(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
):
    """The normalized values and, in float32, one root mean square for each row."""
    kept = x.dim() - len(normalized_shape)
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return torch.empty_like(x), x.new_empty(
        (*x.shape[:kept], *(1 for _ in normalized_shape)), dtype=wide
    )


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
