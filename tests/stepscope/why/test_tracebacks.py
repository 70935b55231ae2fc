"""Phase and line against programs that die: the tracebacks are Python's, IPython's and rich's own.

The card is the project's small one, whose allocator's counters are the oracle of the message's bytes.
"""

import io
import traceback

import pytest
import torch
from IPython.core.ultratb import VerboseTB
from rich.console import Console
from rich.traceback import Traceback

from memkit.units import MIB
from stepscope.small_card import SimulatedCard
from stepscope.why import why_it_died
from stepscope.why.tracebacks import frames_in

PROGRAM = """
import torch

def make(width=512):
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, width))

def train(model, optimizer, rows, steps=3):
    for _ in range(steps):
        loss = model(torch.ones(rows, 512)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

def evaluate(model, kept):
    with torch.no_grad():
        while True:
            kept.append(model(torch.ones(4096, 512)))

def resume(file):
    return torch.load(file)

def double(model):
    model.double()
"""
NUM_WEIGHTS = 2 * (512 * 512 + 512)


def line_of(code: str) -> int:
    """The number of the program's line that has this code."""
    [number] = [n for n, line in enumerate(PROGRAM.split("\n"), 1) if line.strip() == code]
    return number


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "my_training.py"
    path.write_text(PROGRAM, encoding="utf-8")
    names: dict = {}
    exec(compile(PROGRAM, str(path), "exec"), names)
    return names


def error_of(run, num_bytes: int) -> tuple[BaseException, SimulatedCard]:
    """What a run raises on so small a card."""
    with SimulatedCard(num_bytes) as card, pytest.raises(torch.OutOfMemoryError) as caught:
        run()
    return caught.value, card


def adamw(model, **choices):
    return torch.optim.AdamW(model.parameters(), **choices)


def case(name: str, names: dict, tmp_path):
    """A run that dies in this phase, on a card of so many bytes."""
    model, weights = names["make"](), 4 * NUM_WEIGHTS
    if name == "the forward":
        return lambda: names["train"](model, adamw(model), rows=8192), 30 * MIB
    if name == "the backward":
        # the outputs of both layers stand at the end of the forward, two gradients of such outputs in the backward
        return lambda: names["train"](model, adamw(model), rows=4096), weights + 46 * MIB
    if name == "optimizer.step()":
        return lambda: names["train"](model, adamw(model, foreach=True), rows=8), weights * 3
    if name == "an evaluation":
        return lambda: names["evaluate"](model, []), 60 * MIB
    if name == "loading a checkpoint":
        torch.save(torch.ones(16 * MIB), tmp_path / "checkpoint.pt")
        return lambda: names["resume"](tmp_path / "checkpoint.pt"), 8 * MIB
    return lambda: names["double"](model), weights + MIB


CASES = {
    "the forward": "loss = model(torch.ones(rows, 512)).square().mean()",
    "the backward": "loss.backward()",
    "optimizer.step()": "optimizer.step()",
    "an evaluation": "kept.append(model(torch.ones(4096, 512)))",
    "moving the model to the card": "model.double()",
}


@pytest.mark.parametrize(("phase", "code"), CASES.items())
def test_phase_line_and_bytes_of_a_program_that_dies(phase, code, program, tmp_path):
    error, card = error_of(*case(phase, program, tmp_path))
    answer = why_it_died("".join(traceback.format_exception(error)))
    own = answer.own_lines[0]
    assert (answer.death.phase.name, own.line, own.code) == (phase, line_of(code), code)
    allocator, message = card.allocator, answer.death.message
    assert message.allocated + message.in_pieces == pytest.approx(
        allocator.reserved_bytes, abs=MIB // 50
    )
    assert message.total == pytest.approx(allocator.driver.capacity_bytes, abs=MIB // 50)


@pytest.mark.parametrize("choices", [{"theme_name": "linux"}, {"include_vars": False}])
def test_a_notebooks_traceback_has_the_same_lines(choices, program, tmp_path):
    error, _ = error_of(*case("the backward", program, tmp_path))
    plain = why_it_died("".join(traceback.format_exception(error)))
    answer = why_it_died(VerboseTB(**choices).text(type(error), error, error.__traceback__))
    assert answer.row == plain.row == "backward"
    assert str(answer.own_lines[0]) == str(plain.own_lines[0])


def test_richs_traceback_has_the_same_line(program, tmp_path):
    error, _ = error_of(*case("the backward", program, tmp_path))
    file = io.StringIO()
    box = Traceback.from_exception(type(error), error, error.__traceback__, width=160)
    Console(file=file, width=160).print(box)
    answer = why_it_died(file.getvalue() + f"\n{type(error).__name__}: {error}")
    assert answer.row == "backward"
    assert answer.own_lines[0].line == line_of("loss.backward()")


def test_a_forward_that_a_step_runs_is_a_forward(program):
    model = program["make"]()
    optimizer = torch.optim.LBFGS(model.parameters())
    error, _ = error_of(
        lambda: optimizer.step(lambda: model(torch.ones(8192, 512)).mean()), 24 * MIB
    )
    assert why_it_died("".join(traceback.format_exception(error))).death.phase.name == "the forward"


def test_a_forward_that_a_backward_runs_again_is_a_backward(program):
    model, x = program["make"](), torch.ones(4096, 512)

    def run():
        out = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        hold = [torch.ones(2 * MIB)]
        out.mean().backward()
        del hold

    error, _ = error_of(run, 4 * NUM_WEIGHTS + 29 * MIB)
    assert (
        why_it_died("".join(traceback.format_exception(error))).death.phase.name == "the backward"
    )


def test_no_file_of_pythons_own_is_the_readers():
    frames = frames_in("".join(traceback.format_stack()))
    assert frames and not any("site-packages" in frame.file and frame.is_own for frame in frames)
    assert any(frame.is_own and frame.file == __file__ for frame in frames)
