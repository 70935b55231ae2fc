"""``memkit.formats.rounding`` against torch, which adds in the format itself."""

import pytest
import torch

from memkit.formats.records import FORMATS
from memkit.formats.rounding import running_sum, sticking_point


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("term", [0.001, 0.37, -3.0])
def test_nearest_equals_a_loop_in_torch(name: str, term: float) -> None:
    step = torch.tensor(term).to(getattr(torch, name))
    total, totals = torch.zeros((), dtype=step.dtype), []
    for _ in range(5000):
        total = total + step
        totals.append(total.item())
    assert running_sum(term, 5000, name).tolist() == totals


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("term", [0.001, 0.1, 1.0, 0.75, 2.0**-7, 3.0])
def test_the_sticking_point_is_where_the_running_sum_ends(name: str, term: float) -> None:
    end, fmt = sticking_point(term, name), FORMATS[name]
    totals = running_sum(term, 6000, name)
    assert totals[-1] == totals[-2] == min(end, fmt.max)


@pytest.mark.parametrize("term", [0, -1.0, 1e-9])
def test_a_sum_that_goes_nowhere_has_no_sticking_point(term: float) -> None:
    with pytest.raises(ValueError, match="a sum of it goes nowhere"):
        sticking_point(term, "float16")


@pytest.mark.parametrize("name", ["float64", "int8", "float8_e8m0fnu"])
def test_a_format_in_which_no_sum_sticks_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"not {name}"):
        running_sum(1.0, 3, name)
