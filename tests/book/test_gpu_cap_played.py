"""The cap and out of memory: with CUDA played on any machine, for real where there is a card."""

from types import SimpleNamespace

import pytest
import torch

from book.gpu_cap import cap_gpu, give_back
from memkit.units import GIB, MIB


@pytest.fixture
def played_cuda(monkeypatch):
    """A card of 80 GiB."""
    calls = {}
    played = {
        "is_available": lambda: True,
        "get_device_properties": lambda: SimpleNamespace(total_memory=80 * GIB),
        "set_per_process_memory_fraction": lambda fraction: calls.update(fraction=fraction),
    }
    for name, function in played.items():
        monkeypatch.setattr(torch.cuda, name, function)
    return calls


@pytest.mark.parametrize(
    "variables, cap, calls",
    [
        ({}, None, {}),
        ({"MEMKIT_GPU_GIB": "2"}, 2 * GIB, {"fraction": 2 / 80}),
        ({"MEMKIT_GPU_GIB": "500"}, 80 * GIB, {"fraction": 1.0}),  # the card is smaller
    ],
)
def test_the_cap_becomes_a_fraction_of_the_card(played_cuda, variables, cap, calls):
    assert (cap_gpu(variables), played_cuda) == (cap, calls)


def test_without_a_card_the_cap_is_read_and_nothing_else(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cap_gpu({"MEMKIT_GPU_GIB": "2"}) is None
    with pytest.raises(ValueError, match="is not a number of GiB"):
        cap_gpu({"MEMKIT_GPU_GIB": "two"})


@pytest.mark.gpu
def test_out_of_memory_under_a_cap_is_survived():
    give_back()
    held = torch.cuda.memory_allocated()
    cap = 256 * MIB + held
    try:
        assert cap_gpu({"MEMKIT_GPU_GIB": str(cap / GIB)}) == cap
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(GIB, dtype=torch.uint8, device="cuda")
        give_back()
        assert torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").numel() == 64 * MIB
        assert torch.cuda.memory_allocated() == held
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
