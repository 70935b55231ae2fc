"""The search for plans, held against brute force over its whole grid, and its words."""

import json
import math
import random
import runpy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from memkit.cards import CARDS
from memkit.models import GPT2_XL, LLAMA_2_7B, LLAMA_32_1B, TINY_LLAMA
from memkit.recipes import AUTOCAST_BF16, PURE_BF16, OptimizerConfig
from memkit.recomputation import step_flops
from memkit.setup import TrainingSetup
from memkit.strategies import NONE
from memkit.units import GIB
from stepscope.experts import PUBLISHED_MODELS
from stepscope.optimizers import OPTIMIZERS
from stepscope.planner.plan import FACTORS, plan_of
from stepscope.planner.search import RULE, PlansFound, find_plans
from stepscope.planner.ways import PRECISIONS, TRIED, layouts_of, strategies_of, ways_of
from stepscope.setup import AdapterConfig, Job, Layout, Place, linear_layers

ROOT = Path(__file__).parents[3]
JUDGE = runpy.run_path(str(ROOT / "dev" / "judge_plans.py"))
BRUTE = runpy.run_path(str(ROOT / "dev" / "brute_plans.py"))
RECORDED = json.loads(JUDGE["FILE"].read_text(encoding="utf-8"))
CARD = CARDS["RTX 4090"]
FOUND = find_plans(LLAMA_32_1B, CARD, tokens_per_step=16384, seq_len=2048)


