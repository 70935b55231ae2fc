"""The batch planner: its bars are the estimate's, its plans are whole, and nothing that is typed kills it."""

import pytest

from memkit.formula.parameters import count_parameters
from memkit.models import LLAMA_32_1B
from memkit.units import format_bytes
from memkit.widgets.batch_planner import BatchPlanner


@pytest.fixture(scope="module")
def planner():
    return BatchPlanner()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_tokens_stay_and_the_peak_grows(planner, size):
    planner.set(micro_batch_size=size)
    sequences = f"{size} sequence{'' if size == 1 else 's'}"
    assert (
        planner.error == ""
        and f"× {sequences} × {64 // size} accumulation" in planner.shown.words[2]
    )
    assert f"{size} × {64 // size}" in [row[0] for row in planner.shown.table]


def test_tokens_that_are_not_whole_show_the_nearest_plan(planner):
    planner.set(micro_batch_size=1, global_batch_tokens=4_000_000)
    nearest = 65_536 * round(4_000_000 / 65_536)  # 8 ranks of one sequence of 8,192 tokens
    told = f"4,000,000 tokens are not a whole number of forwards of 65,536; shown are {nearest:,}, the nearest"
    assert told in planner.shown.words[2]
    planner.set(global_batch_tokens=2**22)


def test_ddp_keeps_a_second_copy_of_the_gradients(planner):
    planner.set(micro_batch_size=1, dp_size=8)
    gradients = format_bytes(2 * count_parameters(LLAMA_32_1B))
    assert planner.shown.words[4].startswith(f"{gradients} of the peak are DDP's buckets")
    planner.set(dp_size=1)
    assert len(planner.shown.words) == 4
    planner.set(dp_size=8)


def test_a_refusal_names_the_control(planner):
    planner.set(global_batch_tokens=0)
    assert "<strong>Tokens a step: 0 was not taken.</strong>" in planner.panel.alert.value
    planner.set(card="A100 PCIe of 2030")  # a name with spaces is one value
    assert (
        "&#x27;A100 PCIe of 2030&#x27; was not taken.</strong> It is" in planner.panel.alert.value
    )
    planner.set(global_batch_tokens=2**22)
