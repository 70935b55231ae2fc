"""The formula of a job against the trace of its real step: experts, adapters, more optimizers, to the byte."""

import importlib.util
import random
from dataclasses import replace

import judge_estimate
import pytest
from lab_server import ROOT
from tests_of_the_kit import kit_tests

from memkit.formula import estimate_memory
from memkit.recipes import PRECISIONS, PURE_BF16, TORCH_PRECISIONS, OptimizerConfig
from stepscope.experts import experts_config
from stepscope.optimizers import OPTIMIZERS
from stepscope.program.job import job_build
from stepscope.setup import AdapterConfig, Job, Place
from stepscope.tracing.trace import trace_script

KIT = kit_tests(
    "formula/test_estimate.py",
    TrainingSetup=Job,
    training_build=job_build,
    trace_memory=trace_script,
)
check, on_cpu, setup = KIT.check, KIT.on_cpu, KIT.setup
EXPERTS = experts_config(
    replace(KIT.LLAMA, num_layers=3, has_qk_norm=True),
    dense_layers=(1,),
    num_experts=8,
    experts_per_token=2,
    expert_size=104,
)

spec = importlib.util.spec_from_file_location("estimate_grid", ROOT / "dev" / "estimate_grid.py")
estimate_grid = importlib.util.module_from_spec(spec)
spec.loader.exec_module(estimate_grid)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(
    "numbers", [(*range(12), 142), pytest.param(range(12, 400), marks=pytest.mark.exhaustive)]
)
def test_every_instant_of_a_random_job_that_steps_by_adafactor_is_the_traces(numbers, device):
    """The kit's test takes the other optimizers of the same numbers."""
    num_setups = 0
    for number in numbers:
        try:
            chosen = judge_estimate.random_job(random.Random(f"987523115 {number}"))
        except ValueError:
            continue  # heads that no kernel takes
        if chosen.optimizer.name == "Adafactor":
            check(on_cpu(chosen) if device == "cpu" else chosen)
            num_setups += 1
    assert num_setups >= len(numbers) / 10


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(
    "numbers", [range(8), pytest.param(range(8, 220), marks=pytest.mark.exhaustive)]
)
def test_and_so_it_is_with_experts_in_some_blocks_or_in_all(numbers, device):
    num_setups = 0
    for number in numbers:
        r = random.Random(f"experts {number}")
        try:
            chosen = judge_estimate.with_experts(r, judge_estimate.random_job(r))
        except ValueError:
            continue  # heads that no kernel takes
        check(on_cpu(chosen) if device == "cpu" else chosen)
        num_setups += 1
    assert num_setups >= 0.9 * len(numbers)


@pytest.mark.parametrize("precision", TORCH_PRECISIONS)
def test_frozen_experts_beside_an_adapter_and_a_step_in_the_backward(precision):
    chosen = setup(model=EXPERTS, precision=PRECISIONS[precision])
    check(
        replace(chosen, adapter=AdapterConfig(dropout=0.1), recomputation="full"), has_ledger=False
    )
    check(replace(chosen, place=Place.IN_BACKWARD))


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_steps_that_are_left_to_the_trace(name):
    chosen = setup(optimizer=OptimizerConfig(record=OPTIMIZERS[name]), precision=PURE_BF16)
    with pytest.raises(
        ValueError, match=rf"the step of {name} \(foreach\) has no formula; trace it: trace_memory"
    ):
        estimate_memory(chosen)
    assert KIT.traced(chosen).peak_bytes > 0


@pytest.mark.parametrize("most_layers", [3, pytest.param(99, marks=pytest.mark.exhaustive)])
def test_the_peaks_of_the_grid(most_layers):
    """To the byte. ``dev/estimate_grid.py`` prints the whole grid, up to 70 B."""
    large = [row for row in estimate_grid.LARGE if row.model.name == "Llama-2-7B"]
    grid = [
        replace(row, model=replace(row.model, num_layers=min(row.model.num_layers, most_layers)))
        for row in (*estimate_grid.SMALL, *large)
    ]
    rows = [estimate_grid.measure(row) for row in grid]
    assert len(rows) >= 20 and {row.ratio for row in rows} == {1}, estimate_grid.table(rows)


def test_a_step_that_torch_cannot_make_is_refused_before_it_is_built():
    chosen = setup(place=Place.ON_HOST)
    assert estimate_memory(chosen).peak_bytes > 0
    with pytest.raises(ValueError, match="place='on the host' is a formula only"):
        job_build(chosen)
