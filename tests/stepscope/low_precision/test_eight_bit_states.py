"""States in 8 bits: the formula, a trace, and the CPU's allocator, to the byte."""

import pytest
import torch

from book.small_gpt import SMALL_GPT
from memkit.formula.states import state_bytes
from memkit.measure import measure_memory
from memkit.program.transformer import Transformer
from memkit.recipes import PRECISIONS, OptimizerConfig
from memkit.setup import TrainingSetup
from stepscope.optimizers import OPTIMIZERS
from stepscope.tracing.trace import trace_script


def test_eight_bit_states_agree_in_three_columns():
    """The formula's codes, scales and tables, and torchao's step counts: 4 B a tensor, here on the same device."""
    low_bit = pytest.importorskip("torchao.optim")

    def build():
        model = Transformer(TrainingSetup(model=SMALL_GPT, seq_len=16, device="cpu"))
        optimizer = low_bit.AdamW8bit(model.parameters())
        ids = torch.zeros(1, 16, dtype=torch.long)

        def step():
            model(ids, ids).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    with torch.compiler.set_stance("force_eager"):
        traced, measured = (
            tell(build, device="cpu", steps=1) for tell in (trace_script, measure_memory)
        )
    optimizer = OptimizerConfig(record=OPTIMIZERS["torchao 8-bit AdamW"])
    num_tensors = 28
    wanted = (
        state_bytes(SMALL_GPT, PRECISIONS["fp32"], optimizer)["optimizer_states"] + 4 * num_tensors
    )
    assert (
        traced.at("zero_grad").optimizer_states
        == measured.at("zero_grad").optimizer_states
        == wanted
    )
