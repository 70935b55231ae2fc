"""What lessons write in their cells counts as the trace and torch do; ``memkit.by_hand`` has what others import."""

import ast
import inspect

import pytest
import torch
import torch.nn.functional as F
from cells import texts_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from book.exercises.chapter_01 import peak_by_hand
from memkit import TrainingSetup, by_hand, estimate_memory, models
from memkit.recipes import FUSED_ADAMW

WRITTEN = {
    "Meter": ("00", "meter"),
    "Block": ("01", "block"),
    "cast": ("06", "four-numbers"),
    "Fp8Product": ("06", "fp8-product"),
}
"""Name, and the cell that writes it."""


def code_of(source: str, name: str) -> str:
    """The definition of a name, without docstrings, comments and layout."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            for inner in ast.walk(node):
                match getattr(inner, "body", None):
                    case [ast.Expr(value=ast.Constant()), *_] as body:
                        del body[0]
            return ast.dump(node)
    raise AssertionError(f"{name} is not defined there")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_lesson_writes_what_later_lessons_import(name):
    number, cell = WRITTEN[name]
    assert code_of(texts_of(number)[cell], name) == code_of(inspect.getsource(by_hand), name)


def test_peak_by_hand_is_the_solution_of_its_exercise():
    solution = texts_of("01")["ex-1-a-solution"].partition("```python\n")[2].partition("```")[0]
    assert code_of(solution, "peak_by_hand") == code_of(
        inspect.getsource(peak_by_hand), "peak_by_hand"
    )


@pytest.mark.parametrize("batch, seq", [(1, 64), (1, 1024), (8, 1024)])
@pytest.mark.parametrize(
    "shape, config",
    [(by_hand.GPT2_SMALL, models.GPT2_SMALL), (by_hand.GPT2_LARGE, models.GPT2_LARGE)],
)
def test_meter_hand_and_formula_agree(shape, config, batch, seq):
    with FakeTensorMode(), by_hand.Meter() as meter:
        by_hand.two_steps(by_hand.GPT(**shape), batch, seq)
    setup = TrainingSetup(model=config, optimizer=FUSED_ADAMW, micro_batch_size=batch, seq_len=seq)
    assert abs(meter.peak / estimate_memory(setup).peak_bytes - 1) < 1e-3
    by_sums = max(peak_by_hand(**shape, batch=batch, seq=seq).values())
    assert abs(by_sums / meter.peak - 1) < 1e-3


def test_the_meter_counts_storages_once_and_sees_them_go():
    with by_hand.Meter() as meter:
        x = torch.zeros(1000)
        view, same = x[10:], x.reshape(10, 100)
        assert meter.now == 4000
        del x, view, same
        assert (meter.now, meter.peak, meter.curve) == (0, 4000, [4000, 0])


def written_in(number: str, *cells: str) -> dict[str, object]:
    """What these cells of a lesson define: classes, functions and constants."""
    names = {"torch": torch, "nn": nn, "F": F, "TorchFunctionMode": TorchFunctionMode}
    for cell in cells:
        for node in ast.parse(texts_of(number)[cell]).body:
            is_constant = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper()
            if is_constant or isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                exec(ast.unparse(node), names)
    return names


def test_autocast_by_hand_is_torch_s_to_the_last_bit():
    torch.manual_seed(0)
    model = by_hand.GPT(h=32, L=2, heads=2, v=64, positions=16)
    ids = torch.randint(64, (2, 16))
    results = []
    for around in (
        written_in("03", "my-autocast")["MyAutocast"],
        lambda: torch.autocast("cpu", torch.bfloat16),
    ):
        with around():
            loss = model(ids, ids)
        results.append([loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
    assert all(map(torch.equal, *results))


def test_running_twice_gives_the_same_gradients_and_keeps_the_input_alone():
    layer, x = (
        nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)),
        torch.randn(4, 8, requires_grad=True),
    )
    once = torch.autograd.grad(layer(x).sum(), (x,))[0]
    twice = written_in("04", "by-hand", "twice")["twice"]([layer])(x)
    assert [saved.shape for saved in twice.grad_fn.saved_tensors] == [x.shape]
    twice.sum().backward()
    assert torch.equal(x.grad, once) and layer[0].weight.grad is not None


def test_an_fp8_layer_s_three_products_are_a_few_percent_off():
    torch.manual_seed(0)
    x, layer = torch.randn(64, 128, requires_grad=True), by_hand.Fp8Linear(128, 96, bias=False)
    dy = torch.randn(64, 96)
    narrow = layer(x), *torch.autograd.grad(layer(x), (x, layer.weight), dy)
    wide = (
        F.linear(x, layer.weight),
        *torch.autograd.grad(F.linear(x, layer.weight), (x, layer.weight), dy),
    )
    for one, other in zip(narrow, wide, strict=True):
        assert 0.01 < ((one - other).norm() / other.norm()).item() < 0.08
