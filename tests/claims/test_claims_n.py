"""Proofs of group N: attention kernels. What autograd saves is asked of torch's own kernels, on the CPU."""

from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from ledger_sections import section_of
from torch.nn.attention import SDPBackend, sdpa_kernel

from book.claims import rounds_to
from memkit.formula.activations import block_ledger
from memkit.measure import saved_bytes, saved_tensors
from memkit.models import GPT2_LARGE
from memkit.recipes import PURE_BF16
from memkit.setup import TrainingSetup

B, A, D = 2, 4, 16  # micro-batch, heads, head size of the small real tensors

FLASH_README_MEMORY = {2048: 10, 4096: 20}
"""Memory of standard attention by that of FlashAttention, forward and backward, at a number of tokens.

Source: https://github.com/Dao-AILab/flash-attention, README, section Memory; A100, head size 64.
"""

FUSED = {SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION}
"""PyTorch's kernels that store no scores; ``torch.nn.attention`` has them beside MATH, which does, and OVERRIDEABLE."""

FLASH_README_SPEEDUP = (2, 4)
"""Speed by that of PyTorch's standard attention of 2022, at 128 to 4096 tokens on an A100.

Source: the same README in its first version, HazyResearch/flash-attention, section Speedup.
"""


@cache
def saved_by_sdpa(
    backend: SDPBackend | None, dtype: torch.dtype, dropout: float = 0.0, seq: int = 64
) -> list[torch.Tensor]:
    """What autograd saves of causal attention; ``None`` leaves the choice of the kernel to torch."""
    q, k, v = (torch.randn(B, A, seq, D, dtype=dtype, requires_grad=True) for _ in range(3))
    with nullcontext() if backend is None else sdpa_kernel(backend):
        return saved_tensors(
            lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        )


def bytes_a_score(saved: list[torch.Tensor], seq: int = 64) -> float:
    """Bytes for each score in the tensors that are as large as the matrix of scores."""
    return sum(s.untyped_storage().nbytes() for s in saved if s.shape[-2:] == (seq, seq)) / (
        B * A * seq**2
    )


@cache
def saved_by_module(seq: int, need_weights: bool) -> int:
    attention = torch.nn.MultiheadAttention(A * D, A, batch_first=True)
    x = torch.randn(B, seq, A * D)
    return saved_bytes(
        lambda: attention(x, x, x, need_weights=need_weights), attention.parameters()
    )


def core_bytes(setup: TrainingSetup) -> int:
    lines = section_of(block_ledger(setup), "attention").lines
    return sum(line.num_bytes for line in lines if not line.name.startswith("norm"))


def test_C372(figures):
    saved = saved_by_sdpa(SDPBackend.FLASH_ATTENTION, torch.bfloat16)
    [log_sum_exp] = [s for s in saved if s.dtype == torch.float32]
    assert figures["tensors"] == len(saved)
    assert figures["row_bytes"] == log_sum_exp.nbytes / (B * A * 64)
    longer = saved_by_sdpa(SDPBackend.FLASH_ATTENTION, torch.bfloat16, seq=128)
    assert rounds_to(
        sum(s.untyped_storage().nbytes() for s in longer)
        / sum(s.untyped_storage().nbytes() for s in saved),
        figures["twice"],
    )
    assert bytes_a_score(saved) == bytes_a_score(longer, 128) == 0
    figures.settle(a_real_kernel=bytes_a_score(longer, 128) == 0)


def test_C376(figures):
    model = replace(GPT2_LARGE, max_seq_len=4096)
    assert figures["head_size"] == model.head_dim

    def saving(tokens: int) -> float:
        flash = TrainingSetup(model=model, precision=PURE_BF16, micro_batch_size=8, seq_len=tokens)
        return core_bytes(replace(flash, attention="stored")) / core_bytes(flash)

    assert figures["long"] == max(FLASH_README_MEMORY)
    assert figures["high"] == FLASH_README_MEMORY[figures["long"]]
    assert figures["short"] == figures["long"] // 4
    assert rounds_to(saving(figures["short"]), figures["low"])
    assert rounds_to(saving(figures["short"]), figures["short_times"])
    assert rounds_to(saving(figures["long"]), figures["long_times"])
    assert (figures["slowest"], figures["fastest"]) == FLASH_README_SPEEDUP
    figures.settle(
        short=figures["low"] <= figures["short_times"],
        long=figures["long_times"] <= figures["high"],
        first=saving(256) >= figures["low"],
    )
