"""Small states against the libraries that make them: state_dict, quant_state and peft's own count, to the byte."""

import warnings
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from memkit.formula.parameters import Parameter, parameter_ledger
from memkit.formula.states import optimizer_tensors, shared_tensors
from memkit.models import (
    GPT2_SMALL,
    LLAMA_2_7B,
    LLAMA_3_8B,
    MISTRAL_7B,
    QWEN_2_05B,
    TINY_GPT2,
    TINY_LLAMA,
    ModelConfig,
)
from memkit.program.hooks import tensors_in
from memkit.recipes import FP32, PURE_BF16, OptimizerConfig
from stepscope.formula import count_adapter_parameters, frozen_tensors, trained_parameters
from stepscope.optimizers import OPTIMIZERS, is_paged
from stepscope.setup import AdapterConfig, linear_layers

MODELS = {
    "GPT-2": replace(TINY_GPT2, num_layers=1, vocab_size=100, max_seq_len=16),
    "Llama": replace(TINY_LLAMA, num_layers=1, vocab_size=100),
    "odd": ModelConfig(
        num_layers=1,
        hidden_size=72,
        num_heads=2,
        vocab_size=61,
        max_seq_len=8,
        intermediate_size=70,
    ),
}
ALL_SEVEN = ("query", "key", "value", "output", "gate", "up", "down")


def real_parameters(model: ModelConfig, dtype: torch.dtype) -> dict[str, nn.Parameter]:
    parameters = {
        p.name: nn.Parameter(torch.randn(p.shape, dtype=dtype)) for p in parameter_ledger(model)
    }
    for parameter in parameters.values():
        parameter.grad = torch.randn_like(parameter)
    return parameters


def make(name: str, parameters: dict[str, nn.Parameter]) -> list[torch.optim.Optimizer]:
    """The libraries' own optimizers, made as their documentation says."""
    if name == "Muon":
        hidden = [p for n, p in parameters.items() if p.ndim == 2 and n.startswith("blocks.")]
        rest = [p for n, p in parameters.items() if not (p.ndim == 2 and n.startswith("blocks."))]
        return [torch.optim.Muon(hidden), torch.optim.AdamW(rest)]
    # Lion's state is always float32
    if name == "Lion" and all(p.dtype == torch.float32 for p in parameters.values()):
        return [pytest.importorskip("bitsandbytes.optim").Lion32bit(parameters.values())]
    if name == "Lion":
        return [pytest.importorskip("timm.optim").Lion(parameters.values())]
    if name.startswith("torchao"):
        kinds = {"8-bit": "AdamW8bit", "4-bit": "AdamW4bit", "FP8": "AdamWFp8"}
        return [
            getattr(pytest.importorskip("torchao.optim"), kinds[name.split()[1]])(
                parameters.values()
            )
        ]
    kinds = {
        "8-bit AdamW": "AdamW8bit",
        "paged AdamW": "PagedAdamW32bit",
        "paged 8-bit AdamW": "PagedAdamW8bit",
    }
    return [getattr(pytest.importorskip("bitsandbytes.optim"), kinds[name])(parameters.values())]


