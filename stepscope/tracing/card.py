"""A card that nobody has chosen: its streams, properties and memory counters, and the calls that a trace refuses.

A program may ask for ``torch.cuda.memory_allocated``, its peak, ``mem_get_info`` and the rest. The trace's births and
frees are played through the model of CUDA's caching allocator when a program asks, cuBLAS's workspaces among them, so
that the numbers mean what they mean on a card.
"""

import math
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import torch
from torch import Tensor

from memkit.cards import CARDS
from memkit.fit import CONTEXT_BYTES, workspace_bytes
from memkit.units import format_bytes
from stepscope.allocator.caching import CachingAllocator
from stepscope.allocator.replay import MATRIX_PRODUCTS
from stepscope.tracing.ranks import num_cards, on_one_card
from stepscope.tracing.refusals import LIBRARY_HOME, OWN_HOME, calling_frame, not_followed, refusing

IMPORTS = "<frozen importlib._bootstrap>"
CARD = torch.device("cuda", 0)
CAPABILITY = (8, 0)


class Stream:
    """A stream or an event of the card: a trace has one order of things, and nothing to wait for."""

    def __init__(self, *_, **__):
        self.device, self.device_index, self.stream_id = CARD, 0, 0

    def record_event(self, *_) -> "Stream":
        """FSDP's replicas want one to wait for."""
        return Stream()

    def query(self) -> bool:
        """Whether the stream's work is done: always, for nothing waits."""
        return True

    def elapsed_time(self, _: object) -> float:
        """Milliseconds between two events: none are known."""
        return math.nan

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class CardGenerator(torch._C.Generator):
    """A card's generator, drawn from by nobody: the host's, which says that it is the card's."""

    device = CARD

    def __new__(cls):
        return super().__new__(cls, "cpu")


