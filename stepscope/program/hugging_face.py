"""A Hugging Face model from its config.json alone: the real module, and the training step that a trace follows.

``hugging_face_build(config)`` makes transformers' own module for the architecture that the file names, without
weights and without the network, and returns a step as ``trace_script`` and ``stepscope report`` take it. Language
models, encoder-decoders, masked and image models each get a batch of their kind. Loads transformers, an optional
library.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from stepscope.hugging_face import read_config


def hugging_face_model(config: str | Path | Mapping, dtype: str = "float32") -> torch.nn.Module:
    """transformers' module of a configuration, with random weights on torch's default device.

    Raises: ValueError: transformers is not installed, does not load, does not know the architecture, or it has no loss.
    """
    config = read_config(config)
    try:
        import transformers
    except ImportError:
        raise ValueError(
            "a Hugging Face configuration needs transformers: pip install transformers"
        ) from None
    name, kind = config["architectures"][0], config["model_type"]
    try:
        made = getattr(transformers, name, None)  # imports its parts, and torchvision, only now
    except (ImportError, RuntimeError) as error:
        raise ValueError(f"transformers does not load {name}: {error}") from error
    if made is None or kind not in transformers.CONFIG_MAPPING:
        raise ValueError(
            f"architecture {name!r} of {kind!r} is not part of transformers {transformers.__version__}"
        )
    made_config = transformers.CONFIG_MAPPING[kind](**config)
    if not any(word in name for word in ("LM", "ForConditionalGeneration", "Classification")):
        raise ValueError(
            f"architecture {name!r} has no loss to train; name one such as ...ForCausalLM"
        )
    made_config.use_cache = False
    return made._from_config(made_config, dtype=getattr(torch, dtype))


def batch_of(
    model: torch.nn.Module, size: int, seq_len: int, device: str
) -> dict[str, torch.Tensor]:
    """A batch of random tokens or pixels with labels, by the model's kind."""
    config = model.config
    if model.main_input_name == "pixel_values":
        shape = size, config.num_channels, config.image_size, config.image_size
        pixels = torch.randn(shape, device=device, dtype=model.dtype)
        labels = torch.randint(config.num_labels, (size,), device=device)
        return {"pixel_values": pixels, "labels": labels}
    tokens = torch.randint(config.vocab_size, (size, seq_len), device=device)
    return {"input_ids": tokens, "labels": tokens}


def hugging_face_build(
    config: str | Path | Mapping,
    *,
    micro_batch_size: int = 1,
    seq_len: int | None = None,
    dtype: str = "bfloat16",
    device: str = "cuda",
) -> Callable[[], Callable[[], torch.Tensor]]:
    """The ``build`` of a model known by its config.json, for ``trace_script``, ``measure_memory`` and ``report_on``.

    The step is a forward, a backward and fused AdamW on all parameters. ``seq_len=None`` means 1,024 tokens, or as
    many as the model has positions for.

    Raises: ValueError: as ``hugging_face_model``; a length that the model has no positions for.

    >>> config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_positions": 1024}
    >>> hugging_face_build(config, seq_len=2048)
    Traceback (most recent call last):
    ValueError: seq_len=2048 is above the configuration's 1024 positions
    """
    config = read_config(config)
    longest = config.get("max_position_embeddings") or config.get("n_positions") or seq_len or 1024
    seq_len = seq_len or min(1024, longest)
    if seq_len > longest:
        raise ValueError(f"seq_len={seq_len} is above the configuration's {longest} positions")

    def build():
        model = hugging_face_model(config, dtype).to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step():
            loss = model(**batch_of(model, micro_batch_size, seq_len, device)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    return build
