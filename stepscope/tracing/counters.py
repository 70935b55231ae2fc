"""What a program is told of its own memory: ``torch.cuda.memory_allocated``, its peak, ``mem_get_info`` and the rest.

The trace's births and frees are played through the model of CUDA's caching allocator when a program asks, cuBLAS's
workspaces among them, so that the numbers mean what they mean on a card.
"""

import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch

from memkit.cards import CARDS
from memkit.fit import CONTEXT_BYTES, workspace_bytes
from memkit.units import format_bytes
from stepscope.allocator.caching import CachingAllocator
from stepscope.allocator.replays import MATRIX_PRODUCTS
from stepscope.tracing.card import CAPABILITY
from stepscope.tracing.refusals import calling_frame

NAMED = CARDS["A100 SXM 80 GB"]
"""The card whose free bytes are told where nobody has chosen one."""

STATISTICS = {"allocated_bytes": "allocated", "reserved_bytes": "reserved", "active_bytes": "active",
              "requested_bytes": "requested"}
"""torch's names, and the allocator's."""


class Counters:
    """Follows a log as far as it goes; ``log_of()`` is the trace's log now."""

    def __init__(self, log_of):
        self.log_of, self.log = log_of, None
        self.warned = False

    def allocator_now(self) -> CachingAllocator:
        """The allocator after everything that has happened so far."""
        log = self.log_of()
        if log is not self.log or self.position > len(log.events):
            self.log, self.position = log, 0
            self.allocator, self.addresses, self.threads = CachingAllocator(), {}, set()
        for event in log.events[self.position:]:
            if event >= 0:
                operation, _, phase = log.births[event]
                self.addresses[event] = self.allocator.malloc(log.sizes[event])
                self.take_workspace(str(operation), phase == "backward")
            elif (address := self.addresses.pop(~event, None)) is not None:
                self.allocator.free(address)
        self.position = len(log.events)
        return self.allocator

    def take_workspace(self, operation: str, is_backward: bool) -> None:
        """cuBLAS takes one at the first product of each thread."""
        if is_backward not in self.threads and not MATRIX_PRODUCTS.isdisjoint(operation.split(".")):
            self.threads.add(is_backward)
            self.allocator.malloc(workspace_bytes(CAPABILITY))

    def statistics(self, *_, **__) -> dict[str, int]:
        """``torch.cuda.memory_stats``; what is not modelled is 0."""
        allocator = self.allocator_now()
        found = defaultdict(int, allocator.counts)
        for theirs, ours in STATISTICS.items():
            found[f"{theirs}.all.current"] = allocator.current[ours]
            found[f"{theirs}.all.peak"] = allocator.peak[ours]
        return found

    def free_and_total(self, *_, **__) -> tuple[int, int]:
        """``torch.cuda.mem_get_info``, of a card that nobody has chosen."""
        if not self.warned:
            self.warned, frame = True, calling_frame()
            text = f"mem_get_info: told as on one {NAMED.name}, {format_bytes(NAMED.memory_bytes)}; no card is chosen"
            warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)
        used = CONTEXT_BYTES + self.allocator_now().current["reserved"]
        return max(NAMED.memory_bytes - used, 0), NAMED.memory_bytes

    def told(self, name: str):
        """A function that tells one of the numbers."""
        return lambda *_, **__: self.statistics()[name]


@contextmanager
def counted(log_of) -> Iterator[None]:
    """Inside, a program that asks for its memory is told it."""
    counters = Counters(log_of)
    answers = {
        "memory_stats": counters.statistics, "mem_get_info": counters.free_and_total,
        "memory_allocated": counters.told("allocated_bytes.all.current"),
        "max_memory_allocated": counters.told("allocated_bytes.all.peak"),
        "memory_reserved": counters.told("reserved_bytes.all.current"),
        "max_memory_reserved": counters.told("reserved_bytes.all.peak"),
    }
    answers |= {"memory_cached": answers["memory_reserved"], "max_memory_cached": answers["max_memory_reserved"]}
    for name in ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"):
        answers[name] = lambda *_, **__: counters.allocator_now().reset_peak()
    answers["empty_cache"] = lambda *_, **__: counters.allocator_now().empty_cache()
    with ExitStack() as stack:
        for home in (torch.cuda, torch.cuda.memory, torch.accelerator, torch.accelerator.memory):
            for name, value in answers.items():
                if hasattr(home, name):
                    stack.enter_context(patch.object(home, name, value))
        yield
