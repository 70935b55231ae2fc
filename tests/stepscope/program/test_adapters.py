"""FLOPs beside frozen weights: the formula's are what torch counts."""

from dataclasses import replace

import pytest
from flops_counted import flops_counted_in
from tests_of_the_kit import kit_tests

from memkit.recomputation import step_flops
from memkit.strategies import FULL, NONE
from stepscope.program.job import job_build
from stepscope.setup import AdapterConfig, as_job

LLAMA = as_job(kit_tests("program/test_strategies.py").RECIPES["llama"])


@pytest.mark.parametrize(
    "targets", [("query", "key", "value", "output"), ("up", "down"), ("query",)], ids=len
)
@pytest.mark.parametrize("strategy", [NONE, FULL], ids=lambda s: s.name)
def test_flops_with_adapters_leave_out_the_frozen_weights_gradients(strategy, targets):
    """With adapters beside the MLP alone the first block's attention has no backward at all."""
    setup = replace(LLAMA, adapter=AdapterConfig(rank=4, targets=targets))
    formula = step_flops(setup, strategy)
    counted = flops_counted_in(job_build(replace(setup, device="cuda").under(strategy)))
    assert (counted.forward, counted.in_kernel) == (formula.forward, formula.in_kernel)
    assert counted.total == formula.total
