"""Values that no record of memkit accepts, each with what its one error must show.

Used by ``tests/memkit/test_setup.py``: each raises one clear ``ValueError``.
"""

import math
from dataclasses import replace

import pytest

from memkit.models import TINY_GPT2, TINY_LLAMA, ModelConfig
from memkit.recipes import AUTOCAST_FP16, FP32, PURE_BF16, OptimizerConfig, Precision
from memkit.setup import TrainingSetup

VALID = {
    ModelConfig: {
        "num_layers": 2,
        "hidden_size": 768,
        "num_heads": 12,
        "vocab_size": 1000,
        "max_seq_len": 1024,
    },
    Precision: {"name": "mine"},
    OptimizerConfig: {},
    TrainingSetup: {"model": TINY_LLAMA},
}


def _bad(kind: type, /, *shows: str, **fields):
    """Fields that a record refuses; its error shows the first of them, its value and these pieces of text."""
    (name, value), *_ = fields.items()
    written = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return pytest.param(kind, fields, (name, str(value), *shows), id=f"{kind.__name__}({written})")


NOT_SIZES = (0, -1, 10**9 + 1)

BAD_VALUES = (
    *(_bad(ModelConfig, hidden_size=value) for value in NOT_SIZES),
    _bad(ModelConfig, "num_heads=12", hidden_size=770),
    _bad(ModelConfig, "hidden_size=768", num_heads=7),
    _bad(ModelConfig, "num_heads=12", num_kv_heads=24),
    _bad(ModelConfig, "odd", head_dim=63),
    _bad(ModelConfig, "layernorm", "rmsnorm", norm="batchnorm"),
    _bad(ModelConfig, "gelu", "swiglu", mlp="relu"),
    _bad(ModelConfig, "learned", "rotary", position="alibi"),
    _bad(Precision, "float32", "bfloat16", weight_dtype="float31"),
    _bad(OptimizerConfig, "SGD", "AdamW", record="LAMB"),
    _bad(OptimizerConfig, "AdamW", record="adamw"),
    _bad(OptimizerConfig, "foreach", "for-loop", "fused", implementation="cuda"),
    *(_bad(TrainingSetup, micro_batch_size=value) for value in NOT_SIZES),
    _bad(TrainingSetup, "max_seq_len=1024", seq_len=1025, model=TINY_GPT2),
    _bad(TrainingSetup, "stored", "flash", "efficient", attention="ring"),
    _bad(TrainingSetup, "stored", "flash", attention="efficient", device="cpu"),
    *(
        _bad(
            TrainingSetup,
            f"head_dim={head_dim}",
            "stored",
            wanted,
            attention=attention,
            precision=precision,
            model=replace(TINY_LLAMA, head_dim=head_dim, num_kv_heads=num_kv_heads),
        )
        for attention, precision, head_dim, num_kv_heads, wanted in (
            ("efficient", PURE_BF16, 36, 4, "multiple of 8"),
            ("efficient", AUTOCAST_FP16, 260, 4, "multiple of 8"),
            ("efficient", FP32, 34, 2, "multiple of 4"),
            ("flash", FP32, 34, 4, "multiple of 4"),
            ("flash", PURE_BF16, 260, 4, "multiple of 8"),
            ("flash", AUTOCAST_FP16, 264, 2, "num_kv_heads=2"),
        )
    ),
    _bad(TrainingSetup, "none", "selective", "full", recomputation="all"),
    _bad(TrainingSetup, "cuda", "cpu", device="mps"),
    *(_bad(TrainingSetup, "[0, 1)", dropout=value) for value in (1, -0.1, math.nan)),
)
"""All of them, by record."""
