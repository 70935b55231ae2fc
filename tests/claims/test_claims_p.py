"""Proof of group P, references: the papers as the libraries that implement them cite them."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

ROOT = Path(__file__).parents[2]
CHAPTERS = ("03_mixed_precision", "04_activation_recomputation")


def test_C424(figures):
    grpo = pytest.importorskip("trl.trainer.grpo_trainer")
    zero = re.search(r"`ZeRO <https://arxiv.org/abs/([\d.]+)>`", ZeroRedundancyOptimizer.__doc__)[1]
    attention = torch.nn.functional.scaled_dot_product_attention.__doc__
    flash = re.search(r"FlashAttention-2.*?arxiv.org/abs/([\d.]+)", attention, re.DOTALL)[1]
    in_words = r"QLoRA.*?original paper \(see https://huggingface.co/papers/([\d.]+)"
    four_bits = re.search(in_words, inspect.getsource(grpo), re.DOTALL)[1]
    sources = [
        (ROOT / "chapters" / f"{name}.ipynb").read_text(encoding="utf-8") for name in CHAPTERS
    ]
    assert f"[Mixed Precision Training](https://arxiv.org/abs/{figures['mixed']})" in sources[0]
    assert f"Sublinear Memory Cost](https://arxiv.org/abs/{figures['chen']})" in sources[1]
    cited = {"zero": zero, "flash": flash, "qlora": four_bits}
    figures.settle(**{name: figures[name] == number for name, number in cited.items()})
