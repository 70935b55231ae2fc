"""A card that nobody has chosen: its streams, properties and memory counters, and the calls that a trace refuses.

A program may ask for ``torch.cuda.memory_allocated``, its peak, ``mem_get_info`` and the rest. The trace's births and
frees are played through the model of CUDA's caching allocator when a program asks, cuBLAS's workspaces among them, so
that the numbers mean what they mean on a card.
"""

import math
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from memkit.cards import CARDS
from memkit.fit import ASSUMED_CAPABILITY as CAPABILITY
from memkit.fit import CONTEXT_BYTES, workspace_bytes
from memkit.timeline import Event
from memkit.units import format_bytes
from stepscope.allocator.caching import CachingAllocator
from stepscope.allocator.replay import Player
from stepscope.tracing.patched import replaced
from stepscope.tracing.ranks import num_cards, on_one_card
from stepscope.tracing.refusals import LIBRARY_HOME, OWN_HOME, calling_frame, not_followed, refusing

IMPORTS = "<frozen importlib._bootstrap>"
CARD = torch.device("cuda", 0)


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


def answering(value: object) -> Callable:
    """A function that says this, whatever it is given."""
    return lambda *_, **__: value


def refusing_class(name: str, why: str) -> type:
    """In place of a class, which stays one: libraries write it in annotations that are read when they are imported."""
    refuse = refusing(f"torch.cuda.{name}", f"trace the step without it: {why}")
    return type(name, (), {"__init__": refuse})


class OfCard(type):
    """``torch.cuda.FloatTensor`` and its like, by which older programs make tensors of a card, and name them."""

    def __call__(cls, *args) -> Tensor:
        if args and not isinstance(args[0], int | torch.Size):
            return torch.as_tensor(args[0], dtype=cls.dtype).to("cuda")
        return torch.empty(*args or (0,), dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor) and value.is_cuda and value.dtype is cls.dtype


def typed(tensor: Tensor, *args, **kwargs) -> Tensor | str:
    """``tensor.type``, given such a kind."""
    kind = args[0] if args else kwargs.get("dtype")
    return (
        tensor.to("cuda", kind.dtype) if isinstance(kind, OfCard) else TYPE(tensor, *args, **kwargs)
    )


TYPE, KIND = Tensor.type, type(torch.cuda.FloatTensor)

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


HOMES = (
    torch.accelerator,
    torch.accelerator.memory,
    torch.cuda,
    torch.cuda.memory,
    torch.cuda.profiler,
    torch.cuda.random,
)

SAYS_NOTHING = (
    "_lazy_init ipc_collect set_device set_device_index set_sync_debug_mode synchronize start stop seed seed_all "
    "manual_seed manual_seed_all set_rng_state set_rng_state_all reset_accumulated_memory_stats "
    "_record_memory_history _dump_snapshot _snapshot set_per_process_memory_fraction"
)
"""Functions that change or read a real card, and no tensor."""

ANSWERS = dict.fromkeys(SAYS_NOTHING.split()) | {
    "current_device": 0,
    "current_device_index": 0,
    "get_sync_debug_mode": 0,
    "get_device_name": Properties.name,
    "get_device_properties": Properties(),
    "current_accelerator": torch.device("cuda"),
    "memory_snapshot": (),
    "stream": nullcontext(),
}
"""What functions of this name answer, whatever they are given; each is one of its own, as Dynamo tells them apart."""

BY_NAME = {
    **dict.fromkeys(("Stream", "Event", "current_stream", "default_stream", "cudart"), Stream),
    "device_count": num_cards,
    "initial_seed": torch.initial_seed,
    "get_rng_state": lambda *_: torch.get_rng_state(),
    "get_rng_state_all": lambda: [torch.get_rng_state() for _ in range(num_cards())],
    "default_generators": Generators(),
    "CUDAGraph": refusing_class("CUDAGraph", "a graph keeps what its capture has allocated"),
    "MemPool": refusing_class("MemPool", "all pools together take what one takes"),
    **{
        name: OfCard(name, (), {"dtype": kind.dtype})
        for name, kind in vars(torch.cuda).items()
        if isinstance(kind, KIND)
    },
}
"""What stands in for torch's own of this name, wherever in ``HOMES`` it is."""

