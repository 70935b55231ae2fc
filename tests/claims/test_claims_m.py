"""Proofs of group M: what bitsandbytes' and torch's own Adam keep after a real step."""

import warnings
from functools import cache

import pytest
import torch
from claims.test_claims_a import BILLION, SEVEN  # noqa: F401  the ledger names them
from torch import nn


@cache
def states_after_a_step(
    name: str, count: int = 2**16, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """torch's or bitsandbytes' own states of one tensor; the maps of codes, shared by all tensors, are left out."""
    library = torch.optim if name == "AdamW" else pytest.importorskip("bitsandbytes.optim")
    weight = nn.Parameter(torch.zeros(count, dtype=dtype))
    weight.grad = torch.ones_like(weight)
    optimizer = getattr(library, name)([weight])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Paged optimizers are not supported on CPU")
        optimizer.step()
    kept = optimizer.state[weight].items()
    return {
        key: t for key, t in kept if torch.is_tensor(t) and key not in ("step", "qmap1", "qmap2")
    }


def bytes_each(name: str, count: int = 2**16, dtype: torch.dtype = torch.float32) -> float:
    """Bytes of states a parameter."""
    return sum(t.nbytes for t in states_after_a_step(name, count, dtype).values()) / count
