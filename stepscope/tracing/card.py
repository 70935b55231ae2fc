"""A card that nobody has chosen: its streams and properties, and the calls of ``torch.cuda`` that a trace refuses."""

import math
import sys
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from stepscope.tracing.ranks import num_cards, on_one_card
from stepscope.tracing.refusals import LIBRARY_HOME, OWN_HOME, not_followed, refusing

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
        raise not_followed(f"get_device_properties().{name}", "write the number of the card you mean")


ANSWERS = (
    (None, torch.cuda, "_lazy_init ipc_collect set_device set_rng_state set_sync_debug_mode synchronize"),
    (None, torch.cuda, "set_rng_state_all manual_seed manual_seed_all seed seed_all"),
    (None, torch.cuda.random, "set_rng_state set_rng_state_all manual_seed manual_seed_all seed seed_all"),
    (None, torch.cuda, "reset_accumulated_memory_stats set_per_process_memory_fraction"),
    # These change or read a real allocator, and no tensor.
    (None, torch.cuda.memory, "_record_memory_history _dump_snapshot _snapshot set_per_process_memory_fraction"),
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
    (torch.cuda, "CUDAGraph", "trace the step without it: a graph keeps what its capture has allocated"),
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
    *((torch.cuda, name, Stream) for name in ("Stream", "Event", "current_stream", "default_stream", "cudart")),
    (torch.accelerator, "current_stream", Stream),
    (torch.cuda.nvtx, "_nvtx", Stream()),
    (torch.cuda, "is_available", is_available),
    *((home, "get_rng_state", lambda *_: torch.get_rng_state()) for home in (torch.cuda, torch.cuda.random)),
    *((home, "get_rng_state_all", lambda: [torch.get_rng_state() for _ in range(num_cards())])
      for home in (torch.cuda, torch.cuda.random)),
    (torch.cuda, "default_generators", Generators()),
    (torch.cuda, "initial_seed", torch.initial_seed),
    *((home, "device_count", num_cards) for home in (torch.cuda, torch.accelerator)),
    (torch, "Generator", Generator),
    (torch.nn.DataParallel, "__init__", on_one_card),
)
"""What stands in for torch's own while a program is traced: module or class, name, value."""
