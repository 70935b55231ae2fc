"""A program on paper against the same program in PyTorch: the bytes that are there whenever new ones are asked for.

The oracle is the CPU profiler's record of every allocation and free. Programs are drawn, with names that go out of
scope at drawn moments, and parts that are checkpointed.
"""


import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from memkit.formula import forward
from memkit.formula.backward import Backward
from memkit.formula.estimate import estimate_memory, remembered
from memkit.formula.paper import SAME, Leaf, Paper, Summed, Tensor
from memkit.formula.parameters import Parameter
from memkit.setup.models import TINY_LLAMA
from memkit.setup.recipes import AUTOCAST_BF16
from memkit.setup.training import TrainingSetup

COUNT = 64  # float32 values in every tensor


class InPyTorch:
    """The operations in torch."""

    neg, tanh, add, mul = torch.neg, torch.tanh, torch.add, torch.mul

    def __init__(self):
        self.weight, self.row = torch.randn(COUNT, requires_grad=True), torch.randn(1, requires_grad=True)
        self.constant = torch.randn(COUNT)

    def swap(self, x):
        left, right = x.chunk(2)
        return torch.cat((right, left))

    def broadcast(self, x):
        return torch.mul(x, self.row)

    def checkpoint(self, run, x):
        return checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)

    def finish(self, x):
        (x * self.constant).sum().backward()

    def events(self, program) -> list[int]:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            program(self)
        events = seen.profiler.kineto_results.events()
        return [event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes()]


class OnPaper:
    """The same operations on paper."""

    def __init__(self):
        self.paper = Paper({"n": COUNT, "1": 1}, block_bytes=1)
        self.weight, self.row = (
            Tensor(axes, count, "float32", source=Leaf(Parameter(name="", shape=(count,), kind=""), "float32"))
            for axes, count in (("n", COUNT), ("1", 1))
        )
        self.constant = Tensor("n", COUNT, "float32")

    def neg(self, x):
        return self.paper.run("neg", [x], "n")

    def tanh(self, x):
        return self.paper.run("tanh", [x], "n", out_kept_by="")

    def add(self, x, y):
        return self.paper.run("add", [x, y], "n", ways=(SAME, SAME))

    def mul(self, x, y):
        return self.paper.run("mul", [x, y], "n", keeps=[x, y])

    def swap(self, x):
        left, right = self.paper.view("chunk", x, ["n/2", "n/2"], ["new"])
        return self.paper.run("cat", [right, left], "n", ways=(SAME, SAME))

    def broadcast(self, x):
        return self.paper.run("mul", [x, self.row], "n", keeps=[x, self.row], ways=("new", Summed(is_product=True)))

    def checkpoint(self, run, x):
        return self.paper.checkpoint(run, x)

    def finish(self, x):
        loss = self.paper.run("sum", [self.mul(x, self.constant)], "", ways=(SAME,))
        backward = Backward(self.paper, loss)
        backward.run(self.paper.operations)
        self.left = backward.take_gradients()

    def events(self, program) -> list[int]:
        program(self)
        return [sign * block.num_bytes for block, sign in self.paper.events]


def levels(events: list[int]) -> list[tuple[int, int]]:
    """For each new block its bytes, and how many were there before it."""
    now, seen = 0, []
    for num_bytes in events:
        if num_bytes > 0:
            seen.append((num_bytes, now))
        now += num_bytes
    return [*seen, (0, now)]


@st.composite
def instructions(draw, can_checkpoint=True):
    """Operations as (name, positions of the inputs among the tensors that are left, is the last input dropped)."""
    program = []
    for _ in range(draw(st.integers(1, 6))):
        names = ["neg", "tanh", "add", "mul", "swap", "broadcast"] + ["checkpoint"] * can_checkpoint
        name = draw(st.sampled_from(names))
        inner = draw(instructions(can_checkpoint=False)) if name == "checkpoint" else None
        program.append((name, draw(st.integers(0, 9)), draw(st.integers(0, 9)), draw(st.booleans()), inner))
    return program


def interpret(way, program, x):
    """The sum of all tensors that the instructions make of ``x`` and do not use; this function's names hold the others.

    In PyTorch a branch that leads nowhere is no part of the graph; on paper it is one, and no model has any.
    """
    names, is_used = [x], [False]
    del x
    for name, first, second, is_dropped, inner in program:
        first, second = first % len(names), second % len(names)
        is_used[first] = True
        if name in ("add", "mul"):
            is_used[second] = True
            names.append(getattr(way, name)(names[first], names[second]))
        elif name == "checkpoint":
            names.append(way.checkpoint(lambda x, inner=inner: interpret(way, inner, x), names[first]))
        else:
            names.append(getattr(way, name)(names[first]))
        is_used.append(False)
        if is_dropped:
            del names[first], is_used[first]
    ends = [x for x, used in zip(names, is_used, strict=True) if not used]
    names.clear()
    out = ends.pop()
    while ends:
        out = way.add(out, ends.pop())
    return out


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(instructions())
def test_a_program_on_paper_takes_the_bytes_that_it_takes_in_pytorch(program):
    def run(way):
        x = interpret(way, program, way.neg(way.weight))
        way.finish(x)

    assert levels(OnPaper().events(run)) == levels(InPyTorch().events(run))


def test_the_comparison_can_fail():
    kept = lambda way: way.finish(way.neg(way.tanh(way.neg(way.weight))))
    not_kept = lambda way: way.finish(way.neg(way.neg(way.neg(way.weight))))
    assert levels(OnPaper().events(not_kept)) != levels(InPyTorch().events(kept))


def test_autocasts_cast_is_made_once_and_forgotten_unless_kept():
    paper = Paper({"n": COUNT}, block_bytes=1)
    weights = [Tensor("n", COUNT, "float32", source=Leaf(None, "float32")) for _ in range(2)]
    forgotten, kept = (paper.cast(weight, "bfloat16") for weight in weights)
    assert paper.cast(weights[0], "bfloat16") is forgotten and len(paper.events) == 2
    assert paper.cast(Tensor("n", COUNT, "bfloat16"), "bfloat16").storage is None
    paper.run("product", [kept], "", "bfloat16", keeps=[kept])
    blocks = forgotten.storage.block, kept.storage.block
    del forgotten, kept
    assert [block.is_alive for block in blocks] == [True, True]
    paper.casts.clear()
    assert [block.is_alive for block in blocks] == [False, True]


# Nothing but references decides when bytes go: no search for garbage, no tracer, no thread and no error of before.

CHECKPOINTED = TrainingSetup(model=TINY_LLAMA, recomputation="full", precision=AUTOCAST_BF16, dropout=0.1)


def test_an_error_in_the_middle_leaves_nothing_behind(monkeypatch):
    expected = list(estimate_memory(CHECKPOINTED).events)
    with monkeypatch.context() as patched:
        patched.setattr(forward.Forward, "logits", lambda model, x: 1 / 0)
        remembered.cache_clear()
        with pytest.raises(ZeroDivisionError) as caught:
            estimate_memory(CHECKPOINTED)
    assert list(estimate_memory(CHECKPOINTED).events) == expected and caught.value  # whose frames hold tensors still
