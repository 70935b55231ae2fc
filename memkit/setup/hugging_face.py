"""A Hugging Face config.json as a ``ModelConfig``, or the words that say why it is none. Loads no torch.

The formula knows two families. What a configuration has beyond them (experts, latent attention, norms on queries and
keys, encoders) is refused and named; ``memkit.program.hugging_face`` traces the real module instead.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from memkit.setup.models import ModelConfig

GPT2_KEYS = {
    "num_layers": "n_layer", "hidden_size": "n_embd", "num_heads": "n_head", "vocab_size": "vocab_size",
    "max_seq_len": "n_positions", "intermediate_size": "n_inner",
}
LLAMA_KEYS = {
    "num_layers": "num_hidden_layers", "hidden_size": "hidden_size", "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads", "head_dim": "head_dim", "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size", "max_seq_len": "max_position_embeddings",
}
GPT2_CHOICES = {
    "norm": "layernorm", "mlp": "gelu", "position": "learned", "ties_embeddings": True, "has_qkv_bias": True,
    "has_output_bias": True, "has_mlp_bias": True, "fuses_qkv": True,
}
FAMILIES = {
    "gpt2": (GPT2_KEYS, GPT2_CHOICES),
    "llama": (LLAMA_KEYS, {}),
    "mistral": (LLAMA_KEYS, {}),
    "qwen2": (LLAMA_KEYS, {"has_qkv_bias": True}),
}
"""``model_type`` → the names of the sizes, and what the family always has."""

BEYOND = {
    "kv_lora_rank": "keys and values are made from a latent vector (MLA)",
    "num_local_experts": "it has experts (MoE)", "n_routed_experts": "it has experts (MoE)",
    "num_experts": "it has experts (MoE)", "is_encoder_decoder": "it has an encoder", "d_kv": "it has an encoder",
    "image_size": "it reads images",
}
"""Keys that tell a model of another kind, and what they tell."""


def read_config(config: str | Path | Mapping) -> dict:
    """A config.json, its folder, or its content, as a dictionary with ``model_type`` and ``architectures``.

    Raises: ValueError: no such file, no JSON object, or one of the two keys is missing.
    """
    if isinstance(config, (str, Path)):
        path = Path(config) / "config.json" if Path(config).is_dir() else Path(config)
        if not path.is_file():
            raise ValueError(f"{str(config)!r} is no config.json and no folder with one")
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path.name} is no JSON: {error}") from None
    for key in ("model_type", "architectures"):
        if not isinstance(config, Mapping) or not config.get(key):
            raise ValueError(f"the configuration has no {key!r}; a model's own config.json names it")
    return dict(config)


def model_of_config(config: str | Path | Mapping) -> ModelConfig:
    """The ``ModelConfig`` of a config.json.

    Raises: ValueError: as ``read_config``; a model that the formula does not describe, with the reason.

    >>> llama = {"num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...          "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 131072}
    >>> names = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
    >>> from memkit import count_parameters, models
    >>> count_parameters(model_of_config(llama | names)) == count_parameters(models.LLAMA_32_1B)
    True
    """
    config = read_config(config)
    kind, name = config["model_type"], config.get("_name_or_path") or config["architectures"][0]
    if kind not in FAMILIES:
        why = [words for key, words in BEYOND.items() if config.get(key)]
        reason = "; ".join(dict.fromkeys(why)) or f"the formula knows {', '.join(FAMILIES)}"
        trace_it = "Trace it: memkit report config.json, or in Python hugging_face_build(config)"
        raise ValueError(f"model_type={kind!r} is no ModelConfig: {reason}. {trace_it}")
    keys, choices = FAMILIES[kind]
    sizes = {ours: config[theirs] for ours, theirs in keys.items() if config.get(theirs)}
    missing = [theirs for ours, theirs in keys.items() if ours in REQUIRED and ours not in sizes]
    if missing:
        raise ValueError(f"the configuration of {name!r} has no {missing[0]!r}")
    if keys is LLAMA_KEYS:
        biases = {"has_qkv_bias", "has_output_bias"} if config.get("attention_bias") else set()
        biases |= {"has_mlp_bias"} if config.get("mlp_bias") else set()
        choices = {"ties_embeddings": bool(config.get("tie_word_embeddings"))} | choices | dict.fromkeys(biases, True)
    return ModelConfig(name=name, **sizes, **choices)


REQUIRED = ("num_layers", "hidden_size", "num_heads", "vocab_size", "max_seq_len")


def config_of(model: ModelConfig) -> dict:
    """A configuration whose module in transformers has the model's tensors: the way back.

    Raises: ValueError: no family of theirs has this mix.

    >>> from memkit import models
    >>> one = model_of_config(config_of(models.GPT2_XL) | {"_name_or_path": "GPT-2 XL"})
    >>> one == models.GPT2_XL
    True
    """
    kind = "gpt2" if model.fuses_qkv else "qwen2" if model.has_qkv_bias and not model.has_output_bias else "llama"
    keys, _ = FAMILIES[kind]
    names = {"gpt2": "GPT2LMHeadModel", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
    config = {theirs: getattr(model, ours) for ours, theirs in keys.items()}
    config |= {"model_type": kind, "architectures": [names[kind]], "tie_word_embeddings": model.ties_embeddings}
    if kind == "llama":
        config |= {"attention_bias": model.has_qkv_bias, "mlp_bias": model.has_mlp_bias}
    if replace(model_of_config(config), name=model.name) != model:
        raise ValueError(f"{model.name} is no model of transformers: it mixes what {' and '.join(names)} have")
    return config