# --- nothing is missed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [0, 1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(2, 30))]
)
def test_no_plan_of_a_random_job_is_missed(number):
    """Brute force over what a setup and a layout can say: nothing is faster that gives up no more, or it is named."""
    chance = random.Random(f"brute {number}")
    found = BRUTE["job_of"](chance)
    outcome = BRUTE["outcome_of"](found, chance)
    assert not outcome.missed and not outcome.wrongly_ruled_out
    for plan in found.plans[:: len(found.plans) // 100 + 1]:
        assert plan.least_bytes <= plan.peak_bytes, plan.name


def test_the_jobs_of_which_a_plan_was_missed():
    """GPT-2 XL on a T4 was told to train adapters; Llama-3.2-1B got the slowest of the plans that round no update."""
    found = find_plans(GPT2_XL, CARDS["T4"], tokens_per_step=12288, seq_len=1024)
    assert found.first.gives_up == ()
    assert any(plan.gives_up == () for plan in FOUND.front) and FOUND.first.gives_up == (
        "states in 8 bits",
    )


# --- the order --------------------------------------------------------------------------------------------------------

JOBS_OF_AN_ENGINEER = {
    "LoRA in 16 bits": (("Llama-3-8B", "RTX 4090", 4 * 4096, 4096, False), "LoRA", "AdamW", ""),
    "QLoRA": (("Qwen3-8B", "T4", 8 * 1024, 1024, True), "QLoRA", "AdamW", ""),
    "ZeRO-Offload in fp16": (
        ("GPT-2 XL", "T4", 12 * 1024, 1024, False),
        "fp16 + fp32 master",
        "AdamW",
        Place.ON_HOST,
    ),
    "QLoRA of 70B": (("Llama-3-70B", "H100 SXM", 4 * 2048, 2048, True), "QLoRA", "AdamW", ""),
    "bf16 + 8-bit AdamW": (
        ("Llama-2-7B", "H100 SXM", 8 * 2048, 2048, False),
        "pure bf16",
        "torchao 8-bit AdamW",
        Place.AFTER_BACKWARD,
    ),
}
"""Five jobs, and what somebody who fine-tunes for a living takes for each."""


@pytest.mark.parametrize(
    ("job", "kept", "optimizer", "place"), JOBS_OF_AN_ENGINEER.values(), ids=JOBS_OF_AN_ENGINEER
)
def test_the_first_plan_is_the_one_that_an_engineer_takes(job, kept, optimizer, place):
    name, card, tokens, seq_len, is_asked = job
    model = PUBLISHED_MODELS[name]
    adapter = AdapterConfig(rank=16, targets=linear_layers(model)) if is_asked else None
    first = find_plans(
        model, CARDS[card], tokens_per_step=tokens, seq_len=seq_len, adapter=adapter
    ).first
    assert first.name.startswith(kept) and first.setup.optimizer.name == optimizer
    assert first.setup.place == (place or Place.AFTER_BACKWARD)
    assert first.fits_at_worst and first.host_bytes <= 2 * CARDS[card].memory_bytes


def test_the_rule_is_what_the_code_does():
    """Against the plain words of it: of every plan of the job that fits at worst, none has less time times factors."""
    prices = [
        (plan.seconds * math.prod(FACTORS[words] for words in plan.gives_up), plan)
        for plan in FOUND.plans
    ]
    cheaper = [plan for price, plan in prices if price < FOUND.first.price]
    assert len(cheaper) > 10 and not any(
        plan.least_bytes < plan.fit.room_bytes and plan.fit.least_bytes >= 0 for plan in cheaper
    )
    [price] = [price for price, plan in prices if plan is FOUND.first]
    assert FOUND.first.price == price and FOUND.first.fit.verdict == "fits"
    none = PlansFound(
        plans=tuple(plan for plan in FOUND.plans[::40] if plan.fit.verdict == "tight")
    )
    assert none.first.fit.verdict == "tight" and none.first.price == min(
        plan.price for plan in none.plans if plan.fit.expected_bytes >= 0
    )
    page = " ".join(str(FOUND).split())
    assert RULE in page and all(f"{words} {factor:g}" in page for words, factor in FACTORS.items())


def test_what_fits_at_worst_stands_before_what_is_tight():
    """Llama-2-7B in full on an H100 was told to page states that were at worst 7.75 GiB too much."""
    plan = FOUND.first
    tight = replace(plan, card=replace(CARD, memory_report=f"{plan.peak_bytes + GIB} bytes"))
    wide = next(p for p in FOUND.plans if p.price > plan.price)
    wide = replace(wide, card=replace(CARD, memory_report=f"{2 * wide.peak_bytes + 4 * GIB} bytes"))
    assert tight.fits and not tight.fits_at_worst and wide.fits_at_worst
    assert (
        PlansFound(plans=(tight, wide)).first is wide and PlansFound(plans=(tight,)).first is tight
    )


def test_a_second_moment_in_bf16_never_falls_and_one_in_8_bits_does():
    """Plain torch and torchao's own 8-bit tensor: gradients shrink tenfold, so that v has to fall a hundredfold."""
    states = pytest.importorskip("torchao.optim.subclass_8bit")
    torch.manual_seed(0)
    beta, exact, narrow = 0.999, torch.zeros(4096), torch.zeros(4096, dtype=torch.bfloat16)
    eight = states.OptimState8bit.zeros((4096,), signed=False, block_size=256)
    for number in range(6000):
        square = (torch.randn(4096) * (1.0 if number < 3000 else 0.1)).square()
        exact.lerp_(square, 1 - beta)
        narrow.copy_(narrow.float().lerp(square, 1 - beta))
        eight.copy_(eight.dequantize().lerp(square, 1 - beta))
    too_large = [float((state / exact).median()) for state in (narrow.float(), eight.dequantize())]
    assert too_large[0] > 10 and 0.5 < too_large[1] < 1.5
    assert FACTORS["states rounded to bf16"] > FACTORS["states in 8 bits"]


def test_more_memory_never_costs_more_flops_and_none_is_never_enough():
    setup = TrainingSetup(model=LLAMA_32_1B, precision=PURE_BF16, seq_len=8192)
    plans = [plan_of(setup.under(way), CARD) for way in strategies_of(LLAMA_32_1B.num_layers)[::3]]
    cards = [replace(CARD, memory_report=f"{size * GIB} bytes") for size in range(8, 60, 4)]
    firsts = [
        PlansFound(plans=tuple(replace(plan, card=card) for plan in plans)).first for card in cards
    ]
    costs = [step_flops(plan.setup).total for plan in firsts if plan]
    assert costs == sorted(costs, reverse=True) and len(set(costs)) > 2
    assert firsts[0] is None and firsts[-1].setup.recomputation is NONE


def test_every_plan_does_the_same_work():
    assert {
        plan.setup.tokens_per_micro_batch * plan.setup.grad_accum_steps for plan in FOUND.plans
    } == {16384}


def test_each_step_of_the_staircase_is_faster_and_gives_up_something_dearer():
    front = FOUND.front
    assert front[0] == FOUND.first and len(front) > 2 and all(plan.fits_at_worst for plan in front)
    assert [plan.price for plan in front] == sorted(plan.price for plan in front)
    for slow, fast in pairwise(sorted(front, key=lambda plan: -plan.seconds)):
        assert fast.seconds < slow.seconds and fast.factor > slow.factor


def test_what_does_not_fit_is_told_by_how_much():
    sizes = [plan.peak_bytes for plan in FOUND.missed]
    assert sizes == sorted(sizes) and all(not plan.fits_at_worst for plan in FOUND.missed)
    assert "Nothing fits." in str(
        replace(FOUND, plans=tuple(plan for plan in FOUND.missed if not plan.fits))
    )


def test_sharding_lets_a_model_fit_that_no_card_holds():
    one, eight = (
        find_plans(LLAMA_2_7B, CARD, tokens_per_step=16384, seq_len=2048, num_cards=n)
        for n in (1, 8)
    )
    assert one.first.gives_up == ("only adapters are trained",)
    whole = next(plan for plan in eight.front if not plan.gives_up)
    assert whole.layout.stage == 3 and whole.layout.reduce_dtype == "float32"
    # over PCIe sums in 16 bits save time: that is all the first one gives up for it
    assert eight.first.gives_up == ("gradients summed in 16 bits",)
    assert eight.first.seconds < whole.seconds


def test_what_is_given_up_follows_from_the_numbers_that_are_kept():
    """Recipes by their dtypes: what a step rounds, sums and keeps."""
    setup = TrainingSetup(model=TINY_LLAMA, precision=PURE_BF16, seq_len=64)
    summed = "gradients summed in 16 bits"
    states = "states rounded to bf16"
    rounded = "updates rounded to bf16"
    assert set(plan_of(setup, CARD).gives_up) == {states, rounded}
    assert set(plan_of(replace(setup, grad_accum_steps=2), CARD).gives_up) == {
        summed,
        states,
        rounded,
    }
    eight = OptimizerConfig(record=OPTIMIZERS["torchao 8-bit AdamW"])
    assert set(plan_of(replace(setup, optimizer=eight), CARD).gives_up) == {
        "states in 8 bits",
        "updates rounded to bf16 at random",
    }
    at_once = Job(model=TINY_LLAMA, seq_len=64, place="in backward")
    assert plan_of(at_once, CARD).gives_up == ("gradients not clipped",)
    layout = Layout(stage=3, dp_size=4, param_dtype="bfloat16")
    sharded = TrainingSetup(model=TINY_LLAMA, seq_len=64)
    assert plan_of(sharded, CARD, layout).gives_up == (summed,)
    assert plan_of(sharded, CARD, replace(layout, reduce_dtype="float32")).gives_up == ()
    ddp = replace(sharded, precision=AUTOCAST_BF16)
    assert plan_of(ddp, CARD, Layout(stage=0, dp_size=4)).gives_up == ()


def test_the_grid_has_what_chapters_recommend():
    views = [layout for layout in layouts_of(4) if layout.gradient_as_bucket_view]
    assert {layout.stage for layout in views} == {0, 1}
    ways = list(ways_of(Job(model=TINY_LLAMA, seq_len=64), None, 2, CARD))
    assert {setup.precision for setup, _ in ways} >= set(PRECISIONS["bfloat16"])
    assert {(job.optimizer, job.place) for job, _ in ways} == set(TRIED)
    assert {strategy.name for strategy in strategies_of(4)} >= {
        "groups of 2",
        "first 3 blocks",
        "full",
        "none",
    }


@pytest.mark.parametrize("way", [{"fused": True}, {"foreach": True}])
def test_gradients_of_another_dtype_are_left_out_for_torch_refuses_them(way):
    weight = torch.nn.Parameter(torch.zeros(8, dtype=torch.bfloat16))
    weight.grad_dtype = torch.float32
    weight.grad = torch.ones(8)
    with pytest.raises(RuntimeError):
        torch.optim.AdamW([weight], **way).step()


def test_the_host_is_said_and_checked():
    """Llama-2-7B in full on one card by 10.1's answer: weights, gradients and two moments in bf16 are on the host."""
    place = "on the host, gradients too"
    setup = Job(
        model=LLAMA_2_7B, precision=PURE_BF16, seq_len=2048, recomputation="full", place=place
    )
    plan = plan_of(setup, CARD)
    assert plan.fits and place in plan.name
    assert plan.host_bytes == pytest.approx(8 * 6_738_415_616, rel=0.001)
    assert (
        not replace(plan, host_room_bytes=32 * GIB).fits
        and replace(plan, host_room_bytes=64 * GIB).fits
    )
    missed = PlansFound(plans=(replace(plan, host_room_bytes=32 * GIB),))
    assert "the host would hold 50.21 GiB, 32.00 GiB are there" in " ".join(str(missed).split())


@pytest.mark.parametrize(
    ("name", "multiplies"), [("T4", False), ("V100 16 GB", False), ("A10", True)]
)
def test_a_card_without_bfloat16_is_named_and_gets_no_plan_in_it(name, multiplies):
    """Compute capability 8.0 is the first with bfloat16: ``torch.cuda.is_bf16_supported``."""
    found = find_plans(TINY_LLAMA, CARDS[name], tokens_per_step=2048, seq_len=2048)
    assert (CARDS[name].compute_capability >= (8, 0)) == multiplies
    assert ("GradScaler" in found.not_tried) != multiplies
    assert any("bfloat16" in str(plan.setup.precision) for plan in found.plans) == multiplies


def test_the_page_of_plans_is_narrow_and_holds_every_plan_of_the_front():
    text = FOUND.table()
    assert max(map(len, text.splitlines())) <= 100
    assert all(plan.name in text and plan.name in text.html for plan in FOUND.front)


# --- judged ---------------------------------------------------------------------------------------------------------


def test_the_recorded_jobs_were_judged_right():
    jobs, about = RECORDED["jobs"], RECORDED["about"]
    found = JUDGE["about"](jobs, about["seed"])
    assert all(
        found[key] == about[key]
        for key in ("jobs", "right", "traced", "said", "ratio_least", "ratio_most")
    )
    assert about["right"] == about["jobs"] == len(jobs) == sum(bool(job["traced"]) for job in jobs)


def test_a_recorded_job_is_judged_right_again():
    recorded = RECORDED["jobs"][0]
    chance = random.Random(f"{RECORDED['about']['seed']} 0")
    again = JUDGE["judged"](JUDGE["random_job"](chance), chance)
    advice = (
        "the planner tries other plans than were judged: run dev/judge_plans.py 30 for new jobs"
    )
    assert recorded["plans"] == again["plans"], advice
    assert {row[0]: row[3] for row in again["traced"]} == {
        row[0]: row[3] for row in recorded["traced"]
    }


@pytest.mark.parametrize(
    "tokens, words",
    [
        (1000, "no whole number of 2048 × 1 tokens; 2048 would be"),
        (0, "below 1"),
        (5000, "4096 or 6144 would be"),
    ],
)
def test_a_wrong_number_of_tokens_is_refused(tokens, words):
    with pytest.raises(ValueError, match=words):
        find_plans(TINY_LLAMA, CARD, tokens_per_step=tokens, seq_len=2048)
