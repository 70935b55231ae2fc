"""Every recipe's bytes per parameter: the formula, a trace, and the CPU's allocator, to the byte."""

import warnings

import pytest
import torch

from book.small_gpt import SMALL_GPT
from memkit.formula.states import bytes_per_parameter, state_bytes
from memkit.measuring.measure import measure_memory
from memkit.program.transformer import Transformer, training_build
from memkit.setup.recipes import ADAMW, KAHAN_BF16, PRECISIONS, PURE_BF16, OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.tracing.trace import trace_memory

RECIPES = (*PRECISIONS.values(), KAHAN_BF16)
PUBLISHED = {
    "fp32": 16, "autocast bf16": 16, "autocast fp16": 16, "bf16 + fp32 master": 16, "Megatron, fp32 gradients": 18,
    "bf16 + fp32 master and gradients": 20, "pure bf16": 8, "bf16 + Kahan": 10,
}
"""ZeRO's 16, Megatron's 18 and 16, the Playbook's 20; 2 for each BF16 copy otherwise."""


def setup_of(precision) -> TrainingSetup:
    loop = OptimizerConfig(implementation="for-loop")
    return TrainingSetup(
        model=SMALL_GPT, precision=precision, optimizer=loop, seq_len=32, micro_batch_size=2, device="cpu",
        sets_grads_to_none=False,
    )


def states_of(timeline) -> int:
    """Weights, gradients and states after the last step; ``zero_grad`` keeps the gradients here."""
    last = [instant for instant in timeline.instants if instant.name == "zero_grad"][-1]
    return sum(last.parts[part] for part in ("weights", "gradients", "optimizer_states"))


@pytest.mark.parametrize("precision", RECIPES, ids=lambda precision: precision.name)
def test_formula_traced_and_measured_agree(precision):
    setup = setup_of(precision)
    build = training_build(setup)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = trace_memory(build, device="cpu")
    measured = measure_memory(build, device="cpu")
    num_tensors = 28
    steps = 4 * num_tensors if not (precision.master_dtype or precision.remainder_dtype) else 0
    formula = sum(state_bytes(setup.model, precision, setup.optimizer).values())
    assert formula + steps == states_of(traced) == states_of(measured)  # torch's step counts: 4 B a tensor
    assert sum(bytes_per_parameter(precision, ADAMW).values()) == PUBLISHED[precision.name]
    if any("measure it there: aten.mm in 16 bits" in str(warning.message) for warning in caught):
        assert traced.peak_bytes <= measured.peak_bytes  # the head's product, for which oneDNN may pack its factors
    else:
        assert traced.peak_bytes == measured.peak_bytes


def test_a_recipe_without_an_optimizer_is_refused():
    from dataclasses import replace

    with pytest.raises(ValueError, match="is a formula only"):
        training_build(setup_of(replace(PURE_BF16, state_dtype="float32")))


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
        traced, measured = (tell(build, device="cpu", steps=1) for tell in (trace_memory, measure_memory))
    optimizer = OptimizerConfig(record="torchao 8-bit AdamW")
    num_tensors = 28
    wanted = state_bytes(SMALL_GPT, PRECISIONS["fp32"], optimizer)["optimizer_states"] + 4 * num_tensors
    assert traced.at("zero_grad").optimizer_states == measured.at("zero_grad").optimizer_states == wanted
