"""Batch plans: the numbers that are printed elsewhere, and that no plan is off by a token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memkit.batch_plan import BatchPlan, cuts_of, nearest_plans


def test_four_million_tokens_at_8192_a_pass():
    """512 passes if 4M is 2**22, as in the sources of claim C218."""
    plan, above = nearest_plans(2**22, seq_len=8192, micro_batch_size=1)
    assert (plan.grad_accum_steps, plan.global_batch_tokens) == (512, 4 * 1024 * 1024)
    assert above.grad_accum_steps == 513


sizes = st.fixed_dictionaries(
    {name: st.integers(1, 64) for name in ("seq_len", "micro_batch_size", "dp_size")}
)


@given(st.integers(1, 10**6), sizes)
def test_nearest_plans_hold_the_tokens_between_them(tokens, sizes):
    *below, above = nearest_plans(tokens, **sizes)
    one_pass = sizes["seq_len"] * sizes["micro_batch_size"] * sizes["dp_size"]
    least = below[0].global_batch_tokens if below else 0
    assert (
        above.global_batch_tokens - least == one_pass
        and least <= tokens < above.global_batch_tokens
    )


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "8"])
def test_sizes_are_whole_numbers_above_zero(bad):
    for name in ("seq_len", "micro_batch_size", "dp_size"):
        with pytest.raises(ValueError, match=name):
            nearest_plans(
                1024, **({"seq_len": 1, "micro_batch_size": 1, "dp_size": 1} | {name: bad})
            )


@given(st.integers(1, 10**4))
def test_every_cut_sees_all_sequences(num_sequences):
    cuts = cuts_of(num_sequences)
    assert {size * steps for size, steps in cuts} == {num_sequences} and (num_sequences, 1) in cuts


def test_a_plan_in_words():
    plan = BatchPlan(seq_len=64, micro_batch_size=2, grad_accum_steps=8, dp_size=4)
    assert "64 tokens × 2 sequences × 8 accumulation steps × 4 ranks = 4.1 K" in str(plan)
