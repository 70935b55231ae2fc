"""Each recipe's dtypes are those that torch gives, where torch runs the recipe."""

import pytest
import torch

from memkit.program.transformer import class_of
from memkit.recipes import (
    IMPLEMENTATIONS,
    OPTIMIZERS,
    PRECISIONS,
    TORCH_PRECISIONS,
    OptimizerConfig,
)


@pytest.mark.parametrize("name", TORCH_PRECISIONS)
def test_dtypes_are_those_of_a_real_step(name):
    precision = PRECISIONS[name]
    layer = torch.nn.Linear(8, 4, dtype=getattr(torch, precision.weight_dtype))
    optimizer = torch.optim.AdamW(layer.parameters())
    with torch.autocast(
        "cpu", getattr(torch, precision.compute_dtype), enabled=precision.uses_autocast
    ):
        output = layer(torch.ones(2, 8, dtype=layer.weight.dtype))
    output.float().sum().backward()
    optimizer.step()
    assert str(output.dtype) == f"torch.{precision.compute_dtype}"
    assert str(layer.weight.grad.dtype) == f"torch.{precision.gradient_dtype}"
    assert str(optimizer.state[layer.weight]["exp_avg"].dtype) == f"torch.{precision.moment_dtype}"


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_implementation_is_refused_exactly_where_torch_lacks_it(name, implementation):
    torch_has_it = (
        implementation != "fused" or "fused" in class_of(OPTIMIZERS[name]).__init__.__annotations__
    )
    if torch_has_it:
        assert (
            OptimizerConfig(record=name, implementation=implementation).implementation
            == implementation
        )
    else:
        with pytest.raises(ValueError, match="not offered by"):
            OptimizerConfig(record=name, implementation=implementation)
