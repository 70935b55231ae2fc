"""The batch planner of the kit: its arithmetic of eight ranks is the formula of DDP."""

from dataclasses import replace

import pytest

from memkit.cards import CARDS
from memkit.fit import fit_on
from memkit.models import LLAMA_32_1B
from memkit.recipes import PURE_BF16, OptimizerConfig
from memkit.setup import TrainingSetup
from memkit.units import format_bytes
from memkit.widgets.batch_planner import BatchPlanner
from stepscope.setup import Layout
from stepscope.sharding import estimate_sharded

DDP = Layout(stage=0, dp_size=8)


def test_it_opens_on_the_chapter_s_question():
    setup = TrainingSetup(
        model=LLAMA_32_1B,
        precision=PURE_BF16,
        optimizer=OptimizerConfig(implementation="fused"),
        seq_len=8192,
    )
    window = estimate_sharded(replace(setup, grad_accum_steps=2), DDP).for_step(2).peak_bytes
    fresh = BatchPlanner()
    assert "64 accumulation steps × 8 ranks = 4.2 M tokens" in fresh.shown.words[2]
    assert format_bytes(window) in fresh.shown.words[0]


@pytest.mark.parametrize("size, fits", [(2, True), (4, False), (8, False)])
def test_what_fits_is_told_by_the_one_rule(size, fits):
    # on a card of 80 GB; 4 take 78 GiB, and a context is not in it
    planner = BatchPlanner(micro_batch_size=size)
    setup = TrainingSetup(
        model=LLAMA_32_1B,
        precision=PURE_BF16,
        optimizer=OptimizerConfig(implementation="fused"),
        seq_len=8192,
        micro_batch_size=size,
        grad_accum_steps=2,
    )
    fit = fit_on(CARDS["H100 SXM"], estimate_sharded(setup, DDP).for_step(2).peak_bytes)
    assert fit.is_expected is fits and str(fit) in planner.shown.words[0]
    assert "take the same time; 2 × 32 has the fewest passes" in planner.shown.words[3]
