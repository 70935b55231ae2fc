"""The state explorer and the adapter explorer: their bars are the estimate's, and nothing that is typed kills them."""

from dataclasses import replace

import pytest

from memkit.fitting.room import fit_on
from memkit.formula.activations import block_ledger
from memkit.formula.estimate import estimate_memory
from memkit.hardware.cards import CARDS
from memkit.setup.adapters import AdapterConfig
from memkit.setup.models import LLAMA_2_7B
from memkit.setup.recipes import PURE_BF16, OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.units import format_bytes
from memkit.widgets.adapter_explorer import AdapterExplorer
from memkit.widgets.state_explorer import StateExplorer

SEVEN_B = TrainingSetup(model=LLAMA_2_7B, precision=PURE_BF16, seq_len=512, recomputation="full")


@pytest.fixture(scope="module")
def states():
    return StateExplorer()


@pytest.fixture(scope="module")
def adapters():
    return AdapterExplorer()


def test_the_state_explorer_opens_on_adamw_s_peak(states):
    peak = estimate_memory(SEVEN_B).for_step(2).peak_bytes
    fresh = StateExplorer()
    assert fresh.error == "" and format_bytes(peak) in fresh.shown.words[0]


@pytest.mark.parametrize("place", ["in backward", "on the host", "on the host, gradients too"])
def test_the_place_of_the_step_is_the_estimate_s(states, place):
    states.set(place=place)
    setup = replace(SEVEN_B, optimizer=OptimizerConfig(place=place))
    rows = {row[0]: row[1] for row in states.shown.table[1:]}
    assert states.error == "" and rows["AdamW"] == format_bytes(estimate_memory(setup).for_step(2).peak_bytes)
    words = " ".join(states.shown.words)
    assert ("over the link" in words) == place.startswith("on the host")
    if place == "in backward":
        with pytest.raises(ValueError, match="no formula"):
            estimate_memory(replace(SEVEN_B, optimizer=OptimizerConfig(name="Adafactor", place=place)))
    assert ("Adafactor: no formula for a step in the backward" in words) == (place == "in backward")
    states.set(place="after backward")


def test_what_fits_is_told_by_the_one_rule(states, adapters):
    for card in CARDS.values():
        if card.vendor == "NVIDIA":
            states.set(card=card.name)
            peak = estimate_memory(SEVEN_B).for_step(2).peak_bytes
            assert str(fit_on(card, peak)) in states.shown.words[0]
            adapters.set(card=card.name, micro_batch_size=4, seq_len=2048, dtype="float32")
            whole = estimate_memory(replace(SEVEN_B, micro_batch_size=4, seq_len=2048)).for_step(2).peak_bytes
            assert ("all, recomputed" in adapters.shown.words[0]) == (fit_on(card, whole).expected_bytes >= 0)


def test_the_adapter_explorer_tells_what_is_kept(adapters):
    setup = replace(SEVEN_B, recomputation="none", seq_len=2048, micro_batch_size=4)
    for dtype in ("float32", "bfloat16"):
        adapters.set(dtype=dtype)
        kept = block_ledger(replace(setup, adapter=AdapterConfig(dtype=dtype))).per_sbh
        assert adapters.error == "" and f"keeps {kept:.1f} bytes" in adapters.shown.words[2]
    assert "16,777,216 parameters" in adapters.shown.words[1]
