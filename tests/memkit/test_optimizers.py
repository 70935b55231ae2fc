"""A new optimizer is one record: torch's RMSprop, passed as it is, is estimated, run and traced."""

import pytest

from memkit.formula.estimate import estimate_memory
from memkit.models import TINY_LLAMA
from memkit.program.transformer import training_build
from memkit.recipes import OPTIMIZERS, STEP, Optimizer, OptimizerConfig, State, on_lists
from memkit.setup import TrainingSetup
from memkit.tracing.trace import trace_memory

RMSPROP = Optimizer(
    name="RMSprop",
    states=(STEP, State(role="square_avg")),
    made_by="torch.optim:RMSprop",
    temporaries={"foreach": on_lists, "for-loop": None},
)
"""torch 2.13 makes its ``step`` by ``torch.zeros(())``, on the host; ``_multi_tensor_rmsprop`` takes all roots at
once."""


def with_rmsprop(implementation: str) -> TrainingSetup:
    optimizer = OptimizerConfig(record=RMSPROP, implementation=implementation)
    return TrainingSetup(model=TINY_LLAMA, seq_len=64, optimizer=optimizer)


def test_a_new_optimizer_is_one_record():
    setup = with_rmsprop("foreach")
    by_formula = estimate_memory(setup, steps=2)
    by_trace = trace_memory(training_build(setup), steps=2)
    assert [instant.parts for instant in by_formula.instants] == [
        instant.parts for instant in by_trace.instants
    ]
    assert setup.optimizer.name == "RMSprop" and "RMSprop" not in OPTIMIZERS


def test_a_step_without_a_rule_is_left_to_the_trace():
    with pytest.raises(
        ValueError, match=r"the step of RMSprop \(for-loop\) has no formula; trace it"
    ):
        estimate_memory(with_rmsprop("for-loop"))
    assert trace_memory(training_build(with_rmsprop("for-loop"))).peak_bytes


def test_an_implementation_that_the_record_lacks_is_refused():
    with pytest.raises(
        ValueError, match="'fused' is not offered by RMSprop; use 'foreach' or 'for-loop'"
    ):
        with_rmsprop("fused")


def test_a_record_with_an_unknown_word_is_refused():
    with pytest.raises(ValueError, match="is not one of"):
        State(role="moment", on_host="sometimes")
