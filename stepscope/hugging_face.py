"""A Hugging Face config.json as a ``ModelConfig``, or why it is none, and the way back. Loads no torch.

The formula knows GPT-2's family and Llama's, Qwen3's norms and Mixtral's experts. Any other ``model_type`` is refused;
``stepscope.program.hugging_face`` traces the module.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from memkit.models import GPT2, ModelConfig
from stepscope.experts import ExpertsConfig, num_experts_of

GPT2_KEYS = {
    "num_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_heads": "n_head",
    "vocab_size": "vocab_size",
    "max_seq_len": "n_positions",
    "intermediate_size": "n_inner",
}
LLAMA_KEYS = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_seq_len": "max_position_embeddings",
}
MLP = "intermediate_size"
EXPERTS = {"num_experts": "num_experts", "experts_per_token": "num_experts_per_tok"}
QWEN_3_KEYS = LLAMA_KEYS | EXPERTS | {"expert_size": "moe_intermediate_size"}
MIXTRAL_KEYS = LLAMA_KEYS | EXPERTS | {"num_experts": "num_local_experts", "expert_size": MLP}
FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", GPT2_KEYS, GPT2),
    "llama": ("LlamaForCausalLM", LLAMA_KEYS, {}),
    "mistral": ("MistralForCausalLM", LLAMA_KEYS, {}),
    "qwen2": ("Qwen2ForCausalLM", LLAMA_KEYS, {"has_qkv_bias": True}),
    "qwen3": ("Qwen3ForCausalLM", LLAMA_KEYS, {"has_qk_norm": True}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", QWEN_3_KEYS, {"has_qk_norm": True}),
    "mixtral": ("MixtralForCausalLM", MIXTRAL_KEYS, {}),
}
"""``model_type`` → the architecture, the names of the sizes, and what the family always has."""


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
            raise ValueError(
                f"the configuration has no {key!r}; a model's own config.json names it"
            )
    return dict(config)


def model_of_config(config: str | Path | Mapping) -> ModelConfig:
    """The ``ModelConfig`` of a config.json.

    Raises: ValueError: as ``read_config``; a model that the formula does not describe.

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
        raise ValueError(
            f"model_type={kind!r} is no ModelConfig: the formula knows {', '.join(FAMILIES)}. Trace it: "
            "stepscope report config.json, or in Python hugging_face_build(config)"
        )
    _, keys, choices = FAMILIES[kind]
    sizes = {ours: config[theirs] for ours, theirs in keys.items() if config.get(theirs)}
    missing = [
        theirs
        for ours, theirs in keys.items()
        if ours not in {"num_kv_heads", "head_dim", MLP, *sizes}
    ]
    if missing:
        raise ValueError(f"the configuration of {name!r} has no {missing[0]!r}")
    if keys is not GPT2_KEYS:
        biases = {"has_qkv_bias", "has_output_bias"} if config.get("attention_bias") else set()
        biases |= {"has_mlp_bias"} if config.get("mlp_bias") else set()
        choices = (
            {"ties_embeddings": bool(config.get("tie_word_embeddings"))}
            | choices
            | dict.fromkeys(biases, True)
        )
    if kind == "qwen3_moe":
        if not config.get("norm_topk_prob"):
            raise ValueError(
                f"{name!r} does not divide chosen scores by their sum (norm_topk_prob); the formula does"
            )
        step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
        choices["dense_layers"] = tuple(
            n for n in range(sizes["num_layers"]) if (n + 1) % step or n in dense
        )
    return (ExpertsConfig if "num_experts" in keys else ModelConfig)(name=name, **sizes, **choices)


def config_of(model: ModelConfig) -> dict:
    """A configuration whose module in transformers has the model's tensors: the way back.

    Raises: ValueError: no family of theirs has this mix.

    >>> from memkit import models
    >>> one = model_of_config(config_of(models.GPT2_XL) | {"_name_or_path": "GPT-2 XL"})
    >>> one == models.GPT2_XL
    True
    """
    if model.fuses_qkv:
        kind = "gpt2"
    elif model.has_qk_norm:
        kind = "qwen3_moe" if num_experts_of(model) else "qwen3"
    elif num_experts_of(model):
        kind = "mixtral"
    else:
        kind = "qwen2" if model.has_qkv_bias and not model.has_output_bias else "llama"
    architecture, keys, _ = FAMILIES[kind]
    config = {theirs: getattr(model, ours) for ours, theirs in keys.items()}
    config |= {
        "model_type": kind,
        "architectures": [architecture],
        "tie_word_embeddings": model.ties_embeddings,
    }
    if kind not in ("gpt2", "qwen2"):
        config |= {"attention_bias": model.has_qkv_bias, "mlp_bias": model.has_mlp_bias}
    if kind == "qwen3_moe":
        config |= {"norm_topk_prob": True, "mlp_only_layers": list(model.dense_layers)}
    if replace(model_of_config(config), name=model.name) != model:
        raise ValueError(
            f"{model.name} is no model of transformers: it mixes what {', '.join(FAMILIES)} have"
        )
    return config
