"""Sentences that were false, or true only somewhere: each as it stands now, and the number that it tells."""

import warnings

import torch
import torch.nn.functional as F
from cells import texts_of

from memkit import measure_memory, trace_memory


def attends():
    """A program whose peak is inside an attention without gradients; it makes no other large tensor."""
    scale = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([scale], lr=0.1)
    x = torch.ones(2, 8, 512, 64)

    def step():
        with torch.no_grad():
            F.scaled_dot_product_attention(x, x, x)
        scale.sum().backward()
        optimizer.step()

    return step


def test_a_trace_misses_scratch_that_no_operation_returns():
    """The profiler sees what the CPU's attention takes and gives back; each of its threads takes a tile of scores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced, measured = (of(attends, device="cpu", steps=1) for of in (trace_memory, measure_memory))
    assert traced.peak_bytes >= 2 * 2 * 8 * 512 * 64 * 4  # the operand and the result: no tensor is missed
    assert traced.peak_bytes + 64 * 512 * 4 <= measured.peak_bytes
    assert "may miss a kernel's scratch and a library's workspace" in texts_of("00")["columns-differ-read"]
    assert "misses no tensor that PyTorch allocates" not in "".join(texts_of("00").values())
