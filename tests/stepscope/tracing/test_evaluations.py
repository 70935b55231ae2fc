"""A model that runs again without gradients is followed once: what the trace says is what it says of every call."""

from unittest.mock import patch

import pytest
import torch
from torch import nn

from stepscope import trace_script
from stepscope.tracing.evaluations import Evaluations


class Counting(nn.Module):
    """Two linear layers that count how often they ran, and keep or ask what a test wants of them."""

    def __init__(self, does: str = ""):
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 256), nn.Linear(256, 64)
        self.norm = nn.BatchNorm1d(256)
        self.runs, self.does, self.kept = 0, does, []

    def forward(self, x):
        self.runs += 1
        h = self.norm(self.inner(x)).relu()
        if self.does == "keeps":
            self.kept.append(h)
        if self.does == "asks" and bool((x > 0).all()):
            h = h * 2
        y = self.outer(h)
        return {"all": y, "last": y[:, -1], "rows": len(x)}


def build_of(evaluations, made: list, does: str = ""):
    """``evaluations(model)`` before the first step, and in each step."""

    def build():
        model = Counting(does).cuda()
        made.append(model)
        evaluations(model)

        def step():
            evaluations(model)
            model(torch.ones(8, 64, device="cuda"))["all"].sum().backward()
            model.zero_grad()

        return step

    return build


def traced(evaluations, does: str = "", every: bool = False):
    """The trace, and how often ``forward`` ran; ``every``: with torch's own ``Module.__call__``."""
    made = []
    if every:
        with patch.object(Evaluations, "around", lambda self, call: call):
            trace = trace_script(build_of(evaluations, made, does))
    else:
        trace = trace_script(build_of(evaluations, made, does))
    return trace, made[0].runs


@torch.no_grad()
def ten_alike(model):
    for _ in range(10):
        out = model(torch.ones(32, 64, device="cuda"))
        assert out["all"].shape == (32, 64) and out["last"].shape == (32,) and out["rows"] == 32
        assert out["last"].stride() == (64,) and out["all"].device.type == "cuda"
        del out


@torch.no_grad()
def under_more_and_more(model):
    held = []
    for _ in range(4):
        model(torch.ones(32, 64, device="cuda"))
        held.append(torch.ones(1000, device="cuda"))


@torch.no_grad()
def of_two_shapes(model):
    for rows in (8, 16, 8, 16, 8):
        model(torch.ones(rows, 64, device="cuda"))


@torch.no_grad()
def results_held(model):
    held = [model(torch.ones(32, 64, device="cuda"))["last"] for _ in range(4)]
    assert len({each.untyped_storage()._cdata for each in held}) == 4


@torch.no_grad()
def each_in_autocast(model):
    for _ in range(10):
        with torch.autocast("cuda", torch.bfloat16):
            assert model(torch.ones(32, 64, device="cuda"))["all"].dtype == torch.bfloat16


@torch.no_grad()
def all_in_one_autocast(model):
    with torch.autocast("cuda", torch.bfloat16):
        for _ in range(10):
            model(torch.ones(32, 64, device="cuda"))


@torch.no_grad()
def under_less_and_less(model):
    held = [torch.ones(100_000, device="cuda") for _ in range(4)]
    while held:
        model(torch.ones(32, 64, device="cuda"))
        held.pop()


@pytest.mark.parametrize(
    ("evaluations", "runs_a_phase", "all_a_phase"),
    [
        (ten_alike, 1, 10),
        (of_two_shapes, 2, 5),
        (under_more_and_more, 4, 4),
        (results_held, 4, 4),
        (each_in_autocast, 1, 10),
        (all_in_one_autocast, 2, 10),
    ],
)
def test_the_trace_says_what_it_says_of_every_call(evaluations, runs_a_phase, all_a_phase):
    trace, runs = traced(evaluations)
    whole, all_runs = traced(evaluations, every=True)
    assert trace.instants == whole.instants
    # init, two steps, and one forward with gradients in each of them
    assert (runs, all_runs) == (3 * runs_a_phase + 2, 3 * all_a_phase + 2)


@pytest.mark.parametrize(
    ("evaluations", "does"),
    [(ten_alike, "keeps"), (ten_alike, "asks"), (under_less_and_less, "keeps")],
)
def test_a_call_that_keeps_or_asks_is_followed_each_time(evaluations, does):
    trace, runs = traced(evaluations, does)
    whole, all_runs = traced(evaluations, does, every=True)
    assert trace.instants == whole.instants
    assert runs == all_runs


def test_a_model_that_is_let_go_of_leaves_the_memory():
    def build():
        for _ in range(3):
            ten_alike(Counting().cuda())

        def step():
            torch.ones(1, device="cuda", requires_grad=True).sum().backward()

        return step

    trace = trace_script(build)
    assert trace.at("init").total_bytes == 0
