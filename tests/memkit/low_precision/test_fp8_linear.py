"""The FP8 layer against torchao's own, against an emulation in ml_dtypes, and torch's kernel against float32."""

import copy

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

from memkit.formats.blocks import SCALINGS, scale_to
from memkit.low_precision.fp8 import (
    FP8_RECIPES,
    Fp8Linear,
    cast_to,
    convert_to_fp8,
)

TOKENS, INPUTS, OUTPUTS = 256, 384, 128
TORCHAO = {"tensor": "tensorwise", "row": "rowwise", "row_wide_wgrad": "rowwise_with_gw_hp"}


def run(layer: nn.Module, dtype=torch.float32) -> list[torch.Tensor]:
    """Output, input gradient and weight gradient for one fixed batch with wide-ranging rows."""
    chance = torch.Generator().manual_seed(1)
    x = (
        torch.randn(2, TOKENS // 2, INPUTS, generator=chance)
        * torch.rand(2, TOKENS // 2, 1, generator=chance) ** 4
    )
    dy = 1e-4 * torch.randn(2, TOKENS // 2, OUTPUTS, generator=chance)
    x = x.to(dtype).requires_grad_()
    y = layer(x)
    y.backward(dy.to(y.dtype))
    weight = next(p for name, p in layer.named_parameters() if name.endswith("weight"))
    return [y.detach(), x.grad, weight.grad]


def linear(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, OUTPUTS, bias=False))


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("recipe", TORCHAO)
def test_it_is_torchao_s_layer(recipe):
    """Bit for bit where the factors are powers of two; else torchao divides where we multiply."""
    model = linear()
    theirs = copy.deepcopy(model)
    config = Float8LinearConfig.from_recipe_name(TORCHAO[recipe])
    object.__setattr__(config, "emulate", True)
    convert_to_float8_training(theirs, config=config)
    for ours, wanted in zip(
        run(convert_to_fp8(model, recipe, kernel="emulated")), run(theirs), strict=True
    ):
        if recipe == "row":
            assert torch.equal(ours, wanted)
        assert distance(ours, wanted) < 1e-6


@pytest.mark.parametrize("recipe", ["tensor", "row", "block", "mxfp8", "nvfp4"])
def test_output_and_gradients_are_those_of_an_emulation_in_ml_dtypes(recipe):
    """The same float32 product of matrices that ml_dtypes cast: the same bits."""
    model = linear()
    weight = model[0].weight.detach().clone()
    facts = FP8_RECIPES[recipe]

    def q(matrix: torch.Tensor, operand: str) -> torch.Tensor:
        scaling, element = facts.scaling_of(operand), facts.element_of(operand)
        x, largest = matrix.numpy(), float(ml_dtypes.finfo(getattr(ml_dtypes, element)).max)
        factors = scale_to(x, element, scaling).factors  # tested by itself against torchao
        rows, columns = (x.shape[axis] // factors.scales.shape[axis] for axis in (0, 1))
        spread = [
            np.kron(f, np.ones((rows, columns), np.float32))
            for f in (factors.multipliers, factors.scales)
        ]
        held = np.clip(x * spread[0], -largest, largest).astype(getattr(ml_dtypes, element))
        return torch.from_numpy(held.astype(np.float32) * spread[1])

    converted = convert_to_fp8(model, recipe, kernel="emulated")
    y, dx, dw = run(converted)
    caught = []
    plain = nn.Sequential(nn.Linear(INPUTS, OUTPUTS, bias=False))
    plain[0].register_forward_hook(lambda _, x, y: caught.append((x[0].detach(), y)))
    run(plain)
    x = caught[0][0].reshape(-1, INPUTS)
    chance = torch.Generator().manual_seed(1)
    (
        torch.randn(2, TOKENS // 2, INPUTS, generator=chance),
        torch.rand(2, TOKENS // 2, 1, generator=chance),
    )
    dy = (1e-4 * torch.randn(2, TOKENS // 2, OUTPUTS, generator=chance)).reshape(-1, OUTPUTS)
    assert torch.equal(y.reshape(-1, OUTPUTS), q(x, "input") @ q(weight, "weight").t())
    assert torch.equal(dx.reshape(-1, INPUTS), q(dy, "gradient") @ q(weight.t(), "weight").t())
    assert torch.equal(dw, q(dy.t(), "gradient") @ q(x.t(), "input").t())


@pytest.mark.parametrize("recipe", ["tensor", "row", "delayed", "unscaled"])
def test_torch_s_kernel_gives_the_same_but_for_the_order_of_its_sums(recipe):
    kernel, emulated = (
        convert_to_fp8(linear(), recipe, kernel=kernel) for kernel in ("auto", "emulated")
    )
    for ours, wanted in zip(run(kernel), run(emulated), strict=True):
        assert distance(ours, wanted) < 2e-7 * INPUTS**0.5
    assert kernel[0].used == {"torch._scaled_mm": 3} and emulated[0].used == {"emulated": 3}


def test_unscaled_loses_small_gradients():
    """What is at most half of E5M2's smallest value, 2^-17 or 7.6e-6, becomes zero."""
    layer = convert_to_fp8(linear(), "unscaled")
    x = torch.randn(TOKENS, INPUTS, requires_grad=True)
    layer(x).backward(torch.full((TOKENS, OUTPUTS), 5e-6))
    assert not x.grad.any() and not layer[0].weight.grad.any()


def test_delayed_scaling_meets_its_first_step_with_a_factor_of_one_and_then_knows():
    layer = convert_to_fp8(linear(), "delayed")
    run(layer)
    seen = layer[0].delayed
    amaxes = {operand: factor.history[-1].item() for operand, factor in seen.items()}
    assert amaxes["weight"] == layer[0].weight.abs().max().item()
    for operand, largest in (("weight", 448), ("input", 448), ("gradient", 57344)):
        assert seen[operand].multiplier.item() == pytest.approx(largest / amaxes[operand])


@pytest.mark.parametrize("name", SCALINGS)
def test_a_tensor_is_cast_as_an_array_is(name):
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(0)) * torch.logspace(
        -6, 3, 256
    )
    others = ("float8_e4m3fn",) if "mx" in name else ("float8_e5m2", "int8")
    for element in ("float4_e2m1fn",) if "nvfp4" in name else others:
        wanted = scale_to(x.numpy(), element, name).dequantize()
        assert np.array_equal(cast_to(x, element, name).wide().numpy(), wanted)


@pytest.mark.parametrize("recipe", ["tensor", "row", "block", "mxfp8", "nvfp4", "row_wide_wgrad"])
def test_what_it_keeps_for_the_backward_has_the_bytes_that_the_scaling_says(recipe):
    facts, layer = FP8_RECIPES[recipe], convert_to_fp8(linear(), recipe)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(torch.randn(TOKENS, INPUTS))
    num_bytes = sum(t.untyped_storage().nbytes() for t in kept if t is not layer[0].weight)
    scaling = SCALINGS[facts.scaling]
    wanted = scaling.stored_bytes((INPUTS, TOKENS), facts.element)
    assert num_bytes == (TOKENS * INPUTS * 4 if facts.is_wgrad_wide else wanted)


def test_autocast_leaves_the_sums_in_float32():
    """Rounded once to bfloat16, at the end."""
    x = torch.randn(64, INPUTS, generator=torch.Generator().manual_seed(0)).bfloat16()
    layer = convert_to_fp8(linear(), "nvfp4")
    wanted = layer(x.float()).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), wanted)


def test_convert_keeps_what_it_is_told_and_refuses_what_it_does_not_know():
    model = nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 16)))
    convert_to_fp8(model, "row", keep=("1.0",))
    assert type(model[0]) is Fp8Linear and type(model[1][0]) is nn.Linear
    with pytest.raises(ValueError, match="recipe='fp9' is not one of"):
        convert_to_fp8(model, "fp9")
    with pytest.raises(ValueError, match="kernel='cuda' is not one of"):
        convert_to_fp8(nn.Sequential(nn.Linear(16, 16)), "row", kernel="cuda")
