"""Real ranks: a sharded step keeps what the formula says, sends what it says, and has the loss of one rank."""

from dataclasses import replace
from functools import cache
from itertools import accumulate

import gpt2_ranks
import pytest

from book.accumulation_ranks import SENT
from book.ranks import run_on_ranks
from book.training_ranks import steps, windows
from stepscope.program.sharded import one_rank_of, sharded_build
from stepscope.sharding import estimate_sharded, step_traffic
from stepscope.tracing.trace import trace_script

MODULE = "book.training_ranks"

NUMBERS = 64
"""Bytes of Python's numbers, which only a measurement sees."""


@cache
def told_by(num_ranks: int) -> dict:
    return run_on_ranks(MODULE, num_ranks)["ways"]


MANY = pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.exhaustive)])


@pytest.mark.serial
@MANY
def test_memory_is_that_of_real_ranks(num_ranks):
    """The trace is of rank 0 in a group that sends nothing; the CPU's rules do not know DDP."""
    for name, way in steps(num_ranks).items():
        setup, layout, measured = way.setup, way.layout, told_by(num_ranks)[name]["peak_bytes"]
        device = "cpu" if layout.is_fully_sharded else "cuda"
        with one_rank_of(num_ranks):
            trace = trace_script(
                sharded_build(replace(setup, device=device), layout), device=device
            )
        assert trace.for_step(2).peak_bytes == pytest.approx(measured, rel=0.005), name
        assert estimate_sharded(setup, layout).for_step(2).peak_bytes == pytest.approx(
            measured, rel=0.005
        ), name


@pytest.mark.serial
def test_a_block_that_ends_in_a_bias_is_reduced_as_on_real_ranks():
    """Of a whole gradient FSDP2 still names one the last parameter's, a GPT-2's bias, while the share is made.

    The trace asks oneDNN what its products in bf16 take, which differs by processor; the formula leaves that out.
    """
    setup, layout = gpt2_ranks.SETUP, gpt2_ranks.LAYOUT
    measured = run_on_ranks(gpt2_ranks.__name__, layout.dp_size)["peak_bytes"]
    with one_rank_of(layout.dp_size):
        trace = trace_script(sharded_build(setup, layout), device="cpu")
    assert trace.for_step(2).peak_bytes == pytest.approx(measured, abs=NUMBERS)
    kept = [event for event in trace.events if not event.is_scratch]
    levels = zip(accumulate(event.num_bytes for event in kept), kept, strict=True)
    peak = max(level for level, event in levels if event.step == 2)
    assert estimate_sharded(setup, layout).for_step(2).peak_bytes == pytest.approx(
        peak, abs=NUMBERS
    )


@pytest.mark.serial
@MANY
def test_losses_are_those_of_one_process_and_collectives_those_of_the_formula(num_ranks):
    told, ways = told_by(num_ranks), steps(num_ranks) | windows(num_ranks)
    assert set(told) == set(ways)
    for name, way in ways.items():
        row = told[name]
        assert (
            row["losses"] == pytest.approx(row["oracle"], rel=1e-5) and row["difference"] < 1e-5
        ), name
        traffic = step_traffic(way.setup, way.layout, way.syncs_each)
        formula = (
            traffic.all_gathered,
            traffic.reduce_scattered,
            traffic.all_reduced,
            traffic.broadcast,
        )
        assert tuple(row["sent"].get(kind, 0) for kind in SENT) == formula, name
