"""Each recipe's dtypes are those that torch gives, where torch runs the recipe."""

from dataclasses import replace

import pytest
import torch

from memkit.setup.recipes import (
    BF16_MASTER,
    FP32,
    IMPLEMENTATIONS,
    OPTIMIZERS,
    PRECISIONS,
    PURE_BF16,
    TORCH_PRECISIONS,
    OptimizerConfig,
)


@pytest.mark.parametrize("name", TORCH_PRECISIONS)
def test_dtypes_are_those_of_a_real_step(name):
    precision = PRECISIONS[name]
    layer = torch.nn.Linear(8, 4, dtype=getattr(torch, precision.weight_dtype))
    optimizer = torch.optim.AdamW(layer.parameters())
    with torch.autocast("cpu", getattr(torch, precision.compute_dtype), enabled=precision.uses_autocast):
        output = layer(torch.ones(2, 8, dtype=layer.weight.dtype))
    output.float().sum().backward()
    optimizer.step()
    assert str(output.dtype) == f"torch.{precision.compute_dtype}"
    assert str(layer.weight.grad.dtype) == f"torch.{precision.gradient_dtype}"
    assert str(optimizer.state[layer.weight]["exp_avg"].dtype) == f"torch.{precision.moment_dtype}"


def test_moments_follow_the_master_copy_then_the_weights():
    assert FP32.moment_dtype == "float32" and PURE_BF16.moment_dtype == "bfloat16"
    assert BF16_MASTER.moment_dtype == "float32"
    assert replace(BF16_MASTER, state_dtype="bfloat16").moment_dtype == "bfloat16"


def test_every_recipe_names_its_source():
    assert all(precision.source for precision in PRECISIONS.values())
    assert all(name == precision.name for name, precision in PRECISIONS.items())


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_implementation_is_refused_exactly_where_torch_lacks_it(name, implementation):
    in_torch = {"SGD momentum": "SGD", "AdamW amsgrad": "AdamW"}.get(name, name)
    if not hasattr(torch.optim, in_torch):
        assert name == "Lion" or "8-bit" in name or "torchao" in name or "paged" in name
        return
    parameters = getattr(torch.optim, in_torch).__init__.__annotations__
    torch_has_it = implementation != "fused" or "fused" in parameters
    if torch_has_it:
        assert OptimizerConfig(name=name, implementation=implementation).implementation == implementation
    else:
        with pytest.raises(ValueError, match="not offered by"):
            OptimizerConfig(name=name, implementation=implementation)
