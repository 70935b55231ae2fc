"""The cache holds what attention's projections make: counted on real tensors, and on published figures."""

from dataclasses import replace

import pytest
import torch

from memkit.models import LLAMA_2_7B, TINY_GPT2, TINY_LLAMA
from memkit.program.transformer import Transformer
from memkit.setup import TrainingSetup
from stepscope.inference import kv_cache_bytes, kv_cache_bytes_per_token


@pytest.mark.parametrize("model", [TINY_GPT2, TINY_LLAMA], ids=lambda model: model.name)
def test_the_cache_is_the_bytes_of_the_keys_and_values_that_the_blocks_make(model):
    kept = []
    network = Transformer(TrainingSetup(model=model, device="cpu"))
    for block in network.blocks:

        def core(q, k, v, shared, original=block.attention.core):
            kept.extend((k, v))
            return original(q, k, v, shared)

        block.attention.core = core
    tokens = torch.zeros(3, 40, dtype=torch.int64)
    with torch.no_grad():
        network(tokens, tokens)
    real = sum(tensor.numel() * tensor.element_size() for tensor in kept)
    assert kv_cache_bytes(model, batch_size=3, seq_len=40, dtype="float32") == real


def test_hugging_faces_own_cache_holds_as_much():
    transformers = pytest.importorskip("transformers")
    sizes = {
        name: getattr(TINY_LLAMA, name)
        for name in ("hidden_size", "intermediate_size", "vocab_size")
    }
    heads = {
        "num_attention_heads": TINY_LLAMA.num_heads,
        "num_key_value_heads": TINY_LLAMA.num_kv_heads,
    }
    config = transformers.LlamaConfig(num_hidden_layers=TINY_LLAMA.num_layers, **sizes, **heads)
    cache = transformers.DynamicCache()
    with torch.no_grad():
        model = transformers.LlamaForCausalLM(config)
        model(torch.zeros(3, 40, dtype=torch.int64), past_key_values=cache, use_cache=True)
    real = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert kv_cache_bytes(TINY_LLAMA, batch_size=3, seq_len=40, dtype="float32") == real


def test_published_sizes():
    """2 · 32 layers · 4096 · 2 B for Llama-2-7B; vLLM's paper (arXiv:2309.06180) has 800 KB for OPT-13B."""
    assert kv_cache_bytes_per_token(LLAMA_2_7B) == 512 * 1024
    opt_13b = replace(
        LLAMA_2_7B, num_layers=40, hidden_size=5120, num_heads=40, num_kv_heads=40, head_dim=128
    )
    assert kv_cache_bytes_per_token(opt_13b) == 800 * 1024
