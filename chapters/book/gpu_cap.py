"""The reader's cap on the card, and giving back what a chapter held.

On a shared card ``MEMKIT_GPU_GIB`` caps the process. The cap holds what PyTorch's allocator takes, not the CUDA
context beside it, and it is manners, not a wall: another program is not stopped by it (pytorch/pytorch#69688).
"""

import gc
import sys
from collections.abc import Mapping

import torch

from book.driver import gpu_cap_bytes


def cap_gpu(environment: Mapping[str, str] | None = None) -> int | None:
    """Cap this process at ``MEMKIT_GPU_GIB`` of the current card and return the cap in bytes, or ``None``.

    Without the variable, or without a card, nothing happens.

    Raises: ValueError: the variable is no number above zero.
    """
    cap_bytes = gpu_cap_bytes(environment)
    if cap_bytes is None or not torch.cuda.is_available():
        return None
    total_bytes = torch.cuda.get_device_properties().total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total_bytes))
    return min(cap_bytes, total_bytes)


def cap_gpu_when_used() -> None:
    """``cap_gpu`` once CUDA is first used, so that a program that uses none makes no context on the card.

    Raises: ValueError, at once: the variable is no number above zero.
    """
    if gpu_cap_bytes() is not None:
        # torch's own queue of what waits for the first use, a seed's too
        torch.cuda._lazy_call(cap_gpu)


def give_back() -> int:
    """Free what nothing refers to, return the allocator's cache to the driver, and return those bytes.

    A chapter ends with it, after ``del`` of its models. An exception that a notebook still remembers holds
    the tensors of the cell that failed: its traceback is forgotten here too.

    >>> from book import give_back
    >>> give_back()  # on a machine without a GPU there is nothing to return
    0
    """
    for name in ("last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
    if not torch.cuda.is_initialized():
        return 0
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return before - torch.cuda.memory_reserved()