def kept(optimizers: list[torch.optim.Optimizer]) -> Counter:
    """Shape and dtype of every tensor in the optimizers' states, one that several share counted once."""
    found = {
        t.data_ptr(): t for o in optimizers for state in o.state.values() for t in tensors_in(state)
    }
    return Counter((tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in found.values())


@pytest.mark.parametrize("precision", [FP32, PURE_BF16], ids=lambda p: p.name)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(
    "name",
    [
        "Muon",
        "Lion",
        "8-bit AdamW",
        "paged AdamW",
        "paged 8-bit AdamW",
        "torchao 8-bit AdamW",
        "torchao 4-bit AdamW",
        "torchao FP8 AdamW",
    ],
)
def test_states_are_those_of_the_real_optimizer(monkeypatch, name, model, precision):
    # torchao's step, as it is written
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    optimizers = make(name, real_parameters(model, getattr(torch, precision.weight_dtype)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Paged optimizers are not supported on CPU")
        for optimizer in optimizers:
            optimizer.step()
    # bitsandbytes' own word
    assert is_paged(OPTIMIZERS[name]) == getattr(optimizers[0], "is_paged", False)
    config, parameters = OptimizerConfig(record=OPTIMIZERS[name]), parameter_ledger(model)
    ours = [t for p in parameters for t in optimizer_tensors(p, precision, config)]
    assert Counter(
        (t.shape, t.dtype) for t in (*ours, *shared_tensors(parameters, config))
    ) == kept(optimizers)


def test_a_paged_state_is_not_in_the_cards_own_memory_if_it_is_large():
    large = Parameter(name="large", shape=(1000, 100), kind="mlp")
    small = Parameter(name="small", shape=(1000, 99), kind="mlp")
    paged = OptimizerConfig(record=OPTIMIZERS["paged AdamW"])
    # torch pages nothing
    assert not any(is_paged(OPTIMIZERS[name]) for name in ("SGD", "SGD momentum", "AdamW"))
    assert {t.is_in_host for t in optimizer_tensors(large, FP32, paged)} == {True}
    assert {t.is_in_host for t in optimizer_tensors(small, FP32, paged)} == {False}


@pytest.mark.parametrize("shape", [(688, 256), (64, 64), (70, 72), (4096, 11008)])
def test_weights_in_4_bits_are_what_bitsandbytes_keeps(shape):
    functional = pytest.importorskip("bitsandbytes.functional")
    codes, state = functional.quantize_4bit(
        torch.randn(shape, dtype=torch.bfloat16), quant_type="nf4", compress_statistics=True
    )
    real = [codes, *tensors_in([vars(state), vars(state.state2)])]
    ours = frozen_tensors(
        Parameter(name="w", shape=shape, kind="mlp"), PURE_BF16, AdapterConfig(base="nf4")
    )
    assert Counter(t.num_bytes for t in ours) == Counter(t.nbytes for t in real)


def test_double_quantisation_costs_4_127_bits_a_weight():
    """Dettmers et al. 2023, section 3: 8/64 + 32/(64 · 256) = 0.127 bits in place of 32/64."""
    matrix = Parameter(name="w", shape=(4096, 4096), kind="mlp")
    tensors = frozen_tensors(matrix, PURE_BF16, AdapterConfig(base="nf4"))
    num_bytes = sum(t.num_bytes for t in tensors if "map" not in t.role and "mean" not in t.role)
    assert round(8 * num_bytes / 4096**2, 3) == 4.127


@pytest.mark.parametrize(
    "model, rank, targets, count",
    [
        (LLAMA_2_7B, 16, ("query", "key", "value", "output"), 16_777_216),
        (LLAMA_2_7B, 8, ALL_SEVEN, 19_988_480),
        (LLAMA_2_7B, 16, ALL_SEVEN, 39_976_960),
        # peft's default, "trainable params: 4,194,304"
        (LLAMA_2_7B, 8, ("query", "value"), 4_194_304),
    ],
)
def test_published_counts(model, rank, targets, count):
    assert count_adapter_parameters(model, AdapterConfig(rank=rank, targets=targets)) == count


PEFT_NAMES = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
PEFT_NAMES |= {name: f"{name}_proj" for name in ("gate", "up", "down")}


@pytest.mark.parametrize("targets", [("query", "value"), ALL_SEVEN], ids=len)
@pytest.mark.parametrize(
    "model", [LLAMA_2_7B, LLAMA_3_8B, MISTRAL_7B, QWEN_2_05B], ids=lambda m: m.name
)
def test_peft_trains_as_many(model, targets):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=model.hidden_size,
        num_hidden_layers=2,
        num_attention_heads=model.num_heads,
        num_key_value_heads=model.num_kv_heads,
        intermediate_size=model.intermediate_size,
        vocab_size=1000,
    )
    with torch.device("meta"):
        network = transformers.LlamaForCausalLM(config)
        wrapped = peft.get_peft_model(
            network, peft.LoraConfig(r=16, target_modules=[PEFT_NAMES[t] for t in targets])
        )
    adapter = AdapterConfig(rank=16, targets=targets)
    ours = trained_parameters(replace(model, num_layers=2), adapter)
    real = [p for p in wrapped.parameters() if p.requires_grad]
    assert Counter(p.shape for p in ours) == Counter(tuple(p.shape) for p in real)
    assert {str(p.dtype) for p in real} == {"torch.float32"}
    assert sum(p.count for p in ours) * model.num_layers == 2 * count_adapter_parameters(
        model, adapter
    )


def test_a_fused_projection_is_one_layer():
    assert linear_layers(GPT2_SMALL) == ("qkv", "output", "up", "down")
    # peft's LoraConfig(target_modules=["c_attn"]) with r = 8 on GPT-2: "trainable params: 294,912"
    assert count_adapter_parameters(GPT2_SMALL, AdapterConfig(rank=8, targets=("qkv",))) == 294_912
