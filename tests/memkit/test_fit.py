"""One rule for "fits": what stands on a card beside the tensors, by hand."""

import re

import pytest

from memkit.cards import CARDS
from memkit.fit import fit_on, planned_room
from memkit.units import GIB

CARD = CARDS["RTX 3090"]


def test_expected_is_what_a_plan_plans_with():
    """A step whose tensors and workspaces fill the planned room to the byte has nothing to spare."""
    # cuBLAS's ":4096:2:16:8" for the forward's and the backward's thread
    workspaces = 2 * 8_519_680
    assert fit_on(CARD, planned_room(CARD.memory_bytes) - workspaces).expected_bytes == 0


@pytest.mark.parametrize("tensors", [0, GIB, 20 * GIB])
def test_the_least_is_what_the_worst_known_things_leave(tensors):
    """By hand: twice a context of 512 MiB, two workspaces, and the larger of a hundredth and a ninth of the tensors."""
    room = CARD.memory_bytes - tensors - 2 * 8_519_680
    hundredth = (CARD.memory_bytes - 2**29) // 100
    fit = fit_on(CARD, tensors)
    assert fit.least_bytes == room - 2**30 - max(hundredth, tensors // 9)
    assert fit.expected_bytes == room - 2**29 - hundredth
    assert fit.most_bytes == room - 2**28
    assert fit.room_bytes == fit_on(CARD, 0).room_bytes == tensors + fit.expected_bytes


def test_known_holes_take_the_place_of_the_shares():
    """The larger of the last two counts at worst, whichever comes first."""
    plain = fit_on(CARD, GIB, (0, 0, 0))
    for holes in ((1, 2, 9), (1, 9, 2)):
        fit = fit_on(CARD, GIB, holes)
        spared = [
            getattr(plain, name) - getattr(fit, name)
            for name in ("most_bytes", "expected_bytes", "least_bytes")
        ]
        assert spared == [1, holes[1], 9]


def test_the_words_are_the_rule():
    """The second figure is the one that the verdict hangs on."""
    ends = {
        "fits": ("worst", "to spare"),
        "should fit": ("worst", "too much"),
        "may just fit": ("best", "to spare"),
        "does not fit": ("best", "too much"),
    }
    seen = set()
    for tenths in range(150, 250):
        fit = fit_on(CARD, tenths * GIB // 10)
        when, how = ends[fit.verdict]
        assert re.match(
            rf"It {fit.verdict} on one RTX 3090: probably .*, at {when} [^;]* {how}; context",
            str(fit),
        )
        seen.add(fit.verdict)
    assert seen == set(ends)


@pytest.mark.parametrize(
    "card, words",
    [(-1, "card_bytes=-1 is below"), (10, "card_bytes=10 is below 536870913")],
)
def test_no_room_is_refused(card, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        planned_room(card)
