"""Programs whose shapes follow from values: traced with the number that the run really has, they equal the run."""

import re

import pytest
import torch
from torch import nn

from memkit.measure import measure_memory
from stepscope.tracing.refusals import NeedsValues
from stepscope.tracing.trace import trace_script

ROWS = 24
NUMBERS = 64
"""Bytes of Python's numbers, which only a measurement sees."""


def mask_of(device, num_true=ROWS):
    return (torch.arange(64, device=device) < num_true) & (torch.rand(64, device=device) >= 0)


def masked(device):
    net = nn.Linear(32, 32, device=device)
    return lambda: (
        net(torch.randn(64, 32, device=device))[mask_of(device)].square().sum().backward()
    )


def selected(device):
    return lambda: (
        torch.randn(64, device=device, requires_grad=True)
        .masked_select(mask_of(device))
        .sum()
        .backward()
    )


def routed(device):
    net = nn.Linear(32, 32, device=device)

    def step():
        x, chosen = torch.randn(64, 32, device=device), mask_of(device)
        rows = chosen.nonzero().squeeze(1)
        torch.zeros(64, 32, device=device).index_add(0, rows, net(x[rows])).sum().backward()

    return step


def branched(device):
    net = nn.Linear(32, 32, device=device)

    def step():
        loss = net(torch.randn(64, 32, device=device)).square().sum()
        if loss > 0:
            loss.backward()

    return step


def sliced(device):
    net = nn.Linear(32, 32, device=device)
    return lambda: (
        net(torch.randn(64, 32, device=device)[: mask_of(device).sum()]).square().sum().backward()
    )


def counted(device):
    net = nn.Linear(32, 32, device=device)
    weights = torch.rand(64, device=device)
    return lambda: (
        (
            net(torch.randn(ROWS, 32, device=device)).sum(1)
            * torch.bincount(torch.arange(64, device=device) % ROWS, weights)
        )
        .sum()
        .backward()
    )


PROGRAMS = [masked, selected, routed, branched, sliced]


def line_asked_for(program, device) -> str:
    """The line that the refusal offers."""
    with pytest.raises(NeedsValues) as refusal:
        trace_script(lambda: program(device), device=device)
    offered = re.search(r"assume=\{'(test_assumed.py:\d+)': 128\}", str(refusal.value))
    assert offered, str(refusal.value)
    return offered[1]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_traced_with_its_own_number_takes_what_a_run_takes(program):
    line = line_asked_for(program, "cpu")
    traced = trace_script(lambda: program("cpu"), device="cpu", assume={line: ROWS})
    measured = measure_memory(lambda: program("cpu"), device="cpu")
    for name in ("forward", "backward"):
        assert abs(traced.at(name, 2).total_bytes - measured.at(name, 2).total_bytes) <= NUMBERS
    assert abs(traced.peak_bytes - measured.peak_bytes) <= 0.02 * measured.peak_bytes + NUMBERS


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_traced_by_cudas_rules_as_well(program):
    line = line_asked_for(program, "cuda")
    few, many = (
        trace_script(lambda: program("cuda"), assume={line: number}).peak_bytes
        for number in (1, 64)
    )
    assert few < many or program in (branched, selected) and few <= many


@pytest.mark.parametrize(
    "bad, words",
    [
        ({"train.py": 8}, "no line such as"),
        ({"train.py:4": -1}, "zero or more"),
        ({"train.py:4": "8"}, "zero or more"),
        ({"train.py:4": 8}, "nothing on train.py:4 asked for values"),
    ],
)
def test_an_assumption_that_cannot_be_used_is_refused(bad, words):
    with pytest.raises(ValueError, match=words):
        trace_script(lambda: lambda: torch.ones(8, device="cuda"), assume=bad)


def test_a_count_with_minlength_has_so_many_bins():
    """As a confusion matrix is counted; the kinds of number are torch's own."""
    kinds, told = (torch.float32, torch.float64, torch.float16), {"cpu": [], "cuda": []}

    def step(device):
        x = torch.randint(5, (64,), device=device)
        for weights in (None, *(torch.rand(64, device=device).to(kind) for kind in kinds)):
            bins = torch.bincount(x, weights, minlength=25)
            told[device].append((bins.shape, bins.dtype))

    trace_script(lambda: lambda: step("cuda"), steps=1)
    step("cpu")
    assert told["cuda"] == told["cpu"]


def generated(device):
    """A sampling loop as libraries write it: it ends when every row has drawn the end, or at eight tokens."""
    table = torch.randn(16, 16, device=device)

    def step():
        tokens = torch.randint(16, (4, 1), device=device)
        unfinished = torch.ones(4, dtype=torch.long, device=device)
        while True:
            chosen = table[tokens[:, -1]].softmax(-1).multinomial(1)
            tokens = torch.cat([tokens, chosen], 1)
            is_done = torch.full((4,), False, device=device) | (chosen[:, 0] == 99)
            is_done = is_done | torch.full((4,), tokens.shape[1] >= 8, device=device)
            unfinished = unfinished & ~is_done
            if unfinished.max() == 0:
                return

    return step


def test_a_loop_that_is_told_not_to_stop_ends_where_its_length_does():
    line = line_asked_for(generated, "cpu")
    traced = trace_script(lambda: generated("cpu"), device="cpu", assume={line: 0})
    measured = measure_memory(lambda: generated("cpu"), device="cpu")
    concatenated = [
        [event.num_bytes for event in run.events if "cat" in event.op and event.num_bytes > 0]
        for run in (traced, measured)
    ]
    assert concatenated[0] == concatenated[1] and len(concatenated[0]) == 2 * 7


def test_no_number_is_offered_where_none_can_answer():
    def build():
        data = torch.randn(5, 4, 8)
        return lambda: torch.repeat_interleave(data.flatten().long())

    with pytest.raises(
        NeedsValues, match=r"test_assumed.py:\d+ .*repeat_interleave.* use measure_memory$"
    ):
        trace_script(build, device="cpu")


ASSERTED = """
def check(x):
    assert (x >= 0).all()
    assert not (x < 0).any(), f"of {len(x)}"
    assert len(x) and (x >= 0).all()
    return x
"""
"""Text: pytest writes the asserts of a test's file anew."""


def test_an_assert_is_taken_to_hold():
    """Oracle: Python, where each of these holds for real; what a program tests otherwise is asked for."""

    def build(check):
        layer = torch.nn.Linear(8, 8, device="cuda")
        return lambda: check(layer(torch.ones(4, 8, device="cuda"))).sum().backward()

    exec(ASSERTED, names := {})
    names["check"](torch.ones(3))
    for wrong in (-1.0, float("nan")):
        with pytest.raises(AssertionError):
            names["check"](torch.tensor([wrong]))
    assert trace_script(lambda: build(names["check"])).peak_bytes > 0
    with pytest.raises(NeedsValues, match="__bool__"):
        trace_script(lambda: build(lambda x: x if (x >= 0).all() else None))
