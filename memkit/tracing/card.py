"""A card that nobody has chosen: its streams and properties, and the calls of ``torch.cuda`` that a trace refuses."""

import math
import sys
from collections import defaultdict
from contextlib import nullcontext

import torch
from torch import Tensor

from memkit.tracing.refusals import LIBRARY_HOME, OWN_HOME, not_followed, refusing

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


class Properties:
    """What ``get_device_properties`` says of a card that nobody has chosen."""

    name, major, minor = "a card that is traced", *CAPABILITY

    def __getattr__(self, name: str):
        raise not_followed(f"get_device_properties().{name}", "write the number of the card you mean")


WITHOUT_EFFECT = (
    "_lazy_init empty_cache ipc_collect reset_accumulated_memory_stats reset_max_memory_allocated set_device "
    "reset_max_memory_cached reset_peak_memory_stats set_per_process_memory_fraction set_rng_state set_sync_debug_mode "
    "synchronize"
)
"""Functions of ``torch.cuda`` that change no tensor."""
RECORDERS = ("_record_memory_history", "_dump_snapshot", "_snapshot", "set_per_process_memory_fraction")
"""Functions of ``torch.cuda`` and ``torch.cuda.memory`` that change or read a real allocator, and no tensor."""

REFUSED = (
    (torch.cuda, "mem_get_info", "write the free bytes of the card you mean"),
    (torch.cuda, "CUDAGraph", "trace the step without it: a graph keeps what its capture has allocated"),
    (torch.cuda, "MemPool", "trace the step without it: all pools together take what one takes"),
)
"""What a trace cannot follow, and what to write in its place."""


def refusing_of(home, name: str, instead: str):
    """A stand-in for a function or class of torch that says what to do instead."""
    refuse = refusing(f"{home.__name__}.{name}", instead)
    # A class stays one, because libraries write it in annotations that are read when they are imported.
    return type(name, (), {"__init__": refuse}) if isinstance(getattr(home, name), type) else refuse


def on_one_card(parallel, module, device_ids=None, output_device=None, dim=0) -> None:
    """``DataParallel`` on a machine with one card: it calls its module."""
    torch.nn.Module.__init__(parallel)
    parallel.module, parallel.dim, parallel.device_ids = module, dim, []


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
    (torch.cuda, "is_available", is_available),
    (torch.cuda, "get_device_capability", lambda *_: CAPABILITY),
    (torch.cuda, "get_device_name", lambda *_: "a card that is traced"),
    (torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state()),
    # An optimizer's step asks whether a graph is captured; a CUDA build without a driver fails there.
    (torch.cuda, "is_current_stream_capturing", lambda: False),
    (torch.accelerator, "current_stream", Stream),
    (torch.accelerator, "current_device_index", lambda: 0),
    *((torch.accelerator, name, lambda *_: None) for name in ("synchronize", "empty_cache", "reset_peak_memory_stats")),
    *((torch.accelerator, name, lambda *_: 0) for name in ("memory_allocated", "max_memory_allocated")),
    (torch.cuda, "memory_stats", lambda *_: defaultdict(int)),
    (torch.cuda, "get_sync_debug_mode", lambda: 0),
    (torch.cuda, "initial_seed", torch.initial_seed),
    (torch.cuda, "cudart", Stream),
    (torch, "Generator", Generator),
    (torch.autograd.profiler, "emit_nvtx", lambda *_, **__: nullcontext()),
    (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
    (torch.cuda, "current_device", lambda: 0),
    (torch.cuda, "device_count", lambda: 1),
    (torch.cuda, "get_device_properties", lambda *_: Properties()),
    (torch.cuda, "memory_summary", lambda *_, **__: "a trace has no allocator's counters"),
    (torch.cuda, "memory_snapshot", lambda *_, **__: []),
    (torch.cuda.nvtx, "_nvtx", Stream()),
    *((torch.cuda, name, Stream) for name in ("Stream", "Event", "current_stream", "default_stream")),
    *((torch.cuda, name, lambda *_, **__: nullcontext()) for name in ("stream", "device")),
    (torch.accelerator, "is_available", lambda: True),
    (torch.accelerator, "device_count", lambda: 1),
    (torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda")),
    (torch.accelerator, "set_device_index", lambda *_: None),
    (torch.nn.DataParallel, "__init__", on_one_card),
    *((torch.cuda, name, lambda *_, **__: None) for name in WITHOUT_EFFECT.split()),
    *((torch.cuda.profiler, name, lambda *_, **__: None) for name in ("start", "stop")),
    *((torch.cuda.memory, name, lambda *_, **__: None) for name in RECORDERS),
    *((home, name, refusing_of(home, name, instead)) for home, name, instead in REFUSED),
    (Tensor, "record_stream", lambda *_: None),
    (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
    (torch.utils._foreach_utils, "_get_foreach_kernels_supported_devices", lambda: ["cuda", "meta"]),
)
"""What stands in for torch's own while a program is traced: module or class, name, value."""
