"""The planner's answers against traces: of 200 recorded cases ten are judged again here, ten more exhaustively."""

import json
import random
import re
import runpy
from pathlib import Path

import pytest

from memkit.fitting.planner import CANDIDATES, CONTEXT_BYTES, plan_recomputation
from memkit.fitting.room import planned_room
from memkit.setup.models import LLAMA_3_8B
from memkit.setup.recipes import PURE_BF16, OptimizerConfig
from memkit.setup.strategies import FULL, NONE
from memkit.setup.training import TrainingSetup
from memkit.units import GIB, format_bytes

ROOT = Path(__file__).parents[2]
JUDGE = runpy.run_path(str(ROOT / "scripts" / "judge_planner.py"))
RECORDED = json.loads((ROOT / "chapters" / "recordings" / "planner_judged_cpu.json").read_text(encoding="utf-8"))
ANSWERS = ("chosen", "fits", "fits_by_default", "cheaper_that_fit", "cheaper_in_the_slack")
EXHAUSTIVE = pytest.mark.exhaustive
SETUP = TrainingSetup(
    model=LLAMA_3_8B, precision=PURE_BF16, seq_len=4096, micro_batch_size=2,
    optimizer=OptimizerConfig(implementation="fused"),
)  # fmt: skip


def test_two_hundred_cases_were_judged():
    cases = RECORDED["cases"]
    assert len(cases) == 200
    assert sum(map(JUDGE["is_right"], cases)) == RECORDED["about"]["right"]
    assert all(case["fits"] is not False for case in cases), "what the planner says fits, fits"
    assert RECORDED["about"]["right"] == 200, "and no cheaper strategy does"
    assert {case["chosen"] for case in cases} >= {"none", "save attention", None}, "cards of every size"


def test_the_recording_names_the_seeds_that_drew_its_cases():
    chances = [random.Random(seed) for seed in RECORDED["about"]["seeds"]]
    for number in range(4):
        drawn = JUDGE["random_case"](chances[number % len(chances)])
        recorded = {key: value for key, value in RECORDED["cases"][number].items() if key not in ANSWERS}
        cards = drawn.pop("card_bytes"), recorded.pop("card_bytes")
        assert drawn == recorded
        assert abs(cards[0] - cards[1]) <= JUDGE["STEP_BYTES"], "the card's size hangs on that day's prediction"


@pytest.mark.parametrize(
    "number", [number if number % 20 else pytest.param(number, marks=EXHAUSTIVE) for number in range(0, 200, 10)]
)
def test_a_case_judged_again(number):
    recorded = RECORDED["cases"][number]
    case = {key: value for key, value in recorded.items() if key not in ANSWERS}
    again = JUDGE["judged"](case)
    assert again["fits"] is not False
    assert (again["chosen"], again["cheaper_that_fit"]) == (recorded["chosen"], recorded["cheaper_that_fit"])


@pytest.mark.parametrize("is_traced", [False, pytest.param(True, marks=EXHAUSTIVE)])
def test_the_cheapest_first_and_the_last_fits(is_traced):
    for card in (76, 84, 120, 200):
        plan = plan_recomputation(SETUP, card * GIB, is_traced=is_traced)
        totals = [option.flops.total for option in plan.options]
        assert totals == sorted(totals)
        assert [option.fits for option in plan.options[:-1]] == [False] * (len(totals) - 1)
    assert plan.chosen.strategy is NONE


@pytest.mark.parametrize("is_traced", [False, pytest.param(True, marks=EXHAUSTIVE)])
def test_more_memory_never_costs_more_flops(is_traced):
    cards = range(66, 110, 6)
    chosen = [plan_recomputation(SETUP, card * GIB, is_traced=is_traced).chosen for card in cards]
    costs = [option.flops.total for option in chosen if option]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) > 2


def test_nothing_fits_a_card_smaller_than_the_weights():
    plan = plan_recomputation(SETUP, 24 * GIB)
    assert plan.chosen is None and len(plan.options) == len(CANDIDATES)
    assert "nothing fits in 23.27 GiB" in str(plan)


def test_the_plan_shows_its_code():
    plan = plan_recomputation(SETUP, 90 * GIB, candidates=(FULL,))
    assert FULL.code in str(plan)


def test_a_card_all_context_is_refused():
    with pytest.raises(ValueError, match="card_bytes=1000 less context_bytes=2000"):
        plan_recomputation(SETUP, 1000, context_bytes=2000)


THREE = (
    ({"family": "GPT-2", "num_layers": 2, "hidden_size": 512, "num_heads": 8, "vocab_size": 32000, "seq_len": 1408,
      "micro_batch_size": 4, "precision": "pure bf16", "optimizer": "fused", "attention": "flash", "dropout": 0.0,
      "card_bytes": 2013265920}, "none", "none"),
    ({"family": "Llama", "num_layers": 4, "hidden_size": 1536, "num_heads": 24, "vocab_size": 8192, "seq_len": 256,
      "micro_batch_size": 8, "precision": "fp32", "optimizer": "foreach", "attention": "stored", "dropout": 0.0,
      "card_bytes": 3221225472}, "save every second product", "1 block in 2"),
    ({"family": "Llama", "num_layers": 6, "hidden_size": 1792, "num_heads": 28, "vocab_size": 32000, "seq_len": 640,
      "micro_batch_size": 13, "precision": "pure bf16", "optimizer": "foreach", "attention": "flash", "dropout": 0.1,
      "card_bytes": 6442450944}, "save attention and products", "save every second product"),
)  # fmt: skip


@pytest.mark.parametrize("case, formula_alone, answer", THREE)
def test_three_plans_that_once_did_not_fit(case, formula_alone, answer):
    """The trace has the last word; the two that it changes are a plan that fails it and one that costs more."""
    setup, card = JUDGE["setup_of"](case), case["card_bytes"]
    alone = plan_recomputation(setup, card, is_traced=False).chosen
    plan = plan_recomputation(setup, card)
    assert (alone.strategy.name, plan.chosen.strategy.name) == (formula_alone, answer)
    assert JUDGE["fits_by_trace"](setup, plan.chosen.strategy, card, card - CONTEXT_BYTES) == [True]
    fits_itself = JUDGE["fits_by_trace"](setup, alone.strategy, card, card - CONTEXT_BYTES)
    assert fits_itself == [answer == formula_alone]
    was_tried = {option.strategy.name: option.fits_traced for option in plan.options}.get(formula_alone)
    assert was_tried == {"none": True, "1 block in 2": None, "save every second product": False}[answer]
    assert was_tried is not None or plan.chosen.flops.total < alone.flops.total


def test_a_plan_says_whether_it_was_traced_and_its_margin():
    plan = plan_recomputation(SETUP, 90 * GIB, candidates=(FULL,), is_traced=False)
    margin = plan.room_bytes - plan.chosen.peak.reserved_bytes
    assert f"with {format_bytes(margin)} to spare, by formula alone" in str(plan)
    assert "to spare, traced" in str(plan_recomputation(SETUP, 90 * GIB, candidates=(FULL,)))


@pytest.mark.parametrize(
    "card, context, words",
    [(-1, 0, "card_bytes=-1 is below 1"), (10, -1, "context_bytes=-1"), (10, 10, "leaves no room"),
     ("80", 0, "card_bytes='80'"), (1.5, 0, "card_bytes=1.5"), (None, 0, "card_bytes=None")],
)  # fmt: skip
def test_no_room_is_refused(card, context, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        planned_room(card, context)
