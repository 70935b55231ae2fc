"""CUDA's autocast played: what a Llama block keeps, by the ledger and by a trace of the real block, as published."""

from dataclasses import replace

import pytest

from memkit.formula.activations import block_ledger
from memkit.models import LLAMA_2_7B
from memkit.program.transformer import training_build
from memkit.recipes import AUTOCAST_BF16, PURE_BF16
from memkit.setup import TrainingSetup
from memkit.tracing.trace import trace_memory

SETUP = TrainingSetup(model=LLAMA_2_7B, precision=AUTOCAST_BF16, seq_len=2048)


@pytest.mark.parametrize(
    "published, choices",
    [(47.53, {}), (55.53, {"uses_fused_norm": False}), (37.53, {"precision": PURE_BF16})],
)
def test_sbh_of_a_llama_block(published, choices):
    """A per-kernel count of a Llama-2-7B block with flash attention; GPT-2's: tests/memkit/tracing/test_cuda.py."""
    setup = replace(SETUP, **choices)
    ends = []
    for num_layers in (1, 2):
        model = replace(LLAMA_2_7B, num_layers=num_layers, vocab_size=512)
        traced = trace_memory(training_build(replace(setup, model=model)), steps=1)
        ends.append(traced.at("forward").activations)
    per_sbh = (ends[1] - ends[0]) / (setup.tokens_per_micro_batch * LLAMA_2_7B.hidden_size)
    assert per_sbh == pytest.approx(published, rel=0.005)
    assert block_ledger(setup).per_sbh == pytest.approx(published, rel=0.005)
