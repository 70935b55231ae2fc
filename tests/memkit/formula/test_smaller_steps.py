"""The step of every optimizer, in each way that the formula knows, against a trace of the real step, to the byte."""

from dataclasses import replace

import pytest
from same_steps import assert_same

from memkit.formula.estimate import estimate_memory
from memkit.models import TINY_GPT2
from memkit.program.transformer import training_build
from memkit.recipes import FP32, OPTIMIZERS, OptimizerConfig
from memkit.setup import TrainingSetup
from memkit.tracing.trace import trace_memory

GPT = TrainingSetup(
    model=replace(TINY_GPT2, num_layers=5, vocab_size=512),
    precision=FP32,
    seq_len=64,
    micro_batch_size=2,
)
PLAYED = [
    OptimizerConfig(record=name, implementation=implementation)
    for name, record in OPTIMIZERS.items()
    for implementation in record.estimated
]
"""Every optimizer, in each way for whose temporaries its record names a rule."""


@pytest.mark.parametrize(
    "config", PLAYED, ids=lambda config: f"{config.name}, {config.implementation}"
)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_step_with_another_optimizer(config, device):
    setup = replace(GPT, optimizer=config, device=device)
    assert_same(setup, estimate_memory(setup), trace_memory(training_build(setup), device=device))
