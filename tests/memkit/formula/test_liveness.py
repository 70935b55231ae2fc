"""A list of operations against the same program in PyTorch: the bytes that are there whenever new ones are asked for.

The oracle is the CPU profiler's record of every allocation and free. Programs are drawn, with names that go out of
scope at drawn moments, and parts that are checkpointed.
"""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from memkit.formula import model
from memkit.formula.liveness import FINISHED, Walk
from memkit.formula.model import model_of
from memkit.formula.operations import SAME, Graph, Summed, Tensor
from memkit.formula.parameters import Parameter, count_parameters
from memkit.models import TINY_GPT2, TINY_LLAMA
from memkit.recipes import AUTOCAST_BF16
from memkit.setup import TrainingSetup

COUNT = 64  # float32 values in every tensor


class InPyTorch:
    """The operations in torch."""

    neg, tanh, add, mul = torch.neg, torch.tanh, torch.add, torch.mul

    def __init__(self):
        self.weight = torch.randn(COUNT, requires_grad=True)
        self.row = torch.randn(1, requires_grad=True)
        self.constant = torch.randn(COUNT)

    def swap(self, x):
        left, right = x.chunk(2)
        return torch.cat((right, left))

    def broadcast(self, x):
        return torch.mul(x, self.row)

    def checkpoint(self, run, x):
        return checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)

    def finish(self, x):
        loss = (x * self.constant).sum()
        del x  # gone before the backward, as in a training loop
        loss.backward()

    def events(self, program) -> list[int]:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            program(self)
        events = seen.profiler.kineto_results.events()
        return [event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes()]


