"""What oneDNN takes, asked by one small call, against torch's profiler over the whole program; what is only told."""

import warnings

import pytest
import torch
from torch import nn

from memkit.measuring.measure import measure_memory
from memkit.tracing import libraries
from memkit.tracing.trace import trace_memory

NUMBERS = 64
"""Bytes of Python's numbers, which only a measurement sees."""

IMAGES, SEQUENCES, ROWS = (2, 16, 12, 12), (4, 10, 32), (64, 96)
LAYERS = [
    (lambda **to: nn.Conv2d(16, 32, 3, padding=1, **to), IMAGES, torch.float32),
    (lambda **to: nn.Conv2d(16, 16, 7, padding=3, groups=16, **to), IMAGES, torch.float32),
    (lambda **to: nn.Conv2d(16, 8, 4, stride=4, **to), IMAGES, torch.bfloat16),
    (lambda **to: nn.ConvTranspose2d(16, 8, 3, stride=2, **to), IMAGES, torch.float32),
    (lambda **to: nn.Conv1d(10, 20, 5, dilation=2, bias=False, **to), SEQUENCES, torch.float32),
    (lambda **to: nn.LSTM(32, 48, 2, dropout=0.1, **to), SEQUENCES, torch.float32),
    (lambda **to: nn.LSTM(32, 48, batch_first=True, bidirectional=True, **to), SEQUENCES, torch.float32),
    (lambda **to: nn.Linear(96, 200, **to), ROWS, torch.bfloat16),
    (lambda **to: nn.Linear(96, 200, bias=False, **to), ROWS, torch.float16),
]
NAMES = "plain", "depthwise", "bf16", "transposed", "dilated", "LSTM", "both ways", "product, bf16", "product, fp16"


def program(make, shape, dtype):
    """Layers of one kind, whose own scratch is the peak: states and activations are small beside it."""

    def build():
        layer = make(dtype=dtype)
        x = torch.ones(shape, dtype=dtype, requires_grad=True)

        def step():
            out = layer(x)
            (out[0] if isinstance(out, tuple) else out).sum().backward()
            layer.zero_grad()
            x.grad = None

        return step

    return build


@pytest.mark.parametrize("make, shape, dtype", LAYERS, ids=NAMES)
def test_what_onednn_takes_is_the_profilers(make, shape, dtype):
    build = program(make, shape, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = trace_memory(build, device="cpu")
    measured = measure_memory(build, device="cpu")
    for name in ("forward peak", "backward peak"):
        ours, theirs = (timeline.at(name, step=2).total_bytes for timeline in (traced, measured))
        assert abs(ours - theirs) <= NUMBERS, name


@pytest.mark.parametrize("limit", ["MAX_FLOPS", "MAX_BYTES"])
def test_a_large_call_is_not_made_and_told_with_a_size(monkeypatch, limit):
    build = program(*LAYERS[0])
    scratch = sum(e.num_bytes for e in trace_memory(build, device="cpu").events if e.is_scratch and e.num_bytes > 0)
    monkeypatch.setattr(libraries, limit, 0)
    monkeypatch.setattr(libraries, "CALLS", {})
    with pytest.warns(UserWarning, match="workspace that oneDNN takes is not in the trace, about") as caught:
        without = trace_memory(build, device="cpu")
    assert scratch > 0 and not any(event.is_scratch for event in without.events)
    assert len(caught) == 1 and set(libraries.CALLS.values()) == {None}


def test_under_a_profiler_of_ones_own_nothing_is_asked():
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities), pytest.warns(UserWarning, match="oneDNN"):
        trace_memory(program(*LAYERS[5]), device="cpu")


def test_a_product_in_float32_asks_nobody(monkeypatch):
    monkeypatch.setattr(libraries, "made", lambda *_: pytest.fail("asked"))
    monkeypatch.setattr(libraries, "CALLS", {})
    trace_memory(program(lambda **to: nn.Linear(96, 200, **to), ROWS, torch.float32), device="cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("batch", [(), (5,)], ids=["one matrix", "five"])
@pytest.mark.parametrize("is_transposed", [False, True], ids=["plain", "transposed"])
def test_a_product_too_large_to_be_made_is_asked_by_a_part_of_it(monkeypatch, dtype, batch, is_transposed):
    """Kernels that keep the result in float32 are followed to the byte, blocks of the factors within a few MiB."""
    sizes = {"left": (*batch, 700, 900), "right": (*batch, 900, 1100)}
    left, right = (torch.zeros(shape, dtype=dtype) for shape in sizes.values())
    if is_transposed:
        right = right.mT.contiguous().mT
    out = left @ right
    product = torch.ops.aten.bmm.default if batch else torch.ops.aten.mm.default
    whole = libraries.made(product, (left, right)).scratch_bytes
    monkeypatch.setattr(libraries, "MAX_FLOPS", 10**8)
    asked = libraries.asked_of_product(product, (left, right), out)
    assert asked.result_bytes == (out.nbytes,)
    if whole == 4 * 700 * 1100 + 128:
        assert abs(asked.scratch_bytes - whole) <= NUMBERS
    else:
        assert abs(asked.scratch_bytes - whole) <= 2 * 2**20 and (asked.scratch_bytes > 0) == (whole > 0)


@pytest.mark.parametrize("results, rest, grows", [(1, 128, True), (2, 256, True), (1, 257, False), (0, 4096, False)])
@pytest.mark.parametrize("is_expanded", [False, True])
def test_results_in_float32_grow_with_the_product_and_packed_blocks_do_not(
    monkeypatch, results, rest, grows, is_expanded
):
    """oneDNN as its source has it stands in for the processor's own, so that the answer is every processor's."""
    asked, rest = [], rest * torch.get_num_threads()

    def onednn(_, factors):
        (rows, inner), (_, columns) = (x.shape for x in factors)
        asked.append((2 * rows * inner * columns, 4 * results * rows * columns + rest))
        return libraries.Call(asked[-1][1], (2 * rows * columns,))

    monkeypatch.setattr(libraries, "made", onednn)
    monkeypatch.setattr(libraries, "MAX_FLOPS", 10**8)
    left = torch.zeros(1 if is_expanded else 40, 9000, dtype=torch.bfloat16).expand(40, 9000)
    right = torch.zeros(9000, 1100, dtype=torch.bfloat16)
    call = libraries.asked_of_product(torch.ops.aten.mm.default, (left, right), left @ right)
    copied = 2 * 40 * 9000 if is_expanded else 0  # BLAS reads no matrix whose rows are one row
    assert call.scratch_bytes - copied == (4 * results * 40 * 1100 + rest if grows else asked[-1][1])
    assert call.result_bytes == (2 * 40 * 1100,) and [flops <= most for (flops, _), most in zip(asked, (10**7, 10**8))]


def test_a_matrix_of_one_row_is_no_corner_that_torch_keeps_from_onednn():
    """Products of at most 16 · 16 · 16 are torch's own (``use_mkldnn_bf16_matmul``, mkldnn/Matmul.cpp)."""
    left, right = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((3, 1, 1024), (3, 1024, 7)))
    whole = libraries.made(torch.ops.aten.bmm.default, (left, right))
    assert libraries.asked_of_product(torch.ops.aten.bmm.default, (left, right), left @ right) == whole
