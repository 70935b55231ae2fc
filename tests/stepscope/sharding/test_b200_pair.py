"""Two B200s and a 3.4 B model, measured by somebody else: DDP, a flat buffer and ZeRO-1 from the program alone.

The figures are GiB per rank, two sequences of 512 tokens each, fp32: github.com/csdiywithme/cs336-assignment2-systems,
commit bb85bbf8d8. Its DDP reduces each gradient in place; ``flat`` joins all of them into one buffer first; its sharded
optimizer gives each rank half of the parameters. Its FSDP, written here from its description, cuts each matrix in two:
whole in the forward are the matrix that multiplies and the next one, in the backward the one alone, and its gradient.
"""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from cs336_large import XL
from cs336_model import AdamW, Embedding, LanguageModel, Linear
from torch import Tensor, nn

from memkit.timeline import MemoryTimeline
from memkit.units import GIB
from stepscope.allocator.replay import replay_trace
from stepscope.tracing.trace import trace_script

B200 = {"compute_capability": (10, 0), "torch_version": "2.11.0+cu128"}
SHAPE = replace(XL, batch_size=2, seq_len=512)
MEASURED = {
    "DDP": (50.947, 52.089),
    "flat buffer": (50.946, 63.638),
    "ZeRO-1": (38.255, 39.397),
    "FSDP": (25.564, 33.068),
}
"""GiB before the optimizer's step, and at the peak."""


class Half:
    """A matrix of which this rank keeps one half of the values; whole for as long as it is asked for."""

    def __init__(self, weight: nn.Parameter):
        self.shape, self.next, self.whole = weight.shape, None, None
        weight.data = weight.detach().flatten()[: weight.numel() // 2].clone()

    def gather(self) -> Tensor:
        if self.whole is None:
            self.whole = torch.empty(self.shape, device="cuda")
        return self.whole

    def reduce(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's half of the sum, and the buffer that is being sent."""
        sent = torch.zeros(gradient.numel(), device="cuda")
        sent.copy_(gradient.flatten()).div_(2)
        return torch.empty(gradient.numel() // 2, device="cuda"), sent

    def used(self, ctx, output: Tensor, *saved: Tensor) -> Tensor:
        """The output; what its backward wants is kept, this matrix goes and the one after the next comes."""
        ctx.save_for_backward(*saved)
        ctx.half, self.whole = self, None
        if self.next is not None and self.next.next is not None:
            self.next.next.gather()
        return output


class HalvedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, half):
        return half.used(ctx, x @ half.gather().T, x, weight)

    @staticmethod
    def backward(ctx, grad):
        (x, _), whole = ctx.saved_tensors, ctx.half.gather()
        product = grad.flatten(0, -2).T @ x.flatten(0, -2)
        mine, _sent = ctx.half.reduce(product)
        down = grad @ whole
        ctx.half.whole = None
        return down, mine, None


class HalvedEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ids, weight, half):
        return half.used(ctx, nn.functional.embedding(ids, half.gather()), ids, weight)

    @staticmethod
    def backward(ctx, grad):
        ids, _ = ctx.saved_tensors
        whole = torch.ops.aten.embedding_dense_backward(grad, ids, ctx.half.shape[0], -1, False)
        return None, ctx.half.reduce(whole)[0], None


def halve(model: nn.Module) -> None:
    """Every matrix, in the order of the forward: gate, up, down."""
    layers = [module for module in model.modules() if isinstance(module, Linear | Embedding)]
    for number, (first, second) in enumerate(pairwise(layers)):
        if (
            second.weight.shape[0] > first.weight.shape[0]
            and first.weight.shape[0] < first.weight.shape[1]
        ):
            layers[number], layers[number + 1] = second, first  # down is registered before up
    halves = [Half(layer.weight) for layer in layers]
    for half, following in pairwise(halves):
        half.next = following
    model.register_forward_pre_hook(lambda *_: [half.gather() for half in halves[:2]] and None)
    for layer, half in zip(layers, halves, strict=True):
        kind = HalvedLinear if isinstance(layer, Linear) else HalvedEmbedding
        layer.forward = lambda x, layer=layer, half=half, kind=kind: kind.apply(
            x, layer.weight, half
        )


def program(way: str):
    """One rank's step; what is sent between the ranks takes no tensor of its own."""

    def build():
        with torch.device("cuda"):
            model = LanguageModel(SHAPE)
        if way == "FSDP":
            halve(model)
        parameters, mine, load = list(model.parameters()), [], 0
        for parameter in parameters:  # half of all values, in order
            if way != "ZeRO-1" or 2 * load < sum(p.numel() for p in parameters):
                mine.append(parameter)
                load += parameter.numel()
        optimizer = AdamW(mine)
        ids = torch.randint(0, SHAPE.vocab_size, (SHAPE.batch_size, SHAPE.seq_len), device="cuda")

        def step():
            model.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(
                model(ids).flatten(0, 1).float(), ids.flatten()
            ).backward()
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
    return replay_trace(trace_script(program(way), steps=2), **B200).timeline.for_step(2)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=() if way in ("ZeRO-1", "FSDP") else pytest.mark.exhaustive)
        for way in MEASURED
    ],
)
def test_two_b200(way):
    before, peak = (measured * GIB for measured in MEASURED[way])
    step = second_step(way)
    assert step.at("backward").total_bytes == pytest.approx(before, rel=0.01)
    assert step.peak_bytes == pytest.approx(peak, rel=0.01)
