"""What the planner knows of an optimizer: where it is tried, or why it is not."""

import re

from memkit.cards import CARDS
from stepscope.optimizers import OPTIMIZERS
from stepscope.planner.ways import NO_OPTIMIZER, PLACES, TRIED, not_tried


def test_the_planner_tries_an_optimizer_or_says_why_not():
    tried = {config.name for config, _ in TRIED}
    left_out = set(re.split(": |, |\n", not_tried(CARDS["A10"], 1)))
    for name in OPTIMIZERS:
        assert (name in tried) != (name in left_out), name
    assert {*PLACES, *(name for names in NO_OPTIMIZER.values() for name in names)} == set(
        OPTIMIZERS
    )
