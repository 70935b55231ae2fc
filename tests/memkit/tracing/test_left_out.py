"""What the kit's trace says of what it does not know: a sentence beside its number, and 1.0 for a value."""

import pytest
import torch
from torch import nn

from memkit.models import TINY_GPT2
from memkit.program.transformer import training_build
from memkit.setup import TrainingSetup
from memkit.tracing.trace import trace_memory


@pytest.mark.parametrize(
    "device, said", [("cuda", "the workspace that cuDNN takes"), ("cpu", "measure it there")]
)
def test_what_a_trace_leaves_out_stands_beside_its_number(device, said):
    def build():
        layer = nn.Conv1d(5, 8, 3, device=device)
        return lambda: layer(torch.ones(4, 5, 8, device=device)).sum().backward()

    assert said in str(trace_memory(build, device=device)) and "conv" in str(
        trace_memory(build, device=device)
    )
    setup = TrainingSetup(model=TINY_GPT2, seq_len=16, device=device)
    assert said not in str(trace_memory(training_build(setup), device=device))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_value_that_is_printed_is_one_and_a_whole_number_is_zero(device):
    seen = []

    def step():
        loss = nn.Linear(4, 4, device=device)(torch.ones(2, 4, device=device)).sum()
        seen.extend((loss.item(), float(loss), loss.tolist(), float(f"{loss:.3f}")))
        seen.append(torch.ones(3, device=device).long().sum().item())

    trace_memory(lambda: step, device=device, steps=1)
    assert seen == [1.0, 1.0, 1.0, 1.0, 0] and isinstance(seen[-1], int)
