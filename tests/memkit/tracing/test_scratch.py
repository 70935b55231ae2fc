"""Scratch of CUDA kernels: what recorded runs took, and what follows from the sources' rules."""

import pytest
import torch
import torch.nn.functional as F

from memkit.formula.kernels import (
    efficient_backward_buffers,
    embedding_backward_buffers,
    flash_backward_buffers,
    sort_bytes,
)
from memkit.measure import measure_memory
from memkit.tracing.cuda import index_put_buffers, reduction_buffers
from memkit.tracing.trace import trace_memory


def meta(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_a_norms_gradient_as_two_recorded_runs_took_it():
    """A weight of 1,024 summed over 4 × 512 tokens took 16,777,216 B and 32 B, over 4 × 128 nothing."""
    assert reduction_buffers(meta(4, 512, 1024), (0, 1), 4) == [[16_777_216, 32]]
    assert reduction_buffers(meta(4, 128, 1024), (0, 1), 4) == []


def test_a_sum_down_the_columns_as_another_recorded_run_took_it():
    """Logits of 512 tokens × 10,000 words kept word by word: the sum took 41,156,608 B.

    That run is of another model and another card than the two above.
    """
    logits = meta(10_000, 4, 128).permute(1, 2, 0)
    assert reduction_buffers(logits, [-1], 4) == [[41_156_608, 16]]


def test_an_embeddings_gradient_as_two_recorded_runs_took_it():
    """512 and 2,048 indices into 10,000 rows: five buffers of 8 B an index; the sort's own was 1 B."""
    for tokens in (512, 2048):
        stages = index_put_buffers(
            meta(10_000, 1024), [meta(4, tokens // 4)], meta(4, tokens // 4, 1024), True
        )
        assert [size for stage in stages for size in stage] == [8 * tokens] * 5 + [1]
    assert index_put_buffers(meta(10_000, 1024), [meta(4, 128)], meta(4, 128, 1024), False) == []


def test_an_embeddings_backward_keeps_partial_sums_in_float32():
    """8,192 bf16 tokens, 4,096 wide: 819 full tens and a segment for each index, of 16 KiB each."""
    stages = embedding_backward_buffers(8192, 128_256, 4096, value_bytes=2)
    assert max(stages[-1]) == (819 + 8192) * 4096 * 4
    assert embedding_backward_buffers(3072, 100, 64, value_bytes=4) == []
    assert embedding_backward_buffers(3073, 100, 64, value_bytes=4)


def test_a_sum_of_all_is_split_over_the_threads_of_an_a100():
    """``setReduceConfig`` of Reduce.cuh: 108 processors, four blocks of 512 threads on each."""
    assert reduction_buffers(meta(2**24), None, 4) == [[4 * 108 * 4, 4]]


def test_a_radix_sort_takes_what_its_source_allocates():
    """``InvokeOnesweep`` of CUB: 1,024 B of counts a pass of 8 bits and a tile of 384 x 10 pairs, two copies if there
    are several passes, counters; 256 x 9 pairs are sorted by one block.
    """
    assert [sort_bytes(pairs, 255) for pairs in (2304, 2305)] == [1, 2 * 1024 + 256 + 255]
    assert [sort_bytes(pairs, 255) for pairs in (3840, 3841)] == [2559, 2559 + 1024]
    assert sort_bytes(3840, 256) == 2559 + 1024 + 2 * 3840 * 8


@pytest.mark.parametrize(
    "heads, kv_heads, length, head_dim, buffers",
    [
        (4, 4, 100, 40, [4096, 262_144]),  # softmax_d; dq_accum, of 128 rows and 64 columns
        (4, 2, 100, 40, [4096, 262_144, 64_000, 64_000]),  # dk_expanded, dv_expanded
        (1, 1, 128, 72, [1024, 98_304]),  # 96 columns
        (1, 1, 129, 130, [2048, 393_216]),  # 256 rows; above 128 columns by 64: 192
    ],
)
def test_the_flash_kernels_backward_takes_what_its_source_allocates(
    heads, kv_heads, length, head_dim, buffers
):
    """``mha_bwd`` of flash_api.cpp, for two sequences in 16 bits: rounded up, accumulated in float32."""
    assert flash_backward_buffers(2, heads, kv_heads, length, head_dim, 2) == [buffers]


@pytest.mark.parametrize(
    "length, head_dim, value_bytes, stages",
    [
        (64, 64, 2, [[256, 16_400]]),  # delta; a ``GradQTempStorage``
        (65, 72, 2, [[18_720] * 3 + [260], [260, 4 * 16_400 + 2 * 64 * 128 * 4]]),
        (65, 72, 4, [[18_720, 260], [260, 4 * 16_400]]),
    ],
)
def test_the_efficient_kernels_backward_takes_what_its_source_allocates(
    length, head_dim, value_bytes, stages
):
    """``workspace_size`` of kernel_backward.h: of a block's storage, a lock, a counter and two words beside 64 x 64
    floats; in 16 bits, where a row does not fit the registers, dk and dv for 64 keys too. Before it, outside the
    kernel for 16-bit heads up to 64, attention_backward.cu computes delta of the two factors in float32.
    """
    assert efficient_backward_buffers(1, 1, length, head_dim, value_bytes) == stages


def test_scratch_stands_beside_the_operation_and_is_gone_after_it():
    def build():
        weight = torch.ones(1024, device="cuda", requires_grad=True)
        x = torch.randn(4, 512, 1024, device="cuda")

        def step():
            (x * weight).sum().backward()

        return step

    timeline = trace_memory(build, steps=1)
    born = [
        event for event in timeline.events if event.is_scratch and event.num_bytes == 16_777_216
    ]
    assert [event.phase for event in born] == ["backward"]
    assert (
        timeline.at("backward").total_bytes < timeline.at("backward peak").total_bytes - 16_777_216
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.binary_cross_entropy, F.l1_loss])
def test_a_loss_that_is_one_number_may_hold_the_bytes_of_all_its_elements(loss, reduction, device):
    """torch makes three of them smaller in place; the measurement shows which."""

    def build(device):
        held, target = [], torch.full((64, 300), 0.5, device=device)

        def step():
            values = torch.full((64, 300), 0.3, device=device, requires_grad=True)
            held[:] = [loss(values, target, reduction=reduction)]
            held[0].sum().backward()

        return step

    measured = measure_memory(lambda: build("cpu"), device="cpu")
    traced = trace_memory(lambda: build(device), device=device)
    for name in ("forward", "backward"):
        assert abs(traced.at(name, 2).total_bytes - measured.at(name, 2).total_bytes) < 5 * 512
    assert abs(traced.peak_bytes - measured.peak_bytes) < 5 * 512


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_softmax_copies_what_is_not_contiguous(function, is_transposed):
    def build():
        x = torch.randn(4, 300, 64)
        return lambda: function(x.transpose(1, 2) if is_transposed else x, dim=1)

    traced, measured = trace_memory(build, device="cpu"), measure_memory(build, device="cpu")
    assert abs(traced.peak_bytes - measured.peak_bytes) <= 64


MIXED = {
    "a mask times float32": lambda x: (x * (x > 0)).sum(),
    "a mask over rows": lambda x: (x * (x[:, :1] > 0)).sum(),
    "bf16 beside float32": lambda x: (x + x.bfloat16()).sum(),
    "whole numbers over each other": lambda x: (
        torch.ones(64, 300) / torch.ones(64, 300).long() * x
    ).sum(),
    "compared": lambda x: ((x > 0) == x).sum() + x.sum(),
    "one-hot": lambda x: (
        torch.nn.functional.one_hot(torch.zeros(64, dtype=torch.int64), 300) * x
    ).sum(),
    "attention that masks whole rows": lambda x: torch._safe_softmax(x, -1).sum(),
}


@pytest.mark.parametrize("name", MIXED)
def test_operands_of_two_dtypes_and_made_zeros_take_what_torchs_cpu_takes(name):
    def build():
        x = torch.nn.Parameter(torch.randn(64, 300))

        def step():
            MIXED[name](x).backward()
            x.grad = None

        return step

    traced, measured = trace_memory(build, device="cpu"), measure_memory(build, device="cpu")
    assert abs(traced.peak_bytes - measured.peak_bytes) <= 64
