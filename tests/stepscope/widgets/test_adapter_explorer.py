"""The adapter explorer: its bars are the estimate's."""

from dataclasses import replace

import pytest

from memkit.cards import CARDS
from memkit.fit import fit_on
from memkit.formula.activations import block_ledger
from memkit.formula.estimate import estimate_memory
from memkit.models import LLAMA_2_7B
from memkit.recipes import PURE_BF16
from stepscope.setup import AdapterConfig, Job
from stepscope.widgets.plan_explorers import AdapterExplorer

SEVEN_B = Job(model=LLAMA_2_7B, precision=PURE_BF16, seq_len=512, recomputation="full")


@pytest.fixture(scope="module")
def adapters():
    return AdapterExplorer()


def test_what_fits_is_told_by_the_one_rule(adapters):
    for card in CARDS.values():
        if card.vendor == "NVIDIA":
            adapters.set(card=card.name, micro_batch_size=4, seq_len=2048, dtype="float32")
            whole = (
                estimate_memory(replace(SEVEN_B, micro_batch_size=4, seq_len=2048))
                .for_step(2)
                .peak_bytes
            )
            assert ("all, recomputed" in adapters.shown.words[0]) == (
                fit_on(card, whole).expected_bytes >= 0
            )


def test_the_adapter_explorer_tells_what_is_kept(adapters):
    setup = replace(SEVEN_B, recomputation="none", seq_len=2048, micro_batch_size=4)
    for dtype in ("float32", "bfloat16"):
        adapters.set(dtype=dtype)
        kept = block_ledger(replace(setup, adapter=AdapterConfig(dtype=dtype))).per_sbh
        assert adapters.error == "" and f"keeps {kept:.1f} bytes" in adapters.shown.words[2]
    assert "16,777,216 parameters" in adapters.shown.words[1]
