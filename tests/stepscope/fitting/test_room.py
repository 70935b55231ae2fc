"""One rule for "fits": the adviser, the planner and the report agree."""

import re
from dataclasses import replace

import pytest

from memkit.formula.estimate import estimate_memory
from memkit.hardware.cards import CARDS
from memkit.hardware.fit import fit_on, planned_room, verdict
from memkit.setup.models import GPT2_LARGE
from memkit.setup.recipes import OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.timeline import Instant, MemoryTimeline
from memkit.units import GIB
from stepscope.allocator.config import AllocatorConfig
from stepscope.allocator.stories import growing_story
from stepscope.allocator.trace_replay import replay_trace
from stepscope.fitting.plan import plan_of
from stepscope.fitting.room import fits_of, left_out_of, replayed_holes

CARD = CARDS["RTX 3090"]
SETUP = TrainingSetup(model=GPT2_LARGE, optimizer=OptimizerConfig(implementation="fused"))


@pytest.mark.parametrize("micro_batch_size", range(1, 9))
def test_adviser_planner_and_report_give_one_answer(micro_batch_size):
    setup = replace(SETUP, micro_batch_size=micro_batch_size)
    peak = estimate_memory(setup).for_step(2).peak
    fit = fit_on(CARD, peak.total_bytes)
    assert f"It {fit.verdict} on one RTX 3090" in verdict(peak, "RTX 3090")
    assert plan_of(setup, CARD).fits == (fit.expected_bytes >= 0) == (fit.verdict in ("fits", "should fit"))


def test_expected_is_what_a_plan_plans_with():
    """A step whose tensors and workspaces fill the planned room to the byte has nothing to spare."""
    workspaces = 2 * 8_519_680  # cuBLAS's ":4096:2:16:8" for the forward's and the backward's thread
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
        spared = [getattr(plain, name) - getattr(fit, name) for name in ("most_bytes", "expected_bytes", "least_bytes")]
        assert spared == [1, holes[1], 9]


def test_the_verdicts_are_ordered_and_the_cards_too():
    timeline = estimate_memory(replace(SETUP, micro_batch_size=4))
    fits = {fit.card: fit for fit in fits_of(left_out_of(timeline), timeline.peak_bytes)}
    assert fits["T4"].expected_bytes < fits["RTX 3090"].expected_bytes < fits["H200"].expected_bytes
    for fit in fits.values():
        assert fit.least_bytes <= fit.expected_bytes <= fit.most_bytes
    assert fits["H200"].verdict == "fits" and fits["T4"].verdict == "does not fit"
    to_the_byte = replace(fits["T4"], least_bytes=-2, expected_bytes=-1, most_bytes=0)
    assert to_the_byte.verdict == "may just fit" and replace(to_the_byte, most_bytes=-1).verdict == "does not fit"


def test_the_words_are_the_rule():
    """The second figure is the one that the verdict hangs on."""
    ends = {
        "fits": ("worst", "to spare"), "should fit": ("worst", "too much"), "may just fit": ("best", "to spare"),
        "does not fit": ("best", "too much"),
    }
    seen = set()
    for tenths in range(150, 250):
        fit = fit_on(CARD, tenths * GIB // 10)
        when, how = ends[fit.verdict]
        assert re.match(rf"It {fit.verdict} on one RTX 3090: probably .*, at {when} [^;]* {how}; context", str(fit))
        seen.add(fit.verdict)
    assert seen == set(ends)


@pytest.mark.parametrize(
    "card, words",
    [(-1, "card_bytes=-1 is below 1"), (10, "leaves no room")],
)
def test_no_room_is_refused(card, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        planned_room(card)


def test_the_least_cached_is_that_of_the_segments_that_cache_least():
    timeline = MemoryTimeline(
        instants=(Instant(name="end", total_bytes=0),), source="traced", events=tuple(growing_story())
    )
    kinds = AllocatorConfig(), AllocatorConfig(expandable_segments=True)
    plain, growing = (replay_trace(timeline, kind) for kind in kinds)
    cached = [run.peak_reserved_bytes - plain.peak_allocated_bytes for run in (plain, growing)]
    low, expected, high = replayed_holes(timeline)
    assert low == max(min(cached), 0) < expected == cached[0] <= high