STAND_INS = (
    *((home, name, answering(ANSWERS[name])) for home in HOMES for name in ANSWERS),
    *((home, name, value) for home in HOMES for name, value in BY_NAME.items()),
    (torch.cuda, "is_available", is_available),
    (torch.accelerator, "is_available", answering(True)),
    (torch.cuda.nvtx, "_nvtx", Stream()),
    (torch.cuda.amp.common, "amp_definitely_not_available", answering(False)),
    (torch.autograd.profiler, "emit_nvtx", answering(nullcontext())),
    (torch._C, "_get_accelerator", answering(torch.device("cuda"))),
    (torch, "Generator", Generator),
    (Tensor, "record_stream", answering(None)),
    (Tensor, "type", typed),
    (torch.nn.DataParallel, "__init__", on_one_card),
)
STAND_INS = tuple(row for row in STAND_INS if hasattr(*row[:2]))
"""What stands in for torch's own while a program is traced, beside the kit's: module or class, name, value."""


NAMED = CARDS["A100 SXM 80 GB"]
"""The card whose free bytes are told where nobody has chosen one."""

STATISTICS = {f"{name}_bytes": name for name in ("allocated", "reserved", "active", "requested")}
"""torch's names, and the allocator's."""


class Counters:
    """Follows a trace's log as far as it goes."""

    def __init__(self, tracer):
        self.tracer, self.log, self.position, self.warned = tracer, None, 0, False

    def allocator_now(self) -> CachingAllocator:
        """The allocator after everything that has happened so far, cuBLAS's workspaces among it."""
        log = self.tracer.log
        if log is not self.log or self.position > len(log.events):
            self.log, self.position = log, 0
            self.player = Player(CachingAllocator(), workspace_bytes(CAPABILITY))
        for event in log.events[self.position :]:
            block, sign = (event, 1) if event >= 0 else (~event, -1)
            born = log.births[block]
            self.player.play(Event(block, sign * log.sizes[block], None, born.phase, str(born.op)))
        self.position = len(log.events)
        return self.player.allocator

    def bytes_in_use(self) -> dict[str, int]:
        """The counters of bytes among ``memory_stats``; what is not modelled is 0."""
        allocator, found = self.allocator_now(), defaultdict(int)
        for theirs, ours in STATISTICS.items():
            found[f"{theirs}.all.current"] = allocator.current[ours]
            found[f"{theirs}.all.peak"] = allocator.peak[ours]
        return found

    def statistics(self, *_, **__) -> dict[str, int]:
        """``torch.cuda.memory_stats``, with what the allocator asked of its driver."""
        done = Counter(entry.action for entry in self.allocator_now().trace)
        return self.bytes_in_use() | {
            "num_ooms": done["oom"],
            "num_alloc_retries": 0,  # its card has no end
            "num_device_alloc": done["segment_alloc"] + done["segment_map"],
            "num_device_free": done["segment_free"] + done["segment_unmap"],
        }

    def statistic(self, name: str) -> Callable[..., int]:
        """A function that tells one of the numbers of bytes."""
        return lambda *_, **__: self.bytes_in_use()[name]

    def free_and_total(self, *_, **__) -> tuple[int, int]:
        """``torch.cuda.mem_get_info``, of a card that nobody has chosen."""
        if not self.warned:
            self.warned, frame = True, calling_frame()
            text = f"mem_get_info: told as on one {NAMED.name}, {format_bytes(NAMED.memory_bytes)}; no card is chosen"
            warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)
        used = CONTEXT_BYTES + self.allocator_now().current["reserved"]
        return max(NAMED.memory_bytes - used, 0), NAMED.memory_bytes


@contextmanager
def counted(tracer) -> Iterator[None]:
    """Inside, a program that asks for its memory is told it."""
    counters = Counters(tracer)
    answers = {
        "memory_stats": counters.statistics,
        "mem_get_info": counters.free_and_total,
        "empty_cache": lambda *_, **__: counters.allocator_now().empty_cache(),
    }
    for name, key in (
        ("memory_allocated", "allocated_bytes"),
        ("memory_reserved", "reserved_bytes"),
        ("memory_cached", "reserved_bytes"),
    ):
        answers[name] = counters.statistic(f"{key}.all.current")
        answers[f"max_{name}"] = counters.statistic(f"{key}.all.peak")
    for name in ("peak_memory_stats", "max_memory_allocated", "max_memory_cached"):
        answers[f"reset_{name}"] = lambda *_, **__: counters.allocator_now().reset_peak()
    with replaced(
        *((h, name, answers[name]) for h in HOMES for name in answers if hasattr(h, name))
    ):
        yield
