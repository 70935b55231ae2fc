"""The search for plans, held against brute force over its whole grid, and its words."""

import json
import random
import runpy
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest

from memkit.fitting.grid import OPTIMIZERS, PRECISIONS, layouts_of, strategies_of, ways_of
from memkit.fitting.plan import GIVES_UP, plan_of
from memkit.fitting.plans import PlansFound, find_plans, plan_recomputation
from memkit.fitting.room import fit_on
from memkit.hardware.cards import CARDS
from memkit.recomputation.costs import step_flops
from memkit.setup.layouts import Layout
from memkit.setup.models import (
    GPT2_XL,
    LLAMA_2_7B,
    LLAMA_32_1B,
    TINY_LLAMA,
    gpt2_config,
    llama_config,
)
from memkit.setup.recipes import AUTOCAST_BF16, BF16_TWO_GRADIENTS, PURE_BF16, OptimizerConfig
from memkit.setup.strategies import NONE, SAVE_ATTENTION, every, groups, sequential
from memkit.setup.training import TrainingSetup
from memkit.units import GIB

ROOT = Path(__file__).parents[2]
JUDGE = runpy.run_path(str(ROOT / "scripts" / "judge_plans.py"))
RECORDED = json.loads(JUDGE["FILE"].read_text(encoding="utf-8"))
CARD = CARDS["RTX 4090"]
FOUND = find_plans(LLAMA_32_1B, CARD, tokens_per_step=16384, seq_len=2048)


# --- nothing is missed ----------------------------------------------------------------------------------------------


def job_of(number: int) -> PlansFound:
    """A random job: a model of either family on a card, old or new, that holds some of its plans and not the others."""
    chance = random.Random(f"plans {number}")
    heads, layers = 4 * chance.randint(2, 5), chance.randint(2, 5)
    sizes = {"num_layers": layers, "num_heads": heads, "hidden_size": 64 * heads}
    if chance.random() < 0.5:
        model = replace(gpt2_config("random", **sizes), vocab_size=chance.choice((8192, 50257)))
    else:
        model = llama_config("random", **sizes, num_kv_heads=heads // 4, intermediate_size=176 * heads,
                             vocab_size=chance.choice((8192, 32000)), max_seq_len=1024)
    card, num_cards = CARDS[chance.choice(("T4", "RTX 4090", "H100 SXM"))], chance.choice((1, 1, 2))
    sizes = {"seq_len": 256 * chance.randint(1, 4), "num_cards": num_cards}
    tokens = sizes["seq_len"] * num_cards * chance.choice((2, 4))
    plans = find_plans(model, card, tokens_per_step=tokens, **sizes).plans
    peaks = sorted(chance.choice(plans).peak_bytes for _ in range(9))
    size = int(peaks[chance.randint(0, 5)] * 1.01) + GIB
    return PlansFound(plans=tuple(replace(p, card=replace(card, memory_report=f"{size} bytes")) for p in plans))


def said_by_a_setup(found: PlansFound) -> list:
    """Plans that the grid leaves out and a setup can say, of whose kind "not tried" gives the reason."""
    first = found.plans[0]
    setup, layout = first.setup, first.layout
    if layout is not None:
        return []
    count = setup.model.num_layers
    ways = [NONE, every(2), every(count + 1), *map(groups, range(2, count + 1)), *map(sequential, range(2, count + 1)),
            SAVE_ATTENTION, replace(SAVE_ATTENTION, group_size=2), replace(SAVE_ATTENTION, period=2)]
    precisions = (*PRECISIONS["bfloat16" if "bfloat16" in first.card.dtypes else "float16"], BF16_TWO_GRADIENTS)
    optimizers = [OptimizerConfig(implementation=way) for way in ("foreach", "for-loop", "fused")]
    num = setup.micro_batch_size * setup.grad_accum_steps
    cuts = [(size, num // size) for size in range(1, num + 1) if num % size == 0]
    return [
        plan_of(replace(setup, precision=p, optimizer=o, recomputation=way, adapter=None, micro_batch_size=size,
                        grad_accum_steps=steps), first.card)
        for p, o, way, (size, steps) in product(precisions, optimizers, ways, cuts)
    ]


def missed_by(found: PlansFound, others) -> list[str]:
    """Names of plans that fit, give up no more than the first and are faster."""
    first = found.first
    return [
        plan.name for plan in others
        if (first is None or (plan.seconds < first.seconds and set(plan.gives_up) <= set(first.gives_up)))
        and fit_on(plan.card, plan.peak_bytes).is_expected
    ]


@pytest.mark.parametrize(
    "number", [0, 1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(2, 30))])
def test_no_plan_of_a_random_job_is_missed(number):
    """Brute force: every plan of the grid is played, whatever its least bytes and its time say."""
    found = job_of(number)
    assert not missed_by(found, found.plans)
    policies = [name for name in missed_by(found, said_by_a_setup(found)) if "save attention" not in name]
    assert not policies  # "policies over some of the blocks or over groups" are named as not tried
    for plan in found.plans[:: len(found.plans) // 200 + 1]:
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
    ways = list(ways_of(TrainingSetup(model=TINY_LLAMA, seq_len=64), None, 2))
    assert {setup.precision for setup, _ in ways} >= set(PRECISIONS["bfloat16"])
    assert {setup.optimizer for setup, _ in ways} == set(OPTIMIZERS)
    assert {strategy.name for strategy in strategies_of(4)} >= {"groups of 2", "1 block in 2", "full", "none"}


def test_the_host_is_said_and_checked():
    """Llama-2-7B in full on one card by 10.1's answer: weights, gradients and two moments in bf16 are on the host."""
    place = "on the host, gradients too"
    setup = TrainingSetup(
        model=LLAMA_2_7B, precision=PURE_BF16, seq_len=2048, recomputation="full",
        optimizer=OptimizerConfig(place=place),
    )
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
    advice = "the planner tries other plans than were judged: run scripts/judge_plans.py 30 for new jobs"
    assert recorded["plans"] == again["plans"], advice
    assert {row[0]: row[3] for row in again["traced"]} == {row[0]: row[3] for row in recorded["traced"]}


@pytest.mark.parametrize("tokens, words", [(1000, "no whole number of 2048 × 1 tokens; 2048 would be"), (0, "below 1"),
                                           (5000, "4096 or 6144 would be")])
def test_a_wrong_number_of_tokens_is_refused(tokens, words):
    with pytest.raises(ValueError, match=words):
        find_plans(TINY_LLAMA, CARD, tokens_per_step=tokens, seq_len=2048)
