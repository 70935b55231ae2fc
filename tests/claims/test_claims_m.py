"""Proofs of group M: what bitsandbytes' and torch's own Adam keep after a real step."""

import warnings
from functools import cache

import pytest
import torch
from torch import nn

from book.claims import rounds_to
from memkit.formula.states import state_bytes
from memkit.hardware.cards import CARDS
from memkit.setup.models import LLAMA_2_7B, LLAMA_2_13B
from memkit.setup.recipes import PURE_BF16, OptimizerConfig

BILLION = 10**9
SEVEN = 7


@cache
def states_after_a_step(name: str, count: int = 2**16, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """torch's or bitsandbytes' own states of one tensor; the maps of codes, shared by all tensors, are left out."""
    library = torch.optim if name == "AdamW" else pytest.importorskip("bitsandbytes.optim")
    weight = nn.Parameter(torch.zeros(count, dtype=dtype))
    weight.grad = torch.ones_like(weight)
    optimizer = getattr(library, name)([weight])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Paged optimizers are not supported on CPU")
        optimizer.step()
    kept = optimizer.state[weight].items()
    return {key: t for key, t in kept if torch.is_tensor(t) and key not in ("step", "qmap1", "qmap2")}


def bytes_each(name: str, count: int = 2**16, dtype: torch.dtype = torch.float32) -> float:
    """Bytes of states a parameter."""
    return sum(t.nbytes for t in states_after_a_step(name, count, dtype).values()) / count


def test_C370(figures):
    """What cannot leave decides: weights and gradients of the two models beside one card."""
    assert bytes_each("PagedAdamW32bit") == figures["bytes"]
    kept, large = (
        state_bytes(model, PURE_BF16, OptimizerConfig(name="paged AdamW")) for model in (LLAMA_2_7B, LLAMA_2_13B)
    )
    seven, thirteen = (parts["weights"] + parts["gradients"] for parts in (kept, large))
    states = figures["bytes"] * kept["weights"] // torch.bfloat16.itemsize
    assert kept["optimizer_states"] < states // 1000  # small tensors' states, which stay on the card
    assert rounds_to(seven / BILLION, figures["kept_gb"]) and rounds_to(thirteen / BILLION, figures["large_gb"])
    assert rounds_to(states / BILLION, figures["states_gb"])
    card = CARDS["A100 SXM 40 GB"]
    assert card.label_gb == figures["label_gb"]
    figures.settle(
        states_do_not_fit=seven < card.memory_bytes < seven + states, nothing_fits=thirteen < card.memory_bytes,
    )  # fmt: skip
