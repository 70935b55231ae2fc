"""What inference keeps instead: the weights and the key and value cache.

A decoder that writes one token at a time reads the keys and values of all tokens before it. They are kept,
two vectors for each token and layer::

    bytes per token = 2 · L · k · bytes per value,    k = num_kv_heads · head_dim

There are no gradients, no optimizer states and no activations that wait for a backward. That is why a model
answers on a card on which it cannot be trained.
"""

from memkit.formats.records import tensor_bytes
from memkit.models import ModelConfig
from memkit.units import as_whole_number


def kv_cache_bytes_per_token(config: ModelConfig, dtype: str = "bfloat16") -> int:
    """Bytes of keys and values that one token leaves in the cache, over all layers.

    Grouped heads shrink it: Llama-2-7B keeps 32 heads' keys, Llama-3-8B, of the same width and depth, only 8.

    >>> from memkit.models import LLAMA_2_7B, LLAMA_3_8B
    >>> kv_cache_bytes_per_token(LLAMA_2_7B), kv_cache_bytes_per_token(LLAMA_3_8B)
    (524288, 131072)
    """
    # keys and values
    return config.num_layers * tensor_bytes(config.kv_size + config.kv_size, dtype)


def kv_cache_bytes(
    config: ModelConfig, *, batch_size: int, seq_len: int, dtype: str = "bfloat16"
) -> int:
    """Bytes of the key and value cache for ``batch_size`` sequences of ``seq_len`` tokens.

    Raises: ValueError: a size that is no whole number above 0; more tokens than learned positions; a dtype
    that ``memkit.formats.records`` does not list.

    >>> from memkit.models import LLAMA_2_7B
    >>> kv_cache_bytes(LLAMA_2_7B, batch_size=1, seq_len=1024)
    536870912
    """
    batch_size = as_whole_number("batch_size", batch_size, 1)
    seq_len = as_whole_number("seq_len", seq_len, 1)
    if config.position == "learned" and seq_len > config.max_seq_len:
        raise ValueError(
            f"seq_len={seq_len} is above max_seq_len={config.max_seq_len}, the learned positions"
        )
    return batch_size * seq_len * kv_cache_bytes_per_token(config, dtype)
