"""Every published model has its published number of parameters, to the last one."""

from dataclasses import replace

import pytest

from memkit.formula.parameters import count_parameters
from memkit.models import (
    LLAMA_2_13B,
    LLAMA_2_70B,
    MISTRAL_7B,
    PUBLISHED_MODELS,
    TINY_GPT2,
    TINY_LLAMA,
)

HUB = "https://huggingface.co"
QWEN_3 = f"{HUB}/Qwen/Qwen3"
CONFIG = "; config.json in ai-dynamo/aiconfigurator at 095f58a, aic-core/…/model_configs"
PUBLISHED_COUNTS = {
    "GPT-2 small": (124_439_808, f"{HUB}/openai-community/gpt2"),
    "GPT-2 medium": (354_823_168, f"{HUB}/openai-community/gpt2-medium"),
    "GPT-2 large": (
        774_030_080,
        f"{HUB}/openai-community/gpt2-large; keras-hub preset gpt2_large_en",
    ),
    "GPT-2 XL": (
        1_557_611_200,
        f"{HUB}/openai-community/gpt2-xl; keras-hub preset gpt2_extra_large_en",
    ),
    "Llama-2-7B": (6_738_415_616, f"{HUB}/meta-llama/Llama-2-7b-hf"),
    "Llama-2-13B": (13_015_864_320, f"{HUB}/meta-llama/Llama-2-13b-hf"),
    "Llama-2-70B": (68_976_648_192, f"{HUB}/meta-llama/Llama-2-70b-hf"),
    "Llama-3-8B": (8_030_261_248, f"{HUB}/meta-llama/Meta-Llama-3-8B"),
    "Llama-3-70B": (70_553_706_496, f"{HUB}/meta-llama/Meta-Llama-3-70B"),
    "Llama-3.1-405B": (405_853_388_800, f"{HUB}/meta-llama/Llama-3.1-405B"),
    "Llama-3.2-1B": (
        1_235_814_400,
        f"{HUB}/meta-llama/Llama-3.2-1B; GPTQModel tests, LLAMA_3_2_1B_PARAMETER_COUNT",
    ),
    "Llama-3.2-3B": (3_212_749_824, f"{HUB}/meta-llama/Llama-3.2-3B"),
    "Mistral-7B": (
        7_241_732_096,
        f"{HUB}/mistralai/Mistral-7B-v0.1 and v0.2, vocabulary of 32,000",
    ),
    "Qwen2-0.5B": (494_032_768, f"{HUB}/Qwen/Qwen2-0.5B"),
    "Qwen3-0.6B": (596_049_920, f"{QWEN_3}-0.6B{CONFIG}"),
    "Qwen3-8B": (8_190_735_360, f"{QWEN_3}-8B{CONFIG}"),
    "Qwen3-32B": (32_762_123_264, f"{QWEN_3}-32B{CONFIG}"),
}
"""Counts of the checkpoints' own headers (safetensors), with where they are published."""

PUBLISHED_LENGTHS = {
    1024: "GPT-2 small, GPT-2 medium, GPT-2 large, GPT-2 XL",
    4096: "Llama-2-7B, Llama-2-13B, Llama-2-70B",
    8192: "Llama-3-8B, Llama-3-70B",
    32768: "Mistral-7B",
    40960: "Qwen3-0.6B, Qwen3-8B, Qwen3-32B",
    131072: "Llama-3.1-405B, Llama-3.2-1B, Llama-3.2-3B, Qwen2-0.5B",
}
"""``n_positions`` or ``max_position_embeddings`` of the same pages' config.json."""


@pytest.mark.parametrize("name", PUBLISHED_MODELS)
def test_the_count_is_the_published_one(name):
    count, source = PUBLISHED_COUNTS[name]
    assert count_parameters(PUBLISHED_MODELS[name]) == count, source


def test_the_longest_sequence_is_the_published_one():
    published = {
        name: length for length, names in PUBLISHED_LENGTHS.items() for name in names.split(", ")
    }
    assert {name: config.max_seq_len for name, config in PUBLISHED_MODELS.items()} == published


@pytest.mark.parametrize(
    "size", ["num_layers", "hidden_size", "vocab_size", "max_seq_len", "intermediate_size"]
)
def test_a_size_of_a_thousand_million_is_the_largest(size):
    assert getattr(replace(TINY_LLAMA, **{size: 10**9}), size) == 10**9
    with pytest.raises(ValueError, match=f"{size}=1000000001 is above 1000000000"):
        replace(TINY_LLAMA, **{size: 10**9 + 1})


def test_mistral_v3_has_768_tokens_more():
    """Mistral-7B-v0.3 has a vocabulary of 32,768 and 7,248,023,552 parameters (its safetensors header)."""
    assert count_parameters(replace(MISTRAL_7B, vocab_size=32_768)) == 7_248_023_552


@pytest.mark.parametrize(
    "config, in_file", [(LLAMA_2_13B, 13_015_866_880), (LLAMA_2_70B, 68_976_653_312)]
)
def test_two_checkpoints_hold_more_values_than_parameters(config, in_file):
    """The files of Llama-2-13B and 70B also store rotary frequencies: head_dim / 2 values in each layer."""
    assert in_file - count_parameters(config) == config.num_layers * config.head_dim // 2


def test_a_head_that_is_given_its_size_need_not_divide_the_hidden_size():
    assert (
        replace(TINY_GPT2, hidden_size=770, num_heads=12, num_kv_heads=12, head_dim=64).query_size
        == 768
    )
