"""Recordings of runs that keep more from step to step: the line that does is named, and no line of a sound run is."""

import inspect

import pytest
import torch
from torch import nn

from memkit.models import TINY_GPT2, TINY_LLAMA
from memkit.program.transformer import training_build
from memkit.setup import TrainingSetup
from stepscope.advice.diagnosis import Diagnosis, diagnose_memory
from stepscope.allocator.replay import replay_trace
from stepscope.allocator.snapshots import predicted_snapshot
from stepscope.tool.program_report import report_on
from stepscope.tracing.trace import trace_script


class Run:
    """A small network, its optimizer, and a list that outlives the steps."""

    def __init__(self):
        layers = nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)
        self.model = nn.Sequential(*layers).to("cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.kept = []

    def batch(self):
        return torch.randn(512, 256, device="cuda")

    def train(self, loss):
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def keeps_losses():
    run = Run()

    def step():
        run.kept.append(run.model(run.batch()).square().mean())  # the leak
        run.train(run.model(run.batch()).square().mean())

    return step


def keeps_outputs():
    run = Run()

    def step():
        output = run.model(run.batch())  # the leak
        run.kept.append(output.detach())
        run.train(output.square().mean())

    return step


def keeps_what_hooks_see():
    run = Run()
    for layer in run.model:
        layer.register_forward_hook(lambda module, inputs, output: run.kept.append(output.detach()))

    def step():
        run.train(run.model(run.batch()).square().mean())  # the leak

    return step


def keeps_a_cache():
    run = Run()
    run.kept = torch.empty(0, 256, device="cuda")

    def step():
        run.train(run.model(run.batch()).square().mean())
        with torch.no_grad():
            run.kept = torch.cat([run.kept, run.model(run.batch())])  # the leak

    return step


def keeps_optimizers():
    run = Run()

    def step():
        run.kept.append(torch.optim.AdamW(run.model.parameters()))
        run.model(run.batch()).square().mean().backward()
        run.kept[-1].step()  # the leak
        run.kept[-1].zero_grad()

    return step


def recorded(build, steps: int) -> Diagnosis:
    """What is said of the recording that the run would leave."""
    return diagnose_memory(predicted_snapshot(replay_trace(trace_script(build, steps=steps))))


@pytest.mark.parametrize("steps", [6, 12])
@pytest.mark.parametrize(
    "build", [keeps_losses, keeps_outputs, keeps_what_hooks_see, keeps_a_cache, keeps_optimizers]
)
def test_the_line_that_keeps_more_is_named(build, steps):
    lines, first = inspect.getsourcelines(build)
    [marked] = [first + index for index, line in enumerate(lines) if "# the leak" in line]
    page = recorded(build, steps)
    assert page.growing[0].where.startswith(f"test_leaks.py:{marked} ")
    assert "what grows" in str(page) and "kept from step to step" in str(page)


def test_a_report_names_the_line_too():
    marked = inspect.getsourcelines(keeps_losses)[1] + 4
    words = "what grows", f"test_leaks.py:{marked} ", "is a leak", "made at the peak by"
    places = [*map(str(report_on(keeps_losses, steps=6)).index, words)]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "setup",
    [
        TrainingSetup(model=model, seq_len=64, grad_accum_steps=steps)
        for model in (TINY_GPT2, TINY_LLAMA)
        for steps in (1, 3)
    ],
)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_sound_run_has_none(setup, steps):
    page = recorded(training_build(setup), steps)
    assert not page.growing and "what grows" not in str(page)