class AnyGenerator(type):
    """Every generator counts as one."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch._C.Generator)


class Generator(metaclass=AnyGenerator):
    """In place of ``torch.Generator``, which a CPU build makes for no card; a class, as libraries annotate with it."""

    def __new__(cls, device: object = "cpu"):
        return CardGenerator() if "cuda" in str(device) else torch._C.Generator(device)


class Generators:
    """In place of ``torch.cuda.default_generators``, which is empty where there is no card."""

    def __len__(self) -> int:
        return num_cards()

    def __getitem__(self, number: int) -> CardGenerator:
        if not -len(self) <= number < len(self):
            raise IndexError(f"generator {number} of {len(self)}")
        return CardGenerator()


class Properties:
    """What ``get_device_properties`` says of a card that nobody has chosen."""

    name, major, minor = "a card that is traced", *CAPABILITY

    def __getattr__(self, name: str):
        raise not_followed(
            f"get_device_properties().{name}", "write the number of the card you mean"
        )


ANSWERS = (
    (
        None,
        torch.cuda,
        "_lazy_init ipc_collect set_device set_rng_state set_sync_debug_mode synchronize",
    ),
    (None, torch.cuda, "set_rng_state_all manual_seed manual_seed_all seed seed_all"),
    (
        None,
        torch.cuda.random,
        "set_rng_state set_rng_state_all manual_seed manual_seed_all seed seed_all",
    ),
    (None, torch.cuda, "reset_accumulated_memory_stats set_per_process_memory_fraction"),
    # These change or read a real allocator, and no tensor.
    (
        None,
        torch.cuda.memory,
        "_record_memory_history _dump_snapshot _snapshot set_per_process_memory_fraction",
    ),
    (None, torch.cuda.profiler, "start stop"),
    (None, torch.accelerator, "synchronize set_device_index"),
    (None, Tensor, "record_stream"),
    (0, torch.cuda, "current_device get_sync_debug_mode"),
    (0, torch.accelerator, "current_device_index"),
    (True, torch.cuda, "is_bf16_supported"),
    (True, torch.accelerator, "is_available"),
    # An optimizer's step asks whether a graph is captured; a CUDA build without a driver fails there.
    (False, torch.cuda, "is_current_stream_capturing"),
    (False, torch.cuda.amp.common, "amp_definitely_not_available"),
    (CAPABILITY, torch.cuda, "get_device_capability"),
    ("a card that is traced", torch.cuda, "get_device_name"),
    ((), torch.cuda, "memory_snapshot"),
    (Properties(), torch.cuda, "get_device_properties"),
    (torch.device("cuda"), torch.accelerator, "current_accelerator"),
    (torch.device("cuda"), torch._C, "_get_accelerator"),
    (nullcontext(), torch.cuda, "stream"),
    (nullcontext(), torch.autograd.profiler, "emit_nvtx"),
    (["cuda", "meta"], torch.utils._foreach_utils, "_get_foreach_kernels_supported_devices"),
)
"""What functions of torch answer, whatever they are given: the answer, their home and their names."""


def answering(value: object) -> Callable:
    return lambda *_, **__: value


REFUSED = (
    (
        torch.cuda,
        "CUDAGraph",
        "trace the step without it: a graph keeps what its capture has allocated",
    ),
    (torch.cuda, "MemPool", "trace the step without it: all pools together take what one takes"),
)
"""What a trace cannot follow, and what to write in its place."""


def refusing_of(home, name: str, instead: str):
    """A stand-in for a function or class of torch that says what to do instead."""
    refuse = refusing(f"{home.__name__}.{name}", instead)
    # A class stays one, because libraries write it in annotations that are read when they are imported.
    return type(name, (), {"__init__": refuse}) if isinstance(getattr(home, name), type) else refuse


IS_AVAILABLE = torch.cuda.is_available


def is_available() -> bool:
    """A card is there, but for a library that is imported meanwhile: it would load what this build of torch lacks."""
    frame = sys._getframe(1)
    if not frame.f_code.co_filename.startswith(LIBRARY_HOME):
        return True
    while frame is not None and not frame.f_code.co_filename.startswith(OWN_HOME):
        if frame.f_code.co_filename == IMPORTS:
            return IS_AVAILABLE()
        frame = frame.f_back
    return True


STAND_INS = (
    *((home, name, answering(value)) for value, home, names in ANSWERS for name in names.split()),
    *((home, name, refusing_of(home, name, instead)) for home, name, instead in REFUSED),
    *(
        (torch.cuda, name, Stream)
        for name in ("Stream", "Event", "current_stream", "default_stream", "cudart")
    ),
    (torch.accelerator, "current_stream", Stream),
    (torch.cuda.nvtx, "_nvtx", Stream()),
    (torch.cuda, "is_available", is_available),
    *(
        (home, "get_rng_state", lambda *_: torch.get_rng_state())
        for home in (torch.cuda, torch.cuda.random)
    ),
    *(
        (home, "get_rng_state_all", lambda: [torch.get_rng_state() for _ in range(num_cards())])
        for home in (torch.cuda, torch.cuda.random)
    ),
    (torch.cuda, "default_generators", Generators()),
    (torch.cuda, "initial_seed", torch.initial_seed),
    *((home, "device_count", num_cards) for home in (torch.cuda, torch.accelerator)),
    (torch, "Generator", Generator),
    (torch.nn.DataParallel, "__init__", on_one_card),
)
"""What stands in for torch's own while a program is traced: module or class, name, value."""


NAMED = CARDS["A100 SXM 80 GB"]
"""The card whose free bytes are told where nobody has chosen one."""

STATISTICS = {
    "allocated_bytes": "allocated",
    "reserved_bytes": "reserved",
    "active_bytes": "active",
    "requested_bytes": "requested",
}
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
        for event in log.events[self.position :]:
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

    def statistic(self, name: str):
        """A function that tells one of the numbers."""
        return lambda *_, **__: self.statistics()[name]


@contextmanager
def counted(log_of) -> Iterator[None]:
    """Inside, a program that asks for its memory is told it."""
    counters = Counters(log_of)
    answers = {
        "memory_stats": counters.statistics,
        "mem_get_info": counters.free_and_total,
        "memory_allocated": counters.statistic("allocated_bytes.all.current"),
        "max_memory_allocated": counters.statistic("allocated_bytes.all.peak"),
        "memory_reserved": counters.statistic("reserved_bytes.all.current"),
        "max_memory_reserved": counters.statistic("reserved_bytes.all.peak"),
    }
    answers |= {
        "memory_cached": answers["memory_reserved"],
        "max_memory_cached": answers["max_memory_reserved"],
    }
    for name in (
        "reset_peak_memory_stats",
        "reset_max_memory_allocated",
        "reset_max_memory_cached",
    ):
        answers[name] = lambda *_, **__: counters.allocator_now().reset_peak()
    answers["empty_cache"] = lambda *_, **__: counters.allocator_now().empty_cache()
    with ExitStack() as stack:
        for home in (torch.cuda, torch.cuda.memory, torch.accelerator, torch.accelerator.memory):
            for name, value in answers.items():
                if hasattr(home, name):
                    stack.enter_context(patch.object(home, name, value))
        yield
