"""A card that is not there: CUDA code runs on a trace's tensors, and the allocator's model answers for their memory.

``with pretend_card() as card:`` runs the code inside as a program is traced, on tensors without values. Each birth and
free goes through ``stepscope.allocator``, cuBLAS's workspaces among them: ``memory_allocated``, its peak, ``reserved``,
``memory_stats``, ``mem_get_info``, snapshots, caps and ``OutOfMemoryError`` mean what they mean on a card. What it has
not: values (a loss is 1.0), times (an elapsed time is not a number), kernels of cuDNN and cuBLASLt, a compiled step's
scratch.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch.overrides import _pop_mode_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from memkit import measure
from memkit.fit import CONTEXT_BYTES, workspace_bytes
from memkit.tracing import trace as kit_trace
from memkit.units import GIB, MIB
from stepscope.allocator.caching import CachingAllocator, Driver, OutOfMemory
from stepscope.allocator.replay import MATRIX_PRODUCTS
from stepscope.tracing import patched, trace
from stepscope.tracing.card import Counters
from stepscope.tracing.log import ScriptLog

DATA_PTR = torch.UntypedStorage.data_ptr
RECORDING, KIT_RECORDING, CPU_RECORD = trace.recording, kit_trace.recording, measure.cpu_record
OWN = [
    (home, name, getattr(home, name))
    for home, name in (
        (torch.autograd.graph.saved_tensors_hooks, "__init__"),
        (torch.nn.Module, "__call__"),
        (torch.amp.grad_scaler.GradScaler, "_maybe_opt_step"),
        (torch.UntypedStorage, "resize_"),
        (torch, "save"),
    )
]
"""What a trace puts something around; ``off`` puts it back, else the modes would come back with it."""


class PretendCard(Counters):
    """The card: its allocator, which is asked at each birth and not when a program asks, and where each block lies."""

    def __init__(self, tracer, total_bytes: int, capability: tuple[int, int], name: str):
        self.tracer = tracer
        self.total_bytes = total_bytes
        self.capability = capability
        self.name = name
        self.allocator = CachingAllocator(driver=Driver(total_bytes, CONTEXT_BYTES))
        self.addresses: dict[int, int] = {}
        self.workspaces: dict[bool, int] = {}  # in the backward's thread, and in the program's
        self.fraction = 1.0
        self.recorded_from: int | None = None

    def allocator_now(self) -> CachingAllocator:
        """The allocator after everything that has happened so far."""
        return self.allocator

    def born(self, block: int, num_bytes: int, operation: object) -> None:
        """A block of the trace is born. Raises: torch.OutOfMemoryError: the card has no room for it."""
        try:
            self.addresses[block] = self.allocator.malloc(num_bytes)
            self.take_workspace(str(operation))
        except OutOfMemory as error:
            raise torch.OutOfMemoryError(str(error)) from None

    def freed(self, block: int) -> None:
        """A block of the trace is freed; one that found no room never had an address."""
        if (address := self.addresses.pop(block, None)) is not None:
            self.allocator.free(address)

    def take_workspace(self, operation: str) -> None:
        """cuBLAS takes one at the first product of each thread."""
        in_backward = torch._C._current_graph_task_id() != -1
        if in_backward not in self.workspaces and not MATRIX_PRODUCTS.isdisjoint(
            operation.split(".")
        ):
            self.workspaces[in_backward] = self.allocator.malloc(workspace_bytes(self.capability))

    def clear_workspaces(self) -> None:
        """``torch._C._cuda_clearCublasWorkspaces``."""
        for address in self.workspaces.values():
            self.allocator.free(address)
        self.workspaces.clear()

    def record(self, enabled: object = "all", *_, **__) -> None:
        """``torch.cuda.memory._record_memory_history``."""
        self.recorded_from = len(self.allocator.trace) if enabled else None

    def snapshot(self, *_, **__) -> dict[str, object]:
        """``torch.cuda.memory._snapshot``."""
        entries = [
            {
                "action": each.action,
                "addr": each.address,
                "size": each.size,
                "stream": 0,
                "frames": [],
            }
            for each in self.allocator.trace[self.recorded_from or 0 :]
        ]
        segments = [
            {
                "address": run[0].address,
                "total_size": sum(block.size for block in run),
                "device": 0,
                "stream": 0,
                "segment_type": "small" if run[0].pool.is_small else "large",
                "allocated_size": sum(block.size for block in run if block.allocated),
                "blocks": [
                    {
                        "address": block.address,
                        "size": block.size,
                        "requested_size": block.requested_bytes,
                        "state": block.state,
                        "frames": [],
                    }
                    for block in run
                ],
            }
            for run in self.allocator.segments()
        ]
        return {"segments": segments, "device_traces": [entries], "allocator_settings": {}}

    def cap(self, fraction: float, *_, **__) -> None:
        """``torch.cuda.set_per_process_memory_fraction``, which caps the segments and not the context beside them."""
        self.fraction = fraction
        others = self.allocator.driver.used_bytes - self.allocator.reserved_bytes
        self.allocator.driver.capacity_bytes = min(
            self.total_bytes, int(self.total_bytes * fraction) + others
        )

    def data_ptr(self, storage: torch.UntypedStorage) -> int:
        """The address of a storage's block in the allocator; a storage of the host's has its own."""
        block = self.tracer.blocks.get(storage._cdata)
        return DATA_PTR(storage) if block is None else self.addresses[block]

    def properties(self, *_, **__) -> SimpleNamespace:
        """``torch.cuda.get_device_properties``."""
        major, minor = self.capability
        return SimpleNamespace(
            name=self.name,
            major=major,
            minor=minor,
            total_memory=self.total_bytes,
            multi_processor_count=24,
            L2_cache_size=24 * MIB,
            shared_memory_per_multiprocessor=100 * 1024,
        )

    def in_place_of_torchs(self) -> Iterator[tuple[object, str, object]]:
        """Module, name, and what answers there."""
        answers = {
            "memory_stats": self.statistics,
            "memory_allocated": self.statistic("allocated_bytes.all.current"),
            "max_memory_allocated": self.statistic("allocated_bytes.all.peak"),
            "memory_reserved": self.statistic("reserved_bytes.all.current"),
            "max_memory_reserved": self.statistic("reserved_bytes.all.peak"),
            "reset_peak_memory_stats": lambda *_: self.allocator.reset_peak(),
            "empty_cache": lambda *_: self.allocator.empty_cache(),
            "mem_get_info": lambda *_: (self.allocator.driver.free_bytes, self.total_bytes),
            "memory_snapshot": lambda *_: self.snapshot()["segments"],
            "set_per_process_memory_fraction": self.cap,
            "get_per_process_memory_fraction": lambda: self.fraction,
            "_record_memory_history": self.record,
            "_snapshot": self.snapshot,
            "get_device_properties": self.properties,
            "get_device_capability": lambda *_: self.capability,
            "get_device_name": lambda *_: self.name,
            "is_initialized": lambda: True,
        }
        for home in (torch.cuda, torch.cuda.memory, torch.accelerator, torch.accelerator.memory):
            yield from (
                (home, name, value) for name, value in answers.items() if hasattr(home, name)
            )
        yield torch._C, "_cuda_clearCublasWorkspaces", self.clear_workspaces
        yield torch.UntypedStorage, "data_ptr", lambda storage: self.data_ptr(storage)
        yield trace, "recording", outside_card(RECORDING)
        yield kit_trace, "recording", outside_card(KIT_RECORDING)
        yield measure, "cpu_record", outside_card(CPU_RECORD)


class CardsLog(ScriptLog):
    """The trace's log; what it notes goes through the card's allocator too."""

    __slots__ = ("card",)

    def __init__(self, card: PretendCard):
        super().__init__()
        self.card = card

    def allocate(self, num_bytes: int, op: object, place: object = None) -> int:
        block = super().allocate(num_bytes, op, place)
        self.card.born(block, num_bytes, op)
        return block

    def free(self, block: int) -> None:
        super().free(block)
        self.card.freed(block)


@contextmanager
def off() -> Iterator[None]:
    """Inside, the card's modes are off: for a trace of memkit's own, and for what runs on the CPU."""
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        for home, name, own in OWN:
            stack.enter_context(patch.object(home, name, own))
        if torch._C._len_torch_function_stack():
            stack.enter_context(_pop_mode_temporarily())
        yield


def outside_card(context):
    """``context`` as it runs where no card is pretended."""

    @contextmanager
    def with_modes_off(*args, **kwargs):
        with off(), patch.object(patched, "OF_LIBRARIES", {}), context(*args, **kwargs) as given:
            yield given

    return with_modes_off


@contextmanager
def pretend_card(
    *,
    total_bytes: int = 8 * GIB,
    capability: tuple[int, int] = (8, 9),
    name: str = "NVIDIA GeForce RTX 4060",
) -> Iterator[PretendCard]:
    """The code inside finds one card of ``total_bytes``, of which a context takes what ``memkit.fit`` says."""
    with ExitStack() as stack:
        tracer = stack.enter_context(RECORDING("cuda", starts_in_host=True))
        card = PretendCard(tracer, total_bytes, capability, name)
        stack.enter_context(patch.object(tracer, "log", CardsLog(card)))
        for home, what, value in card.in_place_of_torchs():
            stack.enter_context(patch.object(home, what, value, create=not hasattr(home, what)))
        yield card
