"""The planner's answers against traces: 200 recorded cases, of which 20 are judged again here."""

import json
import runpy
from pathlib import Path

import pytest

from memkit.fitting.planner import CANDIDATES, plan_recomputation
from memkit.setup.models import LLAMA_3_8B
from memkit.setup.recipes import PURE_BF16, OptimizerConfig
from memkit.setup.strategies import FULL, NONE
from memkit.setup.training import TrainingSetup
from memkit.units import GIB

ROOT = Path(__file__).parents[2]
JUDGE = runpy.run_path(str(ROOT / "scripts" / "judge_planner.py"))
RECORDED = json.loads((ROOT / "chapters" / "recordings" / "planner_judged_cpu.json").read_text(encoding="utf-8"))
ANSWERS = ("chosen", "fits", "fits_by_default", "cheaper_that_fit", "cheaper_in_the_slack")
SETUP = TrainingSetup(
    model=LLAMA_3_8B, precision=PURE_BF16, seq_len=4096, micro_batch_size=2,
    optimizer=OptimizerConfig(implementation="fused"),
)  # fmt: skip


def test_two_hundred_cases_were_judged():
    cases = RECORDED["cases"]
    assert len(cases) == 200
    assert sum(map(JUDGE["is_right"], cases)) == RECORDED["about"]["right"]
    assert all(case["fits"] is not False for case in cases), "what the planner says fits, fits"
    assert RECORDED["about"]["right"] >= 197
    assert {case["chosen"] for case in cases} >= {"none", "save attention", None}, "cards of every size"


@pytest.mark.parametrize("number", range(0, 200, 10))
def test_a_case_judged_again(number):
    recorded = RECORDED["cases"][number]
    case = {key: value for key, value in recorded.items() if key not in ANSWERS}
    again = JUDGE["judged"](case)
    assert again["fits"] is not False
    assert (again["chosen"], again["cheaper_that_fit"]) == (recorded["chosen"], recorded["cheaper_that_fit"])


def test_the_cheapest_first_and_the_last_fits():
    for card in (76, 84, 120, 200):
        plan = plan_recomputation(SETUP, card * GIB)
        totals = [option.flops.total for option in plan.options]
        assert totals == sorted(totals)
        assert [option.fits for option in plan.options[:-1]] == [False] * (len(totals) - 1)
    assert plan.chosen.strategy is NONE


def test_more_memory_never_costs_more_flops():
    chosen = [plan_recomputation(SETUP, card * GIB).chosen for card in range(66, 110, 6)]
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
