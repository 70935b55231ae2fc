"""A new optimizer is one record: torch's RMSprop, added by it, is estimated, run and traced."""

import re
from dataclasses import replace

import pytest

from memkit.formula.estimate import estimate_memory
from memkit.formula.optimizer import RULES
from memkit.hardware.cards import CARDS
from memkit.program.transformer import training_build
from memkit.setup.models import TINY_LLAMA
from memkit.setup.optimizers import GIVEN_UP, OPTIMIZERS, STEP, TEMPORARIES, TRACE_IT, Optimizer, Place, State
from memkit.setup.recipes import OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.tracing.trace import trace_memory
from stepscope.fitting.grid import OPTIMIZERS as PLANNED
from stepscope.fitting.grid import not_tried
from stepscope.fitting.plan import GIVES_UP

RMSPROP = Optimizer(
    name="RMSprop", states=(replace(STEP, on_host="never"), State(role="square_avg")), made_by="torch.optim:RMSprop",
    implementations=("foreach", "for-loop"), temporaries={"foreach": "all at once", "for-loop": TRACE_IT},
    not_planned="are an example",
)
"""torch 2.13 makes its ``step`` on the parameter's own device; ``_multi_tensor_rmsprop`` takes all roots at once."""


def with_rmsprop(implementation: str) -> TrainingSetup:
    optimizer = OptimizerConfig(record="RMSprop", implementation=implementation)
    return TrainingSetup(model=TINY_LLAMA, seq_len=64, optimizer=optimizer)


def test_a_new_optimizer_is_one_record(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "RMSprop", RMSPROP)
    setup = with_rmsprop("foreach")
    by_formula, by_trace = estimate_memory(setup, steps=2), trace_memory(training_build(setup), steps=2)
    assert [instant.parts for instant in by_formula.instants] == [instant.parts for instant in by_trace.instants]


def test_a_step_without_a_rule_is_left_to_the_trace(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "RMSprop", RMSPROP)
    with pytest.raises(ValueError, match=r"the step of RMSprop \(for-loop\) has no formula; trace it"):
        estimate_memory(with_rmsprop("for-loop"))
    assert trace_memory(training_build(with_rmsprop("for-loop"))).peak_bytes


def test_every_rule_of_temporaries_is_played_by_the_formula():
    assert {*RULES, TRACE_IT} == set(TEMPORARIES), "a rule is a word in TEMPORARIES and a function in RULES"


def test_the_planner_tries_an_optimizer_or_says_why_not():
    tried = {config.name for config in PLANNED}
    left_out = set(re.split(": |, |\n", not_tried(CARDS["A10"], 1)))
    for name in OPTIMIZERS:
        assert (name in tried) != (name in left_out), name
    assert set(GIVEN_UP) < set(GIVES_UP)


@pytest.mark.parametrize("wrong, words", [
    ({"gives_up": "its good name"}, "gives_up='its good name' is not one of"),
    ({"not_planned": ""}, "'RMSprop' has planned=.. and not_planned='': give the planner ways"),
    ({"planned": (("foreach", Place.AFTER_BACKWARD),)}, "give the planner ways to try it, or the reason"),
])
def test_a_record_that_leaves_the_planner_in_doubt_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        replace(RMSPROP, **wrong)


@pytest.mark.parametrize("wrong", [{"shape": "square"}, {"on_host": "sometimes"}])
def test_a_record_with_an_unknown_word_is_refused(wrong):
    with pytest.raises(ValueError, match="is not one of"):
        State(role="moment", **wrong)
