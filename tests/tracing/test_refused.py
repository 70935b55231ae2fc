"""What torch refuses for its dtypes when a program runs, a trace refuses on both rules, and nothing else."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from memkit.measuring.measure import measure_memory
from memkit.tracing.trace import trace_memory

HALF, SINGLE = torch.bfloat16, torch.float32


def forgotten_autocast(device):
    layer = nn.Linear(64, 64, device=device)
    return lambda: layer(torch.ones(8, 64, device=device, dtype=HALF)).sum().backward()


def targets(device, dtype):
    layer = nn.Linear(64, 64, device=device)
    return lambda: F.cross_entropy(
        layer(torch.ones(8, 64, device=device)), torch.zeros(8, device=device, dtype=dtype)
    ).backward()


def attention(device, dtype):
    q = torch.ones(2, 4, 16, 32, device=device, dtype=HALF)
    return lambda: F.scaled_dot_product_attention(q, q.to(dtype), q.to(dtype))


def norm(device, dtype):
    layer = nn.LayerNorm(16, device=device, dtype=dtype)
    return lambda: layer(torch.zeros(2, 16, device=device)).sum().backward()


def looked_up(device, dtype):
    layer = nn.Embedding(16, 8, device=device)
    return lambda: layer(torch.zeros(8, device=device, dtype=dtype)).sum().backward()


def promoted(device):
    """Operations that take two dtypes: they promote, mask, index or add up."""
    layer = nn.LayerNorm(16, device=device, dtype=SINGLE)

    def step():
        x = layer(torch.zeros(4, 16, device=device)) * torch.ones(4, 16, device=device, dtype=HALF)
        x = torch.where(x > 0, x.masked_fill(x > 1, 0), x + torch.arange(16, device=device))
        x[torch.zeros(2, device=device, dtype=torch.int64)].sum().backward()

    return step


PROGRAMS = {
    "a forgotten autocast": forgotten_autocast,
    "targets of 32 bits": lambda device: targets(device, torch.int32),
    "targets of 64 bits": lambda device: targets(device, torch.int64),
    "attention of two dtypes": lambda device: attention(device, SINGLE),
    "attention of one": lambda device: attention(device, HALF),
    "a norm in another dtype": lambda device: norm(device, HALF),
    "a norm in the same": lambda device: norm(device, SINGLE),
    "indices of 16 bits": lambda device: looked_up(device, torch.int16),
    "indices of 32 bits": lambda device: looked_up(device, torch.int32),
    "two dtypes that promote": promoted,
}


def refusal(run, program, device) -> str | None:
    try:
        run(lambda: program(device), device=device)
    except RuntimeError as error:
        return str(error)
    return None


REFUSED_WITHOUT_ASKING = ("attention of two dtypes", "indices of 16 bits")
"""Torch's kernels for tensors without values look at these themselves."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_trace_refuses_what_a_run_refuses_and_nothing_else(name):
    """The oracle is the run on the CPU; each of these is refused, or taken, on CUDA as well."""
    real = refusal(measure_memory, PROGRAMS[name], "cpu")
    for device in ("cpu", "cuda"):
        traced = refusal(trace_memory, PROGRAMS[name], device)
        assert (traced is None) == (real is None), (device, traced, real)
        assert real is None or "dtype" in traced or "scalar type" in traced
        assert real is None or traced.startswith("test_refused.py:") or name in REFUSED_WITHOUT_ASKING


def test_what_is_asked_is_tiny_however_large_the_programs_tensors_are():
    """No machine has the 2 PiB of this product."""
    trace_memory(lambda: lambda: torch.ones(2**25, 2**25, device="cuda", dtype=HALF) * torch.ones(2**25, device="cuda"))
