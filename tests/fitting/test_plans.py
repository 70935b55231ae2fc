"""Plans against traces, their code against torch and the libraries' own argument classes."""

import json
import random
import runpy
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from memkit.fitting.plan_code import KINDS, code_of, deepspeed_config, plain_code, trainer_arguments
from memkit.fitting.plans import GIVES_UP, find_plans, plan_of, traced, ways_of
from memkit.fitting.room import fit_on
from memkit.hardware.cards import CARDS
from memkit.program.transformer import Transformer, random_batches
from memkit.setup.layouts import Layout
from memkit.setup.models import LLAMA_2_7B, LLAMA_32_1B, TINY_LLAMA
from memkit.setup.training import TrainingSetup
from memkit.tracing.trace import trace_memory

ROOT = Path(__file__).parents[2]
JUDGE = runpy.run_path(str(ROOT / "scripts" / "judge_plans.py"))
CARD = CARDS["RTX 4090"]
FOUND = find_plans(LLAMA_32_1B, CARD, tokens_per_step=16384, seq_len=2048)
TINY = TrainingSetup(model=TINY_LLAMA, seq_len=128)
TINY_PLANS = [plan_of(setup, CARD) for setup, _ in ways_of(TINY, None, 2)]


def test_a_plan_fits_by_the_one_rule():
    for plan in FOUND.plans:
        assert plan.fits == (fit_on(CARD, plan.peak_bytes).expected_bytes >= 0) == (plan in FOUND.fitting)
    assert len(FOUND.fitting) + len(FOUND.missed) == len(FOUND.plans)


def test_every_plan_does_the_same_work():
    assert {plan.setup.tokens_per_micro_batch * plan.setup.grad_accum_steps for plan in FOUND.plans} == {16384}


def test_nothing_on_the_front_is_beaten_and_everything_else_is():
    for plan in FOUND.fitting:
        mine = plan.peak_bytes, plan.seconds
        better = [o for o in FOUND.fitting if o.peak_bytes <= mine[0] and o.seconds <= mine[1]
                  and set(o.gives_up) <= set(plan.gives_up) and (o.peak_bytes, o.seconds) != mine]  # fmt: skip
        assert bool(better) == (plan not in FOUND.front), plan.name


def test_what_does_not_fit_is_told_by_how_much():
    text = str(replace(FOUND, plans=FOUND.missed))
    assert "Nothing fits." in text and f"{len(FOUND.missed)} of {len(FOUND.missed)} do not fit" in text
    sizes = [plan.peak_bytes for plan in FOUND.missed]
    assert sizes == sorted(sizes) and FOUND.missed[0].fit.expected_bytes < 0


@pytest.mark.parametrize("plan", TINY_PLANS, ids=lambda plan: plan.name)
def test_the_formula_is_the_trace(plan):
    again = traced(plan)
    if plan.setup.optimizer.is_on_host:  # torchao's needs a card
        assert again.traced_bytes is None
    else:
        assert again.traced_bytes == pytest.approx(plan.peak_bytes, rel=0.01)


@pytest.mark.parametrize("stage", range(4))
def test_a_rank_is_traced_too(stage):
    setup, layout = next(ways_of(TINY, Layout(stage=stage, dp_size=4), 2))
    plan = plan_of(setup, CARD, layout)
    assert traced(plan).traced_bytes == pytest.approx(plan.peak_bytes, rel=0.02)


def test_sharding_lets_a_model_fit_that_no_card_holds():
    one, eight = (find_plans(LLAMA_2_7B, CARD, tokens_per_step=16384, seq_len=2048, num_cards=n) for n in (1, 8))
    assert all(plan.gives_up for plan in one.fitting)
    assert eight.fitting[0].layout.stage == 3 and eight.fitting[0].gives_up == ()


def test_the_words_of_a_sacrifice_are_ordered():
    costs = {plan.gives_up: plan.sacrifice for plan in TINY_PLANS}
    small, rounded, adapters, four_bits = GIVES_UP
    assert costs[()] < costs[small,] < costs[rounded,] < costs[small, rounded] < costs[adapters,]
    assert costs[adapters,] < costs[adapters, four_bits]
    assert [plan.sacrifice for plan in FOUND.fitting] == sorted(plan.sacrifice for plan in FOUND.fitting)


RUN_BY_TORCH = [p for p in TINY_PLANS if not p.setup.optimizer.is_on_host and p.setup.adapter is None]


# --- its code -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", RUN_BY_TORCH, ids=lambda p: p.name)
def test_the_plain_code_runs_and_peaks_where_the_plan_says(plan):
    """The text, executed on a model that recomputes nothing by itself, is traced."""

    def build():
        bare = replace(plan.setup, recomputation="none")
        names = {"model": Blocks(Transformer(bare)), "batches": iter(random_batches(TINY_LLAMA, plan.setup), None)}
        exec(plain_code(plan), names)
        return names["step"]

    found = trace_memory(build, steps=2).for_step(2)
    assert found.peak_bytes == pytest.approx(plan.peak_bytes, rel=0.02)


class Blocks(torch.nn.Module):
    """A model with ``blocks``, in the precision that it is given."""

    def __init__(self, model):
        super().__init__()
        self.inner, self.blocks = model, model.blocks

    def forward(self, inputs, targets):
        with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.FLASH_ATTENTION,
                                             torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION]):
            return self.inner(inputs, targets)


@pytest.mark.parametrize("plan", TINY_PLANS, ids=lambda plan: plan.name)
def test_the_trainer_knows_every_argument(plan):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    given = trainer_arguments(plan)
    own = {key: value for key, value in given.items() if key not in ("max_length", "packing")}
    assert set(own) <= {field.name for field in fields(transformers.TrainingArguments)}
    assert given["optim"] in set(transformers.training_args.OptimizerNames)
    trl = pytest.importorskip("trl")
    assert set(given) <= {field.name for field in fields(trl.SFTConfig)}


def test_every_kind_of_code_is_given():
    plan = TINY_PLANS[0]
    assert all(code_of(plan, kind) for kind in KINDS)
    assert json.loads(code_of(plan, "deepspeed")) == deepspeed_config(plan)
    with pytest.raises(ValueError, match="kind='jax' is not one of plain, trainer, deepspeed"):
        code_of(plan, "jax")


# --- judged ---------------------------------------------------------------------------------------------------------


def test_a_few_random_jobs_are_judged_right():
    chance = random.Random(20261121)
    for _ in range(3):
        answer = JUDGE["judged"](JUDGE["random_job"](chance))
        assert JUDGE["is_right"](answer), answer


@pytest.mark.parametrize("tokens, words", [(1000, "no whole number of 2048 × 1 tokens; 2048 would be"), (0, "below 1"),
                                           (5000, "4096 or 6144 would be")])
def test_a_wrong_number_of_tokens_is_refused(tokens, words):
    with pytest.raises(ValueError, match=words):
        find_plans(TINY_LLAMA, CARD, tokens_per_step=tokens, seq_len=2048)
