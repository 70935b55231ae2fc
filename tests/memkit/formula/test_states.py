"""Persistent tensors against those of real optimizers after a step, tensor by tensor."""

import importlib
from collections import Counter
from dataclasses import replace

import pytest
import torch

from memkit.formula.states import bytes_per_parameter, state_ledger
from memkit.models import TINY_GPT2, TINY_LLAMA
from memkit.program.transformer import Transformer, make_optimizer
from memkit.recipes import (
    ADAMW,
    AUTOCAST_BF16,
    BF16_MASTER,
    BF16_TWO_GRADIENTS,
    FP32,
    MEGATRON,
    OPTIMIZERS,
    PURE_BF16,
    OptimizerConfig,
    Precision,
)
from memkit.setup import TrainingSetup

OFFERED = [
    (name, implementation)
    for name, record in OPTIMIZERS.items()
    for implementation in record.implementations
]
SMALL = {
    "GPT-2": replace(TINY_GPT2, num_layers=1, vocab_size=100, max_seq_len=16),
    "Llama": replace(TINY_LLAMA, num_layers=1, vocab_size=100),
}


def after_one_step(model, precision, optimizer_config):
    setup = TrainingSetup(
        model=model, precision=precision, optimizer=optimizer_config, seq_len=8, device="cpu"
    )
    network = Transformer(setup)
    optimizer = make_optimizer(optimizer_config, network.parameters())
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision.uses_autocast):
        loss = network(tokens, tokens)
    loss.backward()
    optimizer.step()
    return network, optimizer


@pytest.mark.parametrize("precision", [FP32, AUTOCAST_BF16, PURE_BF16], ids=lambda p: p.name)
@pytest.mark.parametrize("name, implementation", OFFERED)
@pytest.mark.parametrize("model", SMALL.values(), ids=SMALL)
def test_the_ledger_is_a_real_state_dict(model, name, implementation, precision):
    assert_ledger_is_real(
        model, precision, OptimizerConfig(record=name, implementation=implementation)
    )


def assert_ledger_is_real(model, precision, config):
    network, optimizer = after_one_step(model, precision, config)
    ours = Counter(
        (t.parameter, t.role, t.shape, t.dtype) for t in state_ledger(model, precision, config)
    )
    real = Counter()
    for parameter_name, parameter in network.named_parameters():
        tensors = {"weight": parameter, "gradient": parameter.grad, **optimizer.state[parameter]}
        real.update(
            (parameter_name, role, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for role, tensor in tensors.items()
        )
    assert ours == real


@pytest.mark.parametrize(
    "name, implementation, is_on_host",
    [
        ("AdamW", "foreach", True),
        ("AdamW", "for-loop", True),
        ("AdamW", "fused", False),
    ],
)
def test_the_step_scalar_stays_on_the_host_unless_the_step_is_fused(
    monkeypatch, name, implementation, is_on_host
):
    adam = importlib.import_module("torch.optim.adam")
    # the fused step refuses meta
    monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda parameter: None)
    assert_step_scalar_is(is_on_host, OptimizerConfig(record=name, implementation=implementation))


def assert_step_scalar_is(is_on_host, config):
    parameter = torch.nn.Parameter(torch.empty(4, 4, device="meta"))
    parameter.grad = torch.empty_like(parameter)
    optimizer = make_optimizer(config, [parameter])
    optimizer._init_group(optimizer.param_groups[0], *([] for _ in range(6)))
    assert (optimizer.state[parameter]["step"].device.type == "cpu") is is_on_host
    steps = [t for t in state_ledger(TINY_GPT2, FP32, config) if t.role == "step"]
    assert steps and {step.is_in_host for step in steps} == {is_on_host}


@pytest.mark.parametrize(
    "precision, addends",
    [
        (FP32, (4, 4, 4, 4)),
        (AUTOCAST_BF16, (4, 4, 4, 4)),
        (BF16_MASTER, (2, 2, 4, 4, 4)),  # Rajbhandari et al. 2020, section 3.1: 2 + 2 + 12
        (MEGATRON, (2, 4, 4, 4, 4)),  # Megatron-LM, docs of the distributed optimizer: 18
        (BF16_TWO_GRADIENTS, (2, 2, 4, 4, 4, 4)),  # Ultra-Scale Playbook: 20
        (PURE_BF16, (2, 2, 2, 2)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_published_bytes_per_parameter(precision, addends):
    assert sorted(bytes_per_parameter(precision, ADAMW).values()) == sorted(addends)


def test_moments_in_16_bits_beside_a_32_bit_master_copy():
    """DeepSeek-V3 (arXiv:2412.19437, section 3.3.2): fp32 master and gradients, bf16 moments."""
    deepseek = Precision(
        name="DeepSeek-V3",
        weight_dtype="bfloat16",
        gradient_dtype="float32",
        compute_dtype="bfloat16",
        master_dtype="float32",
        state_dtype="bfloat16",
    )
    assert list(bytes_per_parameter(deepseek, ADAMW).values()) == [2, 4, 4, 2, 2]
