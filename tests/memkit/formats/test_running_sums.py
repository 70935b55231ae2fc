"""``memkit.formats.rounding`` against torch, which adds in the format itself."""

import pytest
import torch

from memkit.formats.rounding import running_sum


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("term", [0.001, 0.37, -3.0])
def test_nearest_equals_a_loop_in_torch(name: str, term: float) -> None:
    step = torch.tensor(term).to(getattr(torch, name))
    total, totals = torch.zeros((), dtype=step.dtype), []
    for _ in range(5000):
        total = total + step
        totals.append(total.item())
    assert running_sum(term, 5000, name).tolist() == totals


@pytest.mark.parametrize("name", ["float64", "int8", "float8_e8m0fnu"])
def test_a_format_in_which_no_sum_sticks_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"not {name}"):
        running_sum(1.0, 3, name)