class OnList:
    """The same operations as a list. What the interpreter's names hold is told after every line, as ``hold``."""

    def __init__(self):
        self.graph = Graph({"n": COUNT, "n/2": COUNT // 2, "1": 1})
        self.weight, self.row = (
            Tensor(
                axes,
                count,
                "float32",
                parameter=Parameter(name="", shape=(count,), kind=""),
                needs_grad=True,
            )
            for axes, count in (("n", COUNT), ("1", 1))
        )
        self.constant = Tensor(
            "n", COUNT, "float32", parameter=Parameter(name="", shape=(COUNT,), kind="")
        )

    def neg(self, x):
        return self.graph.op("neg", [x], "n")

    def tanh(self, x):
        return self.graph.op("tanh", [x], "n", out_by="")

    def add(self, x, y):
        return self.graph.op("add", [x, y], "n", ways=(SAME, SAME))

    def mul(self, x, y):
        return self.graph.op("mul", [x, y], "n", keeps=[x, y])

    def swap(self, x):
        left, right = self.graph.view("chunk", x, ["n/2", "n/2"], ["new"])
        return self.graph.op("cat", [right, left], "n", ways=(SAME, SAME))

    def broadcast(self, x):
        return self.graph.op(
            "mul", [x, self.row], "n", keeps=[x, self.row], ways=("new", Summed(is_product=True))
        )

    def checkpoint(self, run, x):
        return self.graph.checkpoint(run, x)

    def finish(self, x):
        self.loss = self.graph.op("sum", [self.mul(x, self.constant)], "", ways=(SAME,))
        self.graph.hold(x)
        self.graph.named[self.loss] = ""

    def events(self, program) -> list[int]:
        program(self)
        walk = Walk(SimpleNamespace(graph=self.graph, block_bytes=1, times=[1, 1], loss=self.loss))
        segments = (*walk.forward, *walk.backward)
        events = [
            (block, sign)
            for segment in segments
            for block, sign in segment.events
            if sign != FINISHED
        ]
        ends = [-walk.loss_gradient.num_bytes, -walk.with_loss[0].num_bytes]
        return [sign * block.num_bytes for block, sign in events] + ends


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
        program.append(
            (name, draw(st.integers(0, 9)), draw(st.integers(0, 9)), draw(st.booleans()), inner)
        )
    return program


def interpret(way, program, x):
    """The sum of all tensors that the instructions make of ``x`` and do not use; this function's names hold the others.

    In PyTorch a branch that leads nowhere is no part of the graph; on the list it is one, and no model has any.
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
            names.append(
                way.checkpoint(lambda x, inner=inner: interpret(way, inner, x), names[first])
            )
        else:
            names.append(getattr(way, name)(names[first]))
        hold(way, names)
        is_used.append(False)
        if is_dropped:
            del names[first], is_used[first]
    ends = [x for x, used in zip(names, is_used, strict=True) if not used]
    hold(way, names)
    names.clear()
    out = ends.pop()
    while ends:
        before, other = out, ends.pop()
        out = way.add(before, other)
        hold(way, [before, other, *ends])
        del before, other
    return out


def hold(way, names):
    """Tell a list what the interpreter's names are bound to; PyTorch sees it."""
    if isinstance(way, OnList) and way.graph.operations:
        way.graph.hold(*names)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(instructions())
def test_a_list_takes_the_bytes_that_its_program_takes_in_pytorch(program):
    def run(way):
        way.finish(interpret(way, program, way.neg(way.weight)))

    assert levels(OnList().events(run)) == levels(InPyTorch().events(run))


def test_the_comparison_can_fail():
    kept = lambda way: way.finish(way.neg(way.tanh(way.neg(way.weight))))
    not_kept = lambda way: way.finish(way.neg(way.neg(way.neg(way.weight))))
    assert levels(OnList().events(not_kept)) != levels(InPyTorch().events(kept))


def test_a_name_that_is_forgotten_shows():
    """Without ``hold`` a list frees what the program's names still have: the reason why models say what they bind."""
    program = [("neg", 0, 0, False, None), ("tanh", 1, 0, False, None), ("neg", 2, 0, False, None)]

    def run(way):
        way.finish(interpret(way, program, way.neg(way.weight)))

    forgetful = OnList()
    forgetful.graph.hold = lambda *names: None
    assert (
        levels(forgetful.events(run))
        != levels(InPyTorch().events(run))
        == levels(OnList().events(run))
    )


def test_autocasts_cast_is_made_once_and_forgotten_unless_kept():
    graph = Graph({"n": COUNT})
    weights = [
        Tensor(
            "n",
            COUNT,
            "float32",
            parameter=Parameter(name="", shape=(COUNT,), kind=""),
            needs_grad=needs_grad,
        )
        for needs_grad in (True, False)
    ]
    trained, frozen = (graph.cast(weight, "bfloat16") for weight in weights)
    assert (
        graph.cast(weights[0], "bfloat16") is trained
        and graph.cast(weights[1], "bfloat16") is not frozen
    )
    assert [op.is_remembered for op in graph.operations] == [True, False, False]
    assert graph.cast(trained, "bfloat16") is trained


@pytest.mark.parametrize(
    "setup",
    [
        TrainingSetup(model=TINY_GPT2, seq_len=64),
        TrainingSetup(
            model=TINY_LLAMA, seq_len=64, recomputation="full", precision=AUTOCAST_BF16, dropout=0.1
        ),
    ],
    ids=["plain", "checkpointed"],
)
def test_the_list_adds_up_to_the_walk(setup):
    """What the list of a block says that its operations make is what the walk's events make, and it ends where it
    began: all that is left after the backward are gradients."""
    model = model_of(setup, is_whole=True)
    made = [op for op in model.graph.operations if op.unit == 1 and not op.is_view]
    walk = Walk(model)
    events = [event for segment in walk.forward if segment.unit == 1 for event in segment.events]
    born = sum(block.asked_bytes for block, sign in events if sign > 0)
    assert born == sum(x.num_bytes for op in made for x in op.makes)
    left = {block for s in (*walk.forward, *walk.backward) for block, sign in s.events if sign > 0}
    left -= {block for s in (*walk.forward, *walk.backward) for block, sign in s.events if sign < 0}
    gradients = {block for block in left if block.gradient_of is not None}
    assert left - gradients == {walk.loss_gradient, *walk.with_loss}
    assert sum(block.gradient_of.count for block in gradients) == count_parameters(setup.model)


def test_an_addition_whose_module_is_loaded_again_replaces_its_own(monkeypatch):
    """Twice in the class, it would write its operations twice."""
    monkeypatch.setattr(model, "ADDITIONS", dict(model.ADDITIONS))
    for _ in range(2):

        @model.addition(lambda setup: True)
        class Again(model.TransformerOperations):
            pass

    made = model.model_class_of(TrainingSetup(model=TINY_GPT2))
    assert [kind for kind in made.__mro__ if kind.__name__ == "Again"] == [Again]
