"""One rule for "fits": the adviser, the planner and the report agree."""

from dataclasses import replace

import pytest

from memkit.cards import CARDS
from memkit.fit import fit_on, peak_in_words
from memkit.formula.estimate import estimate_memory
from memkit.models import GPT2_LARGE
from memkit.recipes import OptimizerConfig
from memkit.timeline import Instant, MemoryTimeline
from stepscope.advice.left_out import fits_of, left_out_of, replayed_holes
from stepscope.allocator.caching import AllocatorConfig
from stepscope.allocator.film import growing_story
from stepscope.allocator.replay import replay_trace
from stepscope.planner.plan import plan_of
from stepscope.setup import Job

CARD = CARDS["RTX 3090"]
SETUP = Job(model=GPT2_LARGE, optimizer=OptimizerConfig(implementation="fused"))


@pytest.mark.parametrize("micro_batch_size", range(1, 9))
def test_adviser_planner_and_report_give_one_answer(micro_batch_size):
    setup = replace(SETUP, micro_batch_size=micro_batch_size)
    peak = estimate_memory(setup).for_step(2).peak
    fit = fit_on(CARD, peak.total_bytes)
    assert f"It {fit.predicate} on one RTX 3090" in peak_in_words(peak, "RTX 3090")
    assert plan_of(setup, CARD).fits == (fit.expected_bytes >= 0) == fit.is_expected
    assert plan_of(setup, CARD).fits_at_worst == (fit.verdict == "fits")


def test_the_verdicts_are_ordered_and_the_cards_too():
    timeline = estimate_memory(replace(SETUP, micro_batch_size=4))
    fits = {fit.card: fit for fit in fits_of(left_out_of(timeline), timeline.peak_bytes)}
    assert fits["T4"].expected_bytes < fits["RTX 3090"].expected_bytes < fits["H200"].expected_bytes
    for fit in fits.values():
        assert fit.least_bytes <= fit.expected_bytes <= fit.most_bytes
    assert fits["H200"].verdict == "fits" and fits["T4"].verdict == "does not fit"
    to_the_byte = replace(fits["T4"], least_bytes=-2, expected_bytes=-1, most_bytes=0)
    assert (
        to_the_byte.verdict == "tight"
        and replace(to_the_byte, most_bytes=-1).verdict == "does not fit"
    )


def test_the_least_cached_is_that_of_the_segments_that_cache_least():
    timeline = MemoryTimeline(
        instants=(Instant(name="end", total_bytes=0),),
        source="traced",
        events=tuple(growing_story()),
    )
    kinds = AllocatorConfig(), AllocatorConfig(expandable_segments=True)
    plain, growing = (replay_trace(timeline, kind) for kind in kinds)
    cached = [run.peak_reserved_bytes - plain.peak_allocated_bytes for run in (plain, growing)]
    low, expected, high = replayed_holes(timeline)
    assert low <= max(min(cached), 0) < expected == cached[0] <= high
    # a card that has no more than the least holds it: whole free segments go back
    capacity = plain.peak_allocated_bytes + low
    assert replay_trace(timeline, capacity_bytes=capacity).failure is None
    assert replay_trace(timeline, capacity_bytes=capacity - 1).failure is not None
