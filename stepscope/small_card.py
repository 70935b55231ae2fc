"""Chapter 07's card that is small enough to run out of memory on purpose: a real one under a cap, or a played one.

``with capped_card(num_bytes) as card`` runs the code inside on so many bytes. With a GPU PyTorch's own
allocator refuses what is more. Without one the tensors are real tensors of the CPU, and each is also asked of
the allocator's model; where the model finds no room, ``torch.OutOfMemoryError`` is raised from inside the
operation, as on a GPU.
"""

import weakref
from typing import Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from memkit.program.hooks import tensors_in
from memkit.units import as_whole_number
from stepscope.allocator.caching import CachingAllocator, Driver, OutOfMemory


class SimulatedCard(TorchDispatchMode):
    """A card of ``capacity_bytes`` for the tensors that are made while it is entered; a CPU plays it.

    A tensor from before is counted from its first use inside. Scratch that a kernel takes and returns is not seen.
    """

    device = "cpu"

    def __init__(self, capacity_bytes: int):
        super().__init__()
        self.allocator = CachingAllocator(driver=Driver(capacity_bytes))
        self.seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        message = self._note_all(out)
        if message is None:
            return out
        del out  # the traceback keeps this frame: what was refused must not live on in it
        raise torch.OutOfMemoryError(message)

    def _note_all(self, out: object) -> str | None:
        try:
            for tensor in tensors_in(out):
                self._note(tensor)
        except OutOfMemory as error:
            return str(error)
        return None

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self.seen or not storage.nbytes():
            return
        address = self.allocator.malloc(storage.nbytes())
        self.seen.add(storage)
        weakref.finalize(storage, self.allocator.free, address).atexit = False

    allocated_bytes = property(lambda self: self.allocator.allocated_bytes)
    peak_allocated_bytes = property(lambda self: self.allocator.peak["allocated"])

    def reset_peak(self) -> None:
        """``torch.cuda.reset_peak_memory_stats``."""
        self.allocator.reset_peak()

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``."""
        self.allocator.empty_cache()


class CudaCard:
    """The current GPU, its allocator capped at ``num_bytes`` more than it holds already; the names as above.

    What it held before is in no count: a program's own bytes are those of a played card.
    """

    device = "cuda"

    def __init__(self, num_bytes: int):
        self.num_bytes = num_bytes

    def __enter__(self) -> Self:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties().total_memory
        capacity_bytes = min(total, torch.cuda.memory_reserved() + self.num_bytes)
        # cuBLAS's workspaces, and what a reader has left there
        self.held_bytes = torch.cuda.memory_allocated()
        self.fraction = torch.cuda.get_per_process_memory_fraction()
        torch.cuda.set_per_process_memory_fraction(capacity_bytes / total)
        self.reset_peak()
        return self

    def __exit__(self, *error) -> None:
        # the reader's own cap, if there is one, holds again
        torch.cuda.set_per_process_memory_fraction(self.fraction)

    allocated_bytes = property(lambda self: torch.cuda.memory_allocated() - self.held_bytes)
    peak_allocated_bytes = property(lambda self: torch.cuda.max_memory_allocated())

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()


def capped_card(num_bytes: int) -> SimulatedCard | CudaCard:
    """A context in which this process has ``num_bytes`` of GPU memory: of the real GPU, or of a played one.

    Raises: ValueError: ``num_bytes`` is not a positive whole number.
    """
    num_bytes = as_whole_number("num_bytes", num_bytes, minimum=1)
    return CudaCard(num_bytes) if torch.cuda.is_available() else SimulatedCard(num_bytes)
