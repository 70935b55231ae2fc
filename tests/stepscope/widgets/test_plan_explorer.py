"""The plan explorer: what it says is what the plans say."""

import pytest
from drawn import labels_of, marks_of

from memkit.units import format_bytes
from stepscope.pictures import plans_figure
from stepscope.planner.plan import GIVES_UP
from stepscope.widgets.plan_explorers import ANYTHING, NOTHING, PlanExplorer, plans_for

JOB = {"model": "GPT-2 XL", "card": "RTX 4090", "tokens_per_step": 32768, "seq_len": 1024}


@pytest.fixture(scope="module")
def plans():
    return PlanExplorer(**JOB)


def test_each_plan_is_told_with_its_peak_its_price_and_the_command_that_prints_its_code(plans):
    found = plans_for("GPT-2 XL", "RTX 4090", 32768, 1024, 1)
    assert plans.shown.kept[1] == found.front
    assert any(
        "stepscope fit 'GPT-2 XL' --card 'RTX 4090' --tokens 32768" in words
        for words in plans.shown.words
    )
    for number, plan in enumerate(found.front, start=1):
        plans.set(plan=number)
        assert found.plans[plans.shown.chart.marked] == plan
        assert (
            plan.name in plans.shown.words[0]
            and format_bytes(plan.peak_bytes) in plans.shown.words[1]
        )
        assert all(words in plans.shown.words[2] for words in plan.gives_up)


@pytest.mark.parametrize("gives_up", [NOTHING, *GIVES_UP, ANYTHING])
def test_nothing_dearer_is_given_up_than_allowed(plans, gives_up):
    plans.set(gives_up=gives_up)
    allowed = [NOTHING, *GIVES_UP, ANYTHING].index(gives_up)
    assert plans.error == "" and plans.state["plan"] == 1
    for plan in plans.shown.kept[1]:
        assert all(GIVES_UP.index(words) < allowed for words in plan.gives_up)
    plans.set(gives_up=ANYTHING)


def test_a_click_chooses_a_plan_that_fits(plans):
    found = plans_for("GPT-2 XL", "RTX 4090", 32768, 1024, 1)
    for mark in marks_of(plans.shown.chart, "pick")[:6]:
        plan, before = found.plans[int(mark.data["pick"])], plans.state["plan"]
        plans.pick(mark.data["pick"])
        expected = found.front.index(plan) + 1 if plan in found.front else before
        assert plans.state["plan"] == expected and int(mark.data["bytes"]) == plan.peak_bytes


def test_tokens_that_are_no_whole_sequences_are_refused_by_the_control_s_name(plans):
    plans.set(tokens_per_step=5000)
    assert "5120 would be" in plans.error and "Tokens a step" in plans.panel.alert.value
    plans.set(tokens_per_step=32768)
    assert plans.error == ""


def test_the_staircase_names_the_unbeaten_plans_and_says_which_is_chosen():
    found = plans_for("Llama-3.2-1B", "RTX 4090", 16384, 2048, 1)
    chart = plans_figure(found, "plans")
    marks = {int(mark.data["pick"]) for mark in marks_of(chart, "pick")}
    assert {found.plans.index(plan) for plan in found.front} < marks and len(marks) < 150
    words = " ".join(label.text for label in labels_of(chart)).replace("\n", " ")
    assert all(plan.name in words for plan in found.front) and words.count("chosen:") == 1
    assert max(label.box[3] for label in labels_of(chart)) <= chart.height
