"""Scratch of three kinds of CUDA kernels: sums over many rows, sorts, and gradients added row by row.

A kernel that splits its work over thread blocks or in passes takes buffers of its own and gives them back
before it returns. Their size follows from shapes and strides alone. Each function returns stages; the buffers
of one stage stand together.

Source: ATen/native/cuda/Reduce.cuh (setReduceConfig) and Indexing.cu (index_put_with_sort_kernel).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from memkit.formula.kernels import INDEX_BYTES, Stages, embedding_backward_buffers, sort_bytes

aten = torch.ops.aten

PROCESSORS, THREADS_PER_PROCESSOR = 108, 2048
"""Processors of an A100 and the threads of each; a sum with few results is split over all of them."""

WARP, MAX_THREADS, VALUES_PER_THREAD = 32, 512, range(16, 256)
"""A thread of a sum adds at least 16 values, and at 256 the sum is split over thread blocks."""

SEMAPHORE_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """How CUDA splits a reduction: dimensions as (size, stride) in elements, merged, the fastest first."""

    reduced: tuple[tuple[int, int], ...]
    kept: tuple[tuple[int, int], ...]
    value_bytes: int  # of one running result

    def buffers(self) -> Stages:
        """A running result per thread and block, and a counter per group of results; none without a split."""
        num_inputs, num_outputs = (
            math.prod(size for size, _ in dims) for dims in (self.reduced, self.kept)
        )
        along_rows = not self.kept or self.reduced[0][1] < self.kept[0][1]
        fast, slow = (num_inputs, num_outputs) if along_rows else (num_outputs, num_inputs)
        vector = 1
        if along_rows and self.reduced[0][1] == 1 and num_inputs >= 128 and len(self.reduced) == 1:
            fast //= 4
        elif not along_rows and self.kept[0][1] == 1:
            vector = self.output_vector()
            fast //= vector
        width, height = block_shape(fast, slow, MAX_THREADS // vector)
        step, outputs_per_block = (width, 1) if along_rows else (1, width)
        if -(-num_inputs // step) < min(height * VALUES_PER_THREAD.start, VALUES_PER_THREAD.stop):
            return []  # each row of threads has outputs of its own
        step *= height
        values = -(-num_inputs // step)
        groups = -(-(num_outputs // vector) // outputs_per_block)
        num_blocks = PROCESSORS * (THREADS_PER_PROCESSOR // (width * height))
        if values < VALUES_PER_THREAD.stop or groups > num_blocks:
            return []
        by_values = -(-values // VALUES_PER_THREAD.start)
        split = max(min(-(-num_blocks // groups), by_values), -(-values // VALUES_PER_THREAD.stop))
        if split == 1:
            return []
        lanes = 1 if along_rows else width * vector
        return [[self.value_bytes * num_outputs * split * lanes, SEMAPHORE_BYTES * groups]]

    def output_vector(self) -> int:
        """Neighbouring results that one thread makes: 4, 2 or 1, as sizes and strides allow."""
        others = [stride for _, stride in (*self.reduced, *self.kept[1:])]
        return math.gcd(4, self.kept[0][0], *others)


def block_shape(fast: int, slow: int, max_threads: int) -> tuple[int, int]:
    """Threads of a block along the fast and the slow dimension, powers of two."""
    width, height = (min(1 << (max(size, 1).bit_length() - 1), max_threads) for size in (fast, slow))
    rows = min(height, max_threads // min(width, WARP))
    return min(width, max_threads // rows), rows


def merged(dims: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Sizes and strides from the fastest on, neighbours merged that are one walk."""
    out: list[tuple[int, int]] = []
    for stride, size in sorted((stride, size) for size, stride in dims if size > 1):
        if out and stride == out[-1][0] * out[-1][1]:
            out[-1] = (out[-1][0] * size, out[-1][1])
        else:
            out.append((size, stride))
    return tuple(out)


def reduction_buffers(x: Tensor, dims: int | Sequence[int] | None, value_bytes: int) -> Stages:
    """Scratch of a reduction of ``x`` over ``dims`` (all, if none are named)."""
    dims = [dims] if isinstance(dims, int) else dims or range(x.dim())
    names = {dim % x.dim() for dim in dims} if x.dim() else set()
    sizes = list(zip(x.shape, x.stride(), strict=True))
    reduced, kept = (
        [pair for dim, pair in enumerate(sizes) if (dim in names) == side] for side in (True, False)
    )
    reduction = Reduction(reduced=merged(reduced), kept=merged(kept), value_bytes=value_bytes)
    return reduction.buffers() if reduction.reduced and x.numel() else []


def index_put_buffers(x: Tensor, indices, values: Tensor, accumulate: bool = False, *_, **__) -> Stages:
    """Adding at indices sorts them: indices as one number, sorted, two orders, and the sort's own."""
    given = [index for index in indices if index is not None]
    if not accumulate or not given:
        return []
    shape = torch.broadcast_shapes(*(index.shape for index in given))
    num_indices, rows = math.prod(shape), math.prod(x.shape[: len(given)])
    index_bytes = num_indices * INDEX_BYTES
    copied = [] if values.is_contiguous() else [values.numel() * values.element_size()]
    return [[index_bytes], [index_bytes, *copied, *[index_bytes] * 3, sort_bytes(num_indices, rows - 1)]]


def _embeddings(grad: Tensor, indices: Tensor, num_weights: int, *_, **__) -> Stages:
    return embedding_backward_buffers(
        indices.numel(), num_weights, grad.shape[-1], grad.element_size(), indices.element_size()
    )


def _sums(x: Tensor, dims=None, *_, dtype=None, **__) -> Stages:
    wide = (dtype or x.dtype) in (torch.float64, torch.int64) or not x.is_floating_point()
    return reduction_buffers(x, dims, 8 if wide else 4)


def _sums_all(x: Tensor, *, dtype=None, **__) -> Stages:
    return _sums(x, dtype=dtype)


def _norms(x: Tensor, order=2, dims=None, *_, **__) -> Stages:
    return _sums(x, dims)


def _extremes(x: Tensor, dims=None, *_, **__) -> Stages:
    return reduction_buffers(x, dims, x.element_size())


def _extremes_with_index(x: Tensor, dims=None, *_, **__) -> Stages:
    return reduction_buffers(x, dims, 16)


SCRATCH = {
    aten.sum.default: _sums_all, aten.sum.dim_IntList: _sums,
    aten.mean.default: _sums_all, aten.mean.dim: _sums, aten.linalg_vector_norm.default: _norms,
    aten.amax.default: _extremes, aten.amin.default: _extremes, aten.max.default: _extremes,
    aten.min.default: _extremes, aten.max.dim: _extremes_with_index, aten.min.dim: _extremes_with_index,
    aten.argmax.default: _extremes_with_index, aten.argmin.default: _extremes_with_index,
    aten.var_mean.correction: _extremes_with_index, aten.var.correction: _extremes_with_index,
    aten.index_put.default: index_put_buffers, aten.index_put_.default: index_put_buffers,
    aten._index_put_impl_.default: index_put_buffers,
    aten.embedding_dense_backward.default: _embeddings,
}  # fmt: skip
"""Which operation takes which scratch; each function is called with the operation's arguments."""
