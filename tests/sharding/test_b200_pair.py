"""Two B200s and a 3.4 B model, measured by somebody else: DDP, a flat buffer and ZeRO-1 from the program alone.

The figures are GiB per rank, two sequences of 512 tokens each, fp32: github.com/csdiywithme/cs336-assignment2-systems,
commit bb85bbf8d8. Its DDP reduces each gradient in place; ``flat`` joins all of them into one buffer first; its sharded
optimizer gives each rank half of the parameters.
"""

from dataclasses import replace
from functools import cache

import pytest
import torch
from cs336_large import XL
from cs336_model import AdamW, LanguageModel

from memkit.allocator.trace_replay import replay_trace
from memkit.timeline import MemoryTimeline
from memkit.tracing.trace import trace_memory
from memkit.units import GIB

B200 = {"compute_capability": (10, 0), "torch_version": "2.11.0+cu128"}
SHAPE = replace(XL, batch_size=2, seq_len=512)
MEASURED = {"DDP": (50.947, 52.089), "flat buffer": (50.946, 63.638), "ZeRO-1": (38.255, 39.397)}
"""GiB before the optimizer's step, and at the peak."""

FSDP_PEAK = 33.068


def program(way: str):
    """One rank's step; what is sent between the ranks takes no tensor of its own."""

    def build():
        with torch.device("cuda"):
            model = LanguageModel(SHAPE)
        parameters, mine, load = list(model.parameters()), [], 0
        for parameter in parameters:  # half of all values, in order
            if way != "ZeRO-1" or 2 * load < sum(p.numel() for p in parameters):
                mine.append(parameter)
                load += parameter.numel()
        optimizer = AdamW(mine)
        ids = torch.randint(0, SHAPE.vocab_size, (SHAPE.batch_size, SHAPE.seq_len), device="cuda")

        def step():
            model.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten()).backward()
            if way == "flat buffer":
                flat, start = torch.cat([p.grad.reshape(-1) for p in parameters]), 0
                for parameter in parameters:
                    parameter.grad.copy_(flat[start : start + parameter.numel()].view_as(parameter))
                    start += parameter.numel()
                del flat
            optimizer.step()

        return step

    return build


@cache
def second_step(way: str) -> MemoryTimeline:
    return replay_trace(trace_memory(program(way), steps=2), **B200).timeline.for_step(2)


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way == "ZeRO-1" else pytest.mark.exhaustive) for way in MEASURED]
)
def test_two_b200(way):
    before, peak = (measured * GIB for measured in MEASURED[way])
    step = second_step(way)
    assert step.at("backward").total_bytes == pytest.approx(before, rel=0.01)
    assert step.peak_bytes == pytest.approx(peak, rel=0.01)


def test_fsdp_explained():
    """Their own FSDP: half of weights and states, the same activations, one block of weights whole; no gradient yet."""
    forward = second_step("ZeRO-1").at("forward peak")
    besides = forward.total_bytes - forward.weights - forward.optimizer_states
    block = 4 * (4 * SHAPE.hidden_size**2 + 3 * SHAPE.hidden_size * SHAPE.ff_size)
    assert forward.weights / 2 + 2 * forward.weights / 2 + besides + block == pytest.approx(FSDP_PEAK * GIB, rel=0.01)
