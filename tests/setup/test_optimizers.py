"""A new optimizer is one record: torch's RMSprop, added by it, is estimated, run and traced."""

from dataclasses import replace

import pytest

from memkit.formula.estimate import estimate_memory
from memkit.program.transformer import training_build
from memkit.setup.models import TINY_LLAMA
from memkit.setup.optimizers import OPTIMIZERS, STEP, TRACE_IT, Optimizer, State
from memkit.setup.recipes import OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.tracing.trace import trace_memory

RMSPROP = Optimizer(
    name="RMSprop", states=(replace(STEP, on_host="never"), State(role="square_avg")), made_by="torch.optim:RMSprop",
    implementations=("foreach", "for-loop"), temporaries={"foreach": "all at once", "for-loop": TRACE_IT},
)  # fmt: skip
"""torch 2.13 makes its ``step`` on the parameter's own device; ``_multi_tensor_rmsprop`` takes all roots at once."""


def with_rmsprop(implementation: str) -> TrainingSetup:
    optimizer = OptimizerConfig(name="RMSprop", implementation=implementation)
    return TrainingSetup(model=TINY_LLAMA, seq_len=64, optimizer=optimizer)


def test_a_new_optimizer_is_one_record(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "RMSprop", RMSPROP)
    setup = with_rmsprop("foreach")
    by_formula, by_trace = estimate_memory(setup, steps=2), trace_memory(training_build(setup), steps=2)
    assert [instant.parts for instant in by_formula.instants] == [instant.parts for instant in by_trace.instants]


def test_a_step_without_a_rule_is_left_to_the_trace(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "RMSprop", RMSPROP)
    with pytest.raises(ValueError, match="the temporaries of RMSprop's step have no formula; trace it"):
        estimate_memory(with_rmsprop("for-loop"))
    assert trace_memory(training_build(with_rmsprop("for-loop"))).peak_bytes


@pytest.mark.parametrize("wrong", [{"shape": "square"}, {"on_host": "sometimes"}])
def test_a_record_with_an_unknown_word_is_refused(wrong):
    with pytest.raises(ValueError, match="is not one of"):
        State(role="moment", **wrong)
