"""The adviser on setups: every change that is offered can be made, keeps model and tokens, and lowers the peak."""

from dataclasses import replace

import pytest

from memkit.formula.estimate import estimate_memory
from memkit.models import GPT2_SMALL
from stepscope.advice.changes import CHANGES, advice_in_words, effects_on_setup
from stepscope.setup import Job, Place

SETUP = Job(model=GPT2_SMALL, micro_batch_size=8)


def test_no_change_is_offered_that_the_setup_refuses():
    """An optimizer that frees each gradient in the backward leaves none to accumulate."""
    setup = replace(SETUP, place=Place.IN_BACKWARD)
    names = [effect.name for effect in effects_on_setup(setup)]
    assert names and not any("accumulated" in name for name in names)


def test_a_change_to_what_has_no_formula_is_left_out():
    """A CPU's flash kernel has no dropout, so that PyTorch runs a composite of its own."""
    setup = replace(SETUP, attention="stored", dropout=0.1, device="cpu")
    with pytest.raises(ValueError, match="no formula"):
        estimate_memory(replace(setup, attention="flash"))
    names = [effect.name for effect in effects_on_setup(setup)]
    assert (
        "full recomputation, which runs each forward twice" in names
        and "flash attention" not in names
    )


def test_what_helps_is_sorted_and_each_really_helps():
    peak = estimate_memory(SETUP, steps=2).for_step(2).peak_bytes
    helps = effects_on_setup(SETUP)
    assert helps and [e.after_bytes for e in helps] == sorted(e.after_bytes for e in helps)
    assert all(e.after_bytes < peak == e.before_bytes for e in helps)
    assert helps[0].name in advice_in_words(SETUP)


def changed_setups(setup):
    found = {change.name: change.to_setup(setup) for change in CHANGES}
    return {name: changed for name, changed in found.items() if changed != setup}


def test_a_change_keeps_model_and_tokens_of_the_step():
    for setup in (
        SETUP,
        replace(SETUP, attention="stored", micro_batch_size=6, grad_accum_steps=3),
    ):
        assert changed_setups(setup)
        for changed in changed_setups(setup).values():
            assert changed.model == setup.model
            tokens = [s.tokens_per_micro_batch * s.grad_accum_steps for s in (setup, changed)]
            assert tokens[0] == tokens[1]


def test_no_advice_is_given_twice():
    for name, changed in changed_setups(SETUP).items():
        assert name not in changed_setups(changed) or "half" in name
