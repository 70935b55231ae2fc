"""A model that exists, traced: as the same program written out, and as its own real run; it is left as it was."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from memkit.measuring.measure import measure_memory
from memkit.tracing.model_call import trace_model
from memkit.tracing.trace import trace_memory


class Tied(nn.Module):
    """A table that is the head as well, and a buffer."""

    def __init__(self, device="cpu"):
        super().__init__()
        self.table = nn.Embedding(100, 32, device=device)
        self.head = nn.Linear(32, 100, bias=False, device=device)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.ones(32, device=device))

    def forward(self, tokens):
        return self.head(self.table(tokens) * self.scale)


def written_out(device):
    def build():
        model = Tied(device)
        optimizer = torch.optim.AdamW(model.parameters())

        def step():
            F.cross_entropy(model(torch.zeros(64, dtype=torch.int64, device=device)), targets(device)).backward()
            optimizer.step()
            model.zero_grad()

        return step

    return build


def targets(device):
    return torch.zeros(64, dtype=torch.int64, device=device)


def loss_on(device):
    return lambda output: F.cross_entropy(output, targets(device))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_it_is_the_program_written_out(device):
    model = Tied()
    before = {name: (value.clone(), value.data_ptr()) for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(64, dtype=torch.int64)
    traced = trace_model(model, tokens, optimizer, loss=loss_on(device), device=device)
    oracle = trace_memory(written_out(device), device=device)
    for name in ("forward", "backward", "optimizer", "zero_grad"):
        ours, theirs = traced.at(name, 2), oracle.at(name, 2)
        assert (ours.weights, ours.gradients, ours.optimizer_states) == (
            theirs.weights, theirs.gradients, theirs.optimizer_states
        )  # fmt: skip
    if device == "cpu":
        measured = measure_memory(written_out(device), device=device)
        assert traced.peak_bytes == pytest.approx(measured.peak_bytes, rel=0.01)
    assert not optimizer.state and all(parameter.grad is None for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name][0]) and value.data_ptr() == before[name][1]


def test_a_model_on_meta_an_output_with_a_loss_and_arguments_by_name():
    class Out:
        def __init__(self, loss):
            self.loss = loss

    class WithLoss(nn.Linear):
        def forward(self, x, scale):
            return Out((super().forward(x) * scale).sum())

    model = WithLoss(1 << 14, 1 << 14, device="meta")
    timeline = trace_model(model, {"x": torch.ones(1, 1 << 14, device="meta"), "scale": 2.0})
    assert timeline.at("backward").weights == timeline.at("backward").gradients == 4 * ((1 << 28) + (1 << 14))


def test_an_output_without_a_number_is_refused():
    with pytest.raises(ValueError, match="type tuple: pass loss="):
        trace_model(nn.LSTM(4, 4), torch.ones(2, 3, 4), device="cpu")
