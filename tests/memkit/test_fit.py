"""One rule for "fits": what stands on a card beside the tensors, by hand."""

import re

import pytest

from memkit.cards import CARDS
from memkit.fit import fit_on, peak_in_words, planned_room
from memkit.timeline import Instant
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
    """The last figure is the one that the verdict hangs on; by hand, in GiB, what may fragment."""
    ends = {
        "fits": "fits on one RTX 3090: probably .* to spare, at worst .* to spare",
        "tight": "is tight on one RTX 3090: it fits .*, at worst .* too much",
        "does not fit": "does not fit on one RTX 3090: probably .* too much, at best .* too much",
    }
    seen, limits = set(), []
    for tenths in range(150, 250):
        fit = fit_on(CARD, tenths * GIB // 10)
        assert re.match(rf"It {ends[fit.verdict]}; context, workspaces", str(fit))
        seen.add(fit.verdict)
        spare = (CARD.memory_bytes - 2 * 8_519_680) / GIB - tenths / 10 - 0.5
        if fit.verdict == "tight" and spare >= 0:
            limits += [spare]
            size = f"{spare:.2f} GiB" if spare >= 1 else f"{1024 * spare:,.2f} MiB"
            lost = f"unless more than {size} are lost in fragments"
            assert f": it fits {lost}, at worst" in str(fit)
            assert fit.headline.endswith(f" fit on one RTX 3090 {lost}.")
        assert bool(fit.unless) == (fit.verdict == "tight")
    assert seen == set(ends) and len(limits) > 10


def test_what_only_a_small_context_lets_fit_is_tight():
    """Between half a context of 512 MiB and a whole one nothing may fragment."""
    rest = CARD.memory_bytes - 2 * 8_519_680
    for left, verdict in ((2**29, "tight"), (2**29 - 2, "tight"), (2**28 - 2, "does not fit")):
        assert fit_on(CARD, rest - left).verdict == verdict
    assert "more than 0 B are lost in fragments" in fit_on(CARD, rest - 2**29).unless
    said = fit_on(CARD, rest - 2**29 + 2).unless
    assert said == "only if CUDA's context takes less than 512.00 MiB"


@pytest.mark.parametrize(
    "card, words",
    [(-1, "card_bytes=-1 is below"), (10, "card_bytes=10 is below 536870913")],
)
def test_no_room_is_refused(card, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        planned_room(card)


def test_the_largest_part_of_a_peak_is_named_with_its_share():
    parts = {"weights": 3, "gradients": None, "optimizer_states": 2, "activations": 10}
    peak = Instant(name="backward peak", **parts, total_bytes=20)
    assert "the largest part is activations, 50% of it." in peak_in_words(peak)
