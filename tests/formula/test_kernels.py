"""The formula's buffers of CUDA's kernels are the trace's: one rule, of sizes here and of tensors there."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from memkit.formula.kernels import (
    efficient_backward_buffers,
    embedding_backward_buffers,
    flash_backward_buffers,
    sort_bytes,
)
from memkit.tracing.trace import trace_memory


def scratch_of(op, forward):
    """Sizes of the buffers that the trace notes at ``op`` in the backward of ``forward()``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timeline = trace_memory(lambda: lambda: forward().sum().backward(), steps=1)
    return [e.num_bytes for e in timeline.events if op in e.op and e.is_scratch and e.num_bytes > 0]


SHAPES = [(2, 4, 4, 256, 64), (1, 8, 2, 200, 128), (3, 6, 1, 128, 80), (1, 2, 2, 130, 256), (2, 3, 3, 64, 32)]


@pytest.mark.parametrize("b, a, k, s, d", SHAPES)
def test_flash(b, a, k, s, d):
    def forward():
        q, key, v = (torch.empty(b, n, s, d, dtype=torch.bfloat16, requires_grad=True) for n in (a, k, k))
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            return F.scaled_dot_product_attention(q, key, v, is_causal=True, enable_gqa=k != a)

    (stage,) = flash_backward_buffers(b, a, k, s, d, value_bytes=2)
    assert scratch_of("flash_attention_backward", forward) == stage


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("b, a, k, s, d", SHAPES)
def test_efficient(b, a, k, s, d, dtype):
    def forward():
        q, key, v = (torch.empty(b, a, s, d, dtype=dtype, requires_grad=True) for _ in range(3))
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
            return F.scaled_dot_product_attention(q, key, v, is_causal=True)

    stages = efficient_backward_buffers(b, a, s, d, dtype.itemsize)
    assert scratch_of("efficient_attention_backward", forward) == [size for stage in stages for size in stage]


@pytest.mark.parametrize("head_dim, width", [(64, 64), (80, 96), (128, 128), (136, 192), (160, 192), (224, 256)])
def test_flash_adds_up_the_querys_gradient_in_heads_of_these_widths(head_dim, width):
    """flash_api.cpp, mha_bwd: round_multiple(head_size, head_size <= 128 ? 32 : 64)."""
    (stage,) = flash_backward_buffers(2, 3, 3, 130, head_dim, value_bytes=2)
    assert stage == [4 * 2 * 3 * 256, 4 * 2 * 3 * 256 * width]


def test_a_sort_of_one_tile_needs_no_scratch():
    """dispatch_radix_sort.cuh, Invoke: one block sorts num_items <= 256 threads * 9 items of 8 bytes."""
    assert sort_bytes(256 * 9, 9_999) == 1
    assert sort_bytes(256 * 9 + 1, 9_999) > 2 * 8 * 256 * 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_indices", [3072, 3073, 8192])
def test_an_embedding_sorts_many_indices_and_adds_rows_in_float32(num_indices, dtype):
    def forward():
        table = torch.empty(1000, 48, dtype=dtype, requires_grad=True)
        return F.embedding(torch.zeros(num_indices, dtype=torch.int64), table)

    stages = embedding_backward_buffers(num_indices, 1000, 48, dtype.itemsize)
    assert scratch_of("embedding_dense_backward", forward) == [size for stage in stages for size in stage]
    if num_indices == 3072:
        assert stages == []
    else:
        assert max(stages[-1]) == (num_indices // 10 + 1000) * 48 * 4
