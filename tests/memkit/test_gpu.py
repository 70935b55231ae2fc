"""What a process holds of a card beside its tensors, and giving back what a chapter held."""

import subprocess
import sys
import weakref

import pytest
import torch

from book.gpu_cap import give_back
from memkit.fit import CONTEXT_BYTES, workspace_bytes
from memkit.units import MIB


def test_a_remembered_traceback_is_forgotten():
    def fail():
        tensor = torch.ones(1000)
        born.append(weakref.ref(tensor))
        raise ValueError

    born = []
    try:
        fail()
    except ValueError as error:
        sys.last_value, sys.last_traceback = error, error.__traceback__  # as a notebook does
    assert born[0]() is not None
    give_back()
    assert born[0]() is None
    assert not hasattr(sys, "last_value")


@pytest.mark.gpu
def test_a_card_gives_back_what_was_cached():
    tensor = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    del tensor
    assert torch.cuda.memory_reserved() >= 256 * MIB
    assert give_back() >= 256 * MIB


FRESH = """
import torch
torch.ones(1, device="cuda")
torch.cuda.synchronize()
print(torch.cuda.memory_reserved(), flush=True)
input()
"""


@pytest.mark.gpu
def test_a_process_takes_a_context_beside_its_tensors():
    torch.cuda.init()
    free = torch.cuda.mem_get_info()[0]
    command = [sys.executable, "-c", FRESH]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        reserved = int(child.stdout.readline())
        context = free - torch.cuda.mem_get_info()[0] - reserved
        child.communicate("\n")
    assert 64 * MIB < context < 2 * CONTEXT_BYTES


@pytest.mark.gpu
def test_cublas_keeps_a_workspace_for_each_thread():
    torch._C._cuda_clearCublasWorkspaces()
    give_back()
    square = torch.ones(64, 64, device="cuda")
    held, predicted = (
        torch.cuda.memory_allocated(),
        workspace_bytes(torch.cuda.get_device_capability()),
    )
    square @ square
    assert torch.cuda.memory_allocated() - held == predicted
    square.requires_grad_()
    (square @ square).sum().backward()
    square.grad = None
    assert torch.cuda.memory_allocated() - held == 2 * predicted
