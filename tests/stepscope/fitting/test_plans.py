"""The search for plans, held against brute force over its whole grid, and its words."""

import json
import random
import runpy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from memkit.cards import CARDS
from memkit.models import GPT2_XL, LLAMA_2_7B, LLAMA_32_1B, TINY_LLAMA
from memkit.recipes import AUTOCAST_BF16, PURE_BF16
from memkit.recomputation import step_flops
from memkit.setup import TrainingSetup
from memkit.strategies import NONE
from memkit.units import GIB
from stepscope.fitting.grid import PRECISIONS, TRIED, layouts_of, strategies_of, ways_of
from stepscope.fitting.plan import GIVES_UP, plan_of
from stepscope.fitting.plans import PlansFound, find_plans, plan_recomputation
from stepscope.setup import Job, Layout

ROOT = Path(__file__).parents[3]
JUDGE = runpy.run_path(str(ROOT / "dev" / "judge_plans.py"))
BRUTE = runpy.run_path(str(ROOT / "dev" / "brute_plans.py"))
RECORDED = json.loads(JUDGE["FILE"].read_text(encoding="utf-8"))
CARD = CARDS["RTX 4090"]
FOUND = find_plans(LLAMA_32_1B, CARD, tokens_per_step=16384, seq_len=2048)


# --- nothing is missed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [0, 1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(2, 30))])
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
    assert found.first.gives_up == () and "groups of 2" in found.first.name and "paged" in found.first.name
    assert FOUND.first.gives_up == () and any("Kahan" in plan.name for plan in FOUND.neighbours(FOUND.first))


def test_more_memory_never_costs_more_flops_and_none_is_never_enough():
    setup = TrainingSetup(model=LLAMA_32_1B, precision=PURE_BF16, seq_len=8192)
    firsts = [plan_recomputation(setup, card * GIB).first for card in range(8, 60, 4)]
    costs = [step_flops(plan.setup).total for plan in firsts if plan]
    assert costs == sorted(costs, reverse=True) and len(set(costs)) > 2
    assert firsts[0] is None and firsts[-1].setup.recomputation is NONE


def test_every_plan_does_the_same_work():
    assert {plan.setup.tokens_per_micro_batch * plan.setup.grad_accum_steps for plan in FOUND.plans} == {16384}


def test_each_step_of_the_staircase_is_faster_and_gives_up_something_dearer():
    front = FOUND.front
    assert front[0] == FOUND.first and len(front) > 2 and all(plan.fits for plan in front)
    for before, after in pairwise(front):
        assert after.seconds < before.seconds and after.sacrifice > before.sacrifice


def test_what_does_not_fit_is_told_by_how_much():
    sizes = [plan.peak_bytes for plan in FOUND.missed]
    assert sizes == sorted(sizes) and all(not plan.fits for plan in FOUND.missed)
    assert "Nothing fits." in str(replace(FOUND, plans=FOUND.missed))


def test_sharding_lets_a_model_fit_that_no_card_holds():
    one, eight = (find_plans(LLAMA_2_7B, CARD, tokens_per_step=16384, seq_len=2048, num_cards=n) for n in (1, 8))
    assert one.first.gives_up and eight.first.gives_up == ()
    assert eight.first.layout.stage == 3 and eight.first.layout.reduce_dtype == "float32"


def test_what_is_given_up_follows_from_the_numbers_that_are_kept():
    """Recipes by their dtypes: what a step rounds, sums and keeps."""
    setup = TrainingSetup(model=TINY_LLAMA, precision=PURE_BF16, seq_len=64)
    summed, states, rounded = GIVES_UP[0], GIVES_UP[1], "updates rounded to bf16"
    assert plan_of(setup, CARD).gives_up == (states, rounded)
    assert plan_of(replace(setup, grad_accum_steps=2), CARD).gives_up == (summed, states, rounded)
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
    assert {strategy.name for strategy in strategies_of(4)} >= {"groups of 2", "first 3 blocks", "full", "none"}


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
    setup = Job(model=LLAMA_2_7B, precision=PURE_BF16, seq_len=2048, recomputation="full", place=place)
    plan = plan_of(setup, CARD)
    assert plan.fits and place in plan.name
    assert plan.host_bytes == pytest.approx(8 * 6_738_415_616, rel=0.001)
    assert not replace(plan, host_room_bytes=32 * GIB).fits and replace(plan, host_room_bytes=64 * GIB).fits
    missed = PlansFound(plans=(replace(plan, host_room_bytes=32 * GIB),))
    assert "the host would hold 50.21 GiB, 32.00 GiB are there" in " ".join(str(missed).split())


@pytest.mark.parametrize(("name", "multiplies"), [("T4", False), ("V100 16 GB", False), ("A10", True)])
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
    assert all(found[key] == about[key] for key in ("jobs", "right", "traced", "said", "ratio_least", "ratio_most"))
    assert about["right"] == about["jobs"] == len(jobs) == sum(bool(job["traced"]) for job in jobs)


def test_a_recorded_job_is_judged_right_again():
    recorded = RECORDED["jobs"][0]
    chance = random.Random(f"{RECORDED['about']['seed']} 0")
    again = JUDGE["judged"](JUDGE["random_job"](chance), chance)
    advice = "the planner tries other plans than were judged: run dev/judge_plans.py 30 for new jobs"
    assert recorded["plans"] == again["plans"], advice
    assert {row[0]: row[3] for row in again["traced"]} == {row[0]: row[3] for row in recorded["traced"]}


@pytest.mark.parametrize("tokens, words", [(1000, "no whole number of 2048 × 1 tokens; 2048 would be"), (0, "below 1"),
                                           (5000, "4096 or 6144 would be")])
def test_a_wrong_number_of_tokens_is_refused(tokens, words):
    with pytest.raises(ValueError, match=words):
        find_plans(TINY_LLAMA, CARD, tokens_per_step=tokens, seq_len=2048)
