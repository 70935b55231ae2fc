"""What torch refuses for its dtypes when a program runs, a trace refuses on both rules, and nothing else."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from memkit.measure import measure_memory
from stepscope.tracing.trace import trace_script

HALF = torch.bfloat16


def forgotten_autocast(device, bias):
    layer = nn.Linear(64, 64, bias, device=device)
    return lambda: layer(torch.ones(8, 64, device=device, dtype=HALF)).sum().backward()


def targets(device, dtype):
    layer = nn.Linear(64, 64, device=device)
    return lambda: F.cross_entropy(
        layer(torch.ones(8, 64, device=device)), torch.zeros(8, device=device, dtype=dtype)
    ).backward()


def attention(device, dtype):
    q = torch.ones(2, 4, 16, 32, device=device, dtype=HALF)
    return lambda: F.scaled_dot_product_attention(q, q.to(dtype), q.to(dtype))


PROGRAMS = {
    "a forgotten autocast": lambda device: forgotten_autocast(device, True),
    "the same without a bias": lambda device: forgotten_autocast(device, False),
    "targets of 32 bits": lambda device: targets(device, torch.int32),
    "targets of 64 bits": lambda device: targets(device, torch.int64),
    "attention of two dtypes": lambda device: attention(device, torch.float32),
    "attention of one": lambda device: attention(device, HALF),
}


def refusal(run, program, device) -> str | None:
    try:
        run(lambda: program(device), device=device)
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_trace_refuses_what_a_run_refuses_and_nothing_else(name):
    """The oracle is the run on the CPU; each of these is refused, or taken, on CUDA as well."""
    real = refusal(measure_memory, PROGRAMS[name], "cpu")
    for device in ("cpu", "cuda"):
        traced = refusal(trace_script, PROGRAMS[name], device)
        assert (traced is None) == (real is None), (device, traced, real)
