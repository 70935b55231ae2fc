"""The parameter ledger against ``numel()`` of the real model on the meta device, tensor by tensor."""

from dataclasses import replace

import pytest
import torch

from memkit.formula.parameters import count_parameters, parameter_ledger
from memkit.models import (
    GPT2_SMALL,
    LLAMA_2_7B,
    NORMS,
    PUBLISHED_MODELS,
    TINY_GPT2,
    TINY_LLAMA,
    ModelConfig,
)
from memkit.program.transformer import Transformer
from memkit.setup import TrainingSetup

VARIANTS = [
    TINY_GPT2,
    TINY_LLAMA,
    replace(TINY_GPT2, ties_embeddings=False, fuses_qkv=False),
    replace(TINY_GPT2, has_qkv_bias=False, has_output_bias=False, has_mlp_bias=False),
    replace(TINY_GPT2, position="rotary", norm="rmsnorm"),
    *(replace(TINY_GPT2, norm=norm) for norm in NORMS),
    replace(TINY_GPT2, mlp="swiglu", num_kv_heads=2),
    replace(TINY_LLAMA, ties_embeddings=True, has_qkv_bias=True),
    replace(TINY_LLAMA, has_output_bias=True, has_mlp_bias=True, norm="layernorm"),
    replace(TINY_LLAMA, fuses_qkv=True, num_kv_heads=1),
    replace(TINY_LLAMA, head_dim=96, num_heads=4, position="learned"),
    replace(TINY_LLAMA, has_qk_norm=True),
    ModelConfig(
        num_layers=1, hidden_size=2, num_heads=1, vocab_size=1, max_seq_len=1, intermediate_size=1
    ),
]


def on_meta(config):
    """The real model without bytes: 405 B parameters fit."""
    return Transformer(TrainingSetup(model=config, seq_len=1, attention="stored"), device="meta")


def real_parameters(config):
    return {name: tuple(tensor.shape) for name, tensor in on_meta(config).named_parameters()}


@pytest.mark.parametrize("config", VARIANTS, ids=range(len(VARIANTS)))
def test_names_shapes_and_order_are_the_models_own(config):
    ours = {parameter.name: parameter.shape for parameter in parameter_ledger(config)}
    assert list(ours.items()) == list(real_parameters(config).items())


@pytest.mark.parametrize("config", PUBLISHED_MODELS.values(), ids=PUBLISHED_MODELS)
def test_the_count_is_numel_for_every_published_model(config):
    real = sum(torch.Size(shape).numel() for shape in real_parameters(config).values())
    assert count_parameters(config) == real == sum(p.count for p in parameter_ledger(config))


def test_a_tied_head_is_a_second_name_in_the_state_dict_and_no_second_tensor():
    model = on_meta(TINY_GPT2)
    assert set(model.state_dict()) - {p.name for p in parameter_ledger(TINY_GPT2)} == {
        "head.weight"
    }
    assert model.head.weight is model.token_embedding.weight


def test_the_formula_of_gpt2():
    """N = vh + sh + L (12h² + 13h) + 2h (Ultra-Scale Playbook, with learned positions added)."""
    h, v, s, layers = 768, 50257, 1024, 12
    assert count_parameters(GPT2_SMALL) == v * h + s * h + layers * (12 * h**2 + 13 * h) + 2 * h


def test_the_formula_of_llama():
    """N = 2vh + L (2h² + 2hk + 3hf + 2h) + h."""
    h, v, f, layers = 4096, 32000, 11008, 32
    assert count_parameters(LLAMA_2_7B) == 2 * v * h + layers * (4 * h**2 + 3 * h * f + 2 * h) + h
