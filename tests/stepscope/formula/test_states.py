"""Persistent tensors of the optimizers that the kit lacks, against those of real ones after a step."""

import pytest
from tests_of_the_kit import kit_tests

from memkit import recipes as kit
from memkit.recipes import AUTOCAST_BF16, FP32, PURE_BF16, OptimizerConfig
from stepscope.optimizers import OPTIMIZERS

KIT = kit_tests("formula/test_states.py")
LIBRARIES = ("torch.", "stepscope.")
OFFERED = [
    (name, implementation)
    for name, record in OPTIMIZERS.items()
    for implementation in record.implementations
    if name not in (*kit.OPTIMIZERS, "Muon") and record.made_by.startswith(LIBRARIES)
]


def test_these_are_adafactor_and_lion():
    assert {name for name, _ in OFFERED} == {"Adafactor", "Lion"}


@pytest.mark.parametrize("precision", [FP32, AUTOCAST_BF16, PURE_BF16], ids=lambda p: p.name)
@pytest.mark.parametrize("name, implementation", OFFERED)
@pytest.mark.parametrize("model", KIT.SMALL.values(), ids=KIT.SMALL)
def test_the_ledger_is_a_real_state_dict(model, name, implementation, precision):
    config = OptimizerConfig(record=OPTIMIZERS[name], implementation=implementation)
    KIT.assert_ledger_is_real(model, precision, config)


def test_adafactors_step_scalar_stays_on_the_host():
    KIT.assert_step_scalar_is(True, OptimizerConfig(record=OPTIMIZERS["Adafactor"]))
