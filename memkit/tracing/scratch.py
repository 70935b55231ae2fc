"""Scratch of CUDA's kernels that a transformer or a convolutional step meets, by operation.

A kernel that splits its work over thread blocks or in passes takes buffers of its own and gives them back
before it returns. Their size follows from shapes and strides alone. Each function returns stages; the buffers
of one stage stand together. The arithmetic of sums and sorts is ``memkit.formula.kernels``'.

Source: flash_attn/flash_api.cpp, attention_backward.cu, Indexing.cu (index_put_with_sort_kernel), SoftMax.cu,
group_norm_kernel.cu, layer_norm_kernel.cu and Blas.cpp (prepare_matrix_for_cublas) of ATen/native.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

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


def index_put_buffers(x: Tensor, indices, values: Tensor, accumulate: bool = False, *_, **__) -> Stages:
    """Adding at indices sorts them: indices as one number, sorted, two orders, and the sort's own."""
    indexed = [index for index in indices if index is not None]
    if not accumulate or not indexed:
        return []
    shape = torch.broadcast_shapes(*(index.shape for index in indexed))
    num_indices, rows = math.prod(shape), math.prod(x.shape[: len(indexed)])
    index_bytes = num_indices * INDEX_BYTES
    copied = [] if values.is_contiguous() else [values.numel() * values.element_size()]
    return [[index_bytes], [index_bytes, *copied, *[index_bytes] * 3, sort_bytes(num_indices, rows - 1)]]


def copied_factors(*factors: Tensor) -> list[int]:
    """Bytes of the factors that BLAS reads neither by rows nor by columns, and torch copies: an expanded gradient."""
    return [x.nbytes for x in factors if not any(
        x.stride(fast) == 1 and x.stride(slow) >= max(1, x.shape[fast]) for fast, slow in ((-1, -2), (-2, -1))
    )]


HELD_WHOLE = {aten.mse_loss.default: 2, aten.smooth_l1_loss.default: 2, aten.binary_cross_entropy.default: 3}
"""Losses that are made with all their elements; where the reduction is in their arguments."""


def bytes_of_loss(func, args: tuple, kwargs: dict | None) -> tuple[int | None, int]:
    """Bytes that a loss holds, where they are more than it has (else None), and those beside it while it is made.

    It is made with an element for each pair and then made smaller in place, which frees nothing; but for
    binary cross-entropy's, whose elements they are, there is a second tensor of all. Source:
    ATen/native/BinaryOps.cpp (``TORCH_META_FUNC(mse_loss)``), Loss.cpp and cuda/Loss.cu of torch 2.13.
    """
    place = HELD_WHOLE.get(func)
    if place is None or (kwargs or {}).get("reduction", args[place] if len(args) > place else 1) == 0:
        return None, 0
    dtype = torch.promote_types(args[0].dtype, args[1].dtype)
    num_bytes = math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape)) * dtype.itemsize
    return num_bytes, 0 if func is aten.binary_cross_entropy.default else num_bytes


def _flash(grad_out: Tensor, q: Tensor, k: Tensor, *_, **__) -> Stages:
    batch, num_heads, length, head_dim = q.shape
    return kernels.flash_backward_buffers(batch, num_heads, k.shape[1], length, head_dim, q.element_size())


def _embeddings(grad: Tensor, indices: Tensor, num_weights: int, *_, **__) -> Stages:
    return kernels.embedding_backward_buffers(
        indices.numel(), num_weights, grad.shape[-1], grad.element_size(), indices.element_size()
    )


def _sums(x: Tensor, dims=None, *_, dtype=None, **__) -> Stages:
    wide = (dtype or x.dtype) in (torch.float64, torch.int64) or not x.is_floating_point()
    return reduction_buffers(x, dims, 8 if wide else 4)


def _groups(dy: Tensor, x, mean, deviation, weight, batch: int, channels: int, pixels, groups: int, *_) -> Stages:
    per_channel, per_group = ([batch * each * mean.element_size()] for each in (channels, groups))
    return [per_channel * 3 + per_group * 2]


FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_backward.default
EFFICIENT_BACKWARD = aten._scaled_dot_product_efficient_attention_backward.default
SCRATCH = {
    FLASH_BACKWARD: _flash,
    EFFICIENT_BACKWARD: lambda dy, q, *_, **__: kernels.efficient_backward_buffers(*q.shape, q.element_size()),
    **dict.fromkeys((aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim), _sums),
    aten.linalg_vector_norm.default: lambda x, order=2, dims=None, *_, **__: _sums(x, dims),
    aten._softmax_backward_data.default: lambda dy, y, *_: [[y.nbytes]],  # dy times y
    aten._fused_rms_norm_backward.default: lambda dy, *_: [[] if dy.is_contiguous() else [dy.nbytes]],
    aten.native_group_norm_backward.default: _groups,
    **dict.fromkeys((aten.index_put.default, aten.index_put_.default), index_put_buffers),
    aten._index_put_impl_.default: index_put_buffers,
    aten.embedding_dense_backward.default: _embeddings,
    **dict.fromkeys(PRODUCTS, lambda *factors, **__: [copied_factors(*factors[-2:])]),
}
"""Which operation takes which scratch; each function is called with the operation's arguments."""


BY_NAME = {}
"""The same on both devices, for operations of libraries that may not be there; whoever knows one adds it."""
