"""What the planner knows of an optimizer: the ways in which it is tried, or why it is not."""

import re
from dataclasses import replace

import pytest

from memkit.cards import CARDS
from stepscope.fitting.grid import TRIED, not_tried
from stepscope.fitting.optimizers import GIVEN_UP, PLANNED
from stepscope.fitting.plan import GIVES_UP
from stepscope.optimizers import OPTIMIZERS
from stepscope.setup import Place


def test_the_planner_tries_an_optimizer_or_says_why_not():
    tried = {config.name for config, _ in TRIED}
    left_out = set(re.split(": |, |\n", not_tried(CARDS["A10"], 1)))
    for name in OPTIMIZERS:
        assert (name in tried) != (name in left_out), name
    assert set(GIVEN_UP) < set(GIVES_UP)
    assert set(PLANNED) == set(OPTIMIZERS)


@pytest.mark.parametrize("wrong, words", [
    ({"gives_up": "its good name"}, "gives_up='its good name' is not one of"),
    ({"why_not": ""}, r"ways=\(\) and why_not='': give ways"),
    ({"ways": (("foreach", Place.AFTER_BACKWARD),)}, "give ways to try it, or the reason"),
])
def test_a_record_that_leaves_the_planner_in_doubt_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        replace(PLANNED["Lion"], **wrong)
