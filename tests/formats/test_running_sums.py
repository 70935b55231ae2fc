"""``memkit.formats.running_sums`` against torch, which adds in the format itself, and against ``round_to``."""

import math

import numpy as np
import pytest
import torch

from memkit.formats.records import FORMATS
from memkit.formats.rounding import round_to
from memkit.formats.running_sums import METHODS, num_moving_terms, running_sum


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("term", [0.001, 0.37, -3.0])
def test_nearest_equals_a_loop_in_torch(name: str, term: float) -> None:
    step = torch.tensor(term).to(getattr(torch, name))
    total, totals = torch.zeros((), dtype=step.dtype), []
    for _ in range(5000):
        total = total + step
        totals.append(total.item())
    assert running_sum(term, 5000, name, method="nearest").tolist() == totals


def test_a_float32_accumulator_equals_torch_reading_a_float32_sum() -> None:
    total, totals = torch.zeros(()), []
    for _ in range(5000):
        total = total + torch.tensor(0.001).bfloat16().float()
        totals.append(total.bfloat16().item())
    assert running_sum(0.001, 5000, "bfloat16", method="float32 accumulator").tolist() == totals


def test_kahan_equals_the_same_loop_in_torch() -> None:
    t = torch.tensor(0.001).bfloat16()
    total, lost, totals = torch.zeros_like(t), torch.zeros_like(t), []
    for _ in range(4096):
        y = t - lost
        larger = total + y
        lost = (larger - total) - y
        total = larger
        totals.append(total.item())
    assert running_sum(0.001, 4096, "bfloat16", method="kahan").tolist() == totals


@pytest.mark.parametrize(
    ("name", "stuck_at"), [("bfloat16", 256), ("float16", 2048), ("float8_e4m3fn", 16), ("float8_e5m2", 8)]
)
def test_a_counter_stops_where_the_next_whole_number_is_missing(name: str, stuck_at: int) -> None:
    totals = running_sum(1.0, 3000, name, method="nearest")
    assert totals[-1] == stuck_at == FORMATS[name].largest_consecutive_integer
    assert num_moving_terms(totals) == stuck_at


def test_stochastic_totals_are_right_on_average() -> None:
    rng = np.random.default_rng(0)
    last = [running_sum(0.001, 1024, "bfloat16", method="stochastic", rng=rng)[-1] for _ in range(400)]
    exact = 1024 * float(round_to(0.001, "bfloat16", overflow="inf"))
    assert abs(np.mean(last) - exact) < 5 * np.std(last) / math.sqrt(len(last)) < 0.05 * exact
    sums = (
        running_sum(0.001, 50, "bfloat16", method="stochastic", rng=np.random.default_rng(seed)).tolist()
        for seed in (3, 3, 4)
    )
    assert next(sums) == next(sums) != next(sums)


@pytest.mark.parametrize("method", METHODS)
def test_no_terms_and_terms_of_zero(method: str) -> None:
    rng = np.random.default_rng(0) if method == "stochastic" else None
    assert running_sum(1.0, 0, "bfloat16", method=method, rng=rng).shape == (0,)
    assert num_moving_terms(running_sum(0.0, 5, "bfloat16", method=method, rng=rng)) == 0


def test_totals_saturate() -> None:
    rng = np.random.default_rng(0)
    assert running_sum(448.0, 9, "float8_e4m3fn", method="stochastic", rng=rng).tolist() == [448.0] * 9
    assert running_sum(3e38, 9, "float32", method="float32 accumulator")[-1] == FORMATS["float32"].max


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "pairwise"}, "method='pairwise' is not one of nearest, stochastic, kahan"),
        ({"method": "stochastic"}, "stochastic, and only it, needs a Generator"),
        ({"rng": np.random.default_rng(0)}, "stochastic, and only it, needs a Generator"),
        ({"fmt": "float64"}, "up to 24 mantissa bits, not float64"),
        ({"fmt": "int8"}, "not int8"),
        ({"fmt": "float8_e8m0fnu"}, "not float8_e8m0fnu"),
        ({"fmt": "float15"}, "format='float15' is not one of"),
        ({"term": math.nan}, "term=nan is not a finite number"),
        ({"num_terms": -1}, "num_terms=-1 is below 0"),
    ],
)
def test_bad_input_is_refused(change: dict, message: str) -> None:
    good = {"term": 1.0, "num_terms": 3, "fmt": "bfloat16", "method": "nearest"}
    with pytest.raises(ValueError, match=message):
        running_sum(**good | change)
