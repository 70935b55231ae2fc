"""The book's third column: the memory of a training step as the machine's own allocator saw it.

On a CPU the torch profiler notes each allocation with its address and the operation it was made in; on a GPU
CUDA's caching allocator keeps the same record. Nothing else is active: no dispatch mode, so the program
allocates as it always does. Between phases the recorder leaves a mark in that record, with the addresses of
weights, gradients and optimizer states at that moment; the parts come from the addresses, by the rules of
``memkit.program.log``.

``saved_tensors`` measures one thing alone, for any code: what autograd keeps between forward and backward. Autograd
calls a hook for every tensor that an operation saves. Several saved tensors may be views of one storage, and it is
storages that take memory: each counts once.
"""

import datetime
import functools
import os
import platform
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
from torch import Tensor

from memkit.program.hooks import OutsideBuild, run_steps, tensors_in, torch_as_before
from memkit.program.log import Log, timeline_of
from memkit.setup import DEVICES
from memkit.timeline import MAX_STEPS, MemoryTimeline
from memkit.units import as_one_of, as_whole_number

MARK = "memkit mark"
NUM_MARK_SIZES, MAX_MARK_BYTES = 4, 8192
"""On a GPU a mark is this many allocations, each freed at once, of sizes drawn anew for each measurement."""

NUMBER = "python number"


def measure_memory(
    build: Callable[[], Callable[[], object]], *, steps: int = 2, device: str | None = None
) -> MemoryTimeline:
    """The memory of ``steps`` real training steps, from CUDA's allocator or, on a CPU, the torch profiler.

    ``device`` left at None is ``"cuda"`` where there is one. ``build`` and the step are called as
    ``trace_memory`` calls them; scratch that one operation takes and returns is marked ``is_scratch``. A program that
    uses ``torch.func`` is measured too high on a CPU: the profiler keeps each tensor inside a transform until it ends.

    Raises: ValueError: an unknown device, no GPU for ``device="cuda"``, steps that are no positive number, no
    function as ``build``, a model made outside it, or, on a CPU, another profiler at work.

    >>> from memkit import TrainingSetup, measure_memory, models, training_build
    >>> setup = TrainingSetup(model=models.TINY_GPT2, seq_len=32, device="cpu")
    >>> timeline = measure_memory(training_build(setup), device="cpu")
    >>> timeline.source, timeline.at("optimizer").weights
    ('measured', 65149952)
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    as_one_of("device", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device='cuda', but torch sees no CUDA device; device='cpu' measures on this machine"
        )
    steps = as_whole_number("steps", steps, 1, MAX_STEPS)
    recorder = MachineRecorder(device)
    with (
        torch_as_before(),
        cpu_record() if device == "cpu" else cuda_record(recorder.mark_sizes) as record,
    ):
        run_steps(build, steps, recorder)
        machine = provenance(device)
    log, known = replayed(record.entries, recorder.marks), machine | record.notes
    reserved = record.reserved_peak_bytes
    return timeline_of(log, "measured", device, known, reserved_peak_bytes=reserved)


def provenance(device: str) -> dict[str, str]:
    """Which machine and versions a measurement was made with, and when."""
    machine = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    return {
        "machine": machine,
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "threads": str(torch.get_num_threads()),
    }


class MachineRecorder:
    """Leaves a mark in the machine's own record at each call of ``now``, and remembers what it saw since the last."""

    is_empty = False  # what was allocated is read when the program has ended

    def __init__(self, device: str):
        self.device = device
        # at each mark what was seen since the last, then the change: a method of ``Log`` by name, and its arguments
        self.marks: list[tuple[list, str, tuple]] = []
        # a set of ``Log`` by name, and where the storages of its tensors begin
        self.seen: list[tuple[str, set[int]]] = []
        self.mark_sizes = tuple(
            1 + secrets.randbelow(MAX_MARK_BYTES) for _ in range(NUM_MARK_SIZES)
        )

    def saw(self, part: str, tensors: list[Tensor]) -> None:
        addresses = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(tensors)}
        self.seen.append((part, addresses - {0}))

    def now(self, change: str, *args: object) -> None:
        self.marks.append((self.seen, change, args))
        self.seen = []
        if self.device == "cuda":
            for size in self.mark_sizes:
                torch.empty(size, dtype=torch.uint8, device="cuda")
        else:
            with torch.profiler.record_function(MARK):
                pass


@dataclass(slots=True)
class RecordLine:
    """One line of a machine's record: a mark (no address), or bytes taken (> 0) or given back (< 0)."""

    address: int | None = None
    num_bytes: int = 0
    op: str = ""
    is_scratch: bool = False
    casts: int | None = None  # address of the tensor that this block is a copy of, in another dtype


@dataclass(slots=True)
class Record:
    """What a machine noted, in order."""

    entries: list[RecordLine] = field(default_factory=list)
    reserved_peak_bytes: int | None = None
    notes: dict[str, str] = field(default_factory=dict)


def replayed(entries: list[RecordLine], marks: list[tuple[list, str, tuple]]) -> Log:
    """The log of a record: the marks' changes are made at the moment they were made in."""
    log, blocks, marks = Log(), {}, iter(marks)
    for entry in entries:
        if entry.address is None:
            seen, change, arguments = next(marks)
            for part, addresses in seen:
                if part == "trained" and not addresses <= blocks.keys():
                    raise OutsideBuild
                getattr(log, part).update(blocks[each] for each in addresses & blocks.keys())
            getattr(log, change)(*arguments)
        elif entry.num_bytes > 0:
            block = blocks[entry.address] = log.allocate(entry.num_bytes, entry.op)
            if entry.is_scratch:
                log.scratch.add(block)
            if blocks.get(entry.casts) in log.weights:
                log.weight_casts.add(block)
        elif entry.address in blocks:  # else it was taken before the record began
            log.free(blocks.pop(entry.address))
    return log


@contextmanager
def cpu_record() -> Iterator[Record]:
    """Let the torch profiler note each allocation of the block inside."""
    record = Record()
    if torch.autograd._profiler_enabled():
        raise ValueError(
            "measure_memory uses torch's profiler, and there is one at a time: measure nothing inside build "
            "and step, nor under a profiler"
        )
    # Kineto reports on stderr
    quiet = {} if "KINETO_LOG_LEVEL" in os.environ else {"KINETO_LOG_LEVEL": "99"}
    what = {"profile_memory": True, "record_shapes": True}
    what["activities"] = [torch.profiler.ProfilerActivity.CPU]
    with patch.dict(os.environ, quiet), torch.profiler.profile(**what) as profiler:
        yield record
    roots = profiler.profiler.kineto_results.experimental_event_tree()
    timed = [item for root in roots for item in read_events(root)]
    record.entries = [entry for _, entry in sorted(timed, key=lambda item: item[0])]


def read_events(root) -> Iterator[tuple[int, RecordLine]]:
    """(Time, entry) of an event of the profiler's tree and of all events inside it."""
    waiting, births = [(root, ())], {}
    while waiting:
        event, callers = waiting.pop()
        fields = event.extra_fields
        if event.name == MARK:
            yield event.start_time_ns, RecordLine()
        elif isinstance(fields, torch._C._profiler._ExtraFields_Allocation):
            operation, size = operation_of(callers), fields.alloc_size
            # as a dispatch mode names it; 8 bytes outside any are a Python number on its way in
            name = operation.name.replace("::", ".") if operation else NUMBER * (abs(size) == 8)
            entry = RecordLine(fields.ptr, size, name)
            if entry.num_bytes > 0:
                births[entry.address] = entry, operation
                if name == "aten._to_copy":
                    first = operation.extra_fields.inputs[0]
                    entry.casts = getattr(first, "storage_data_ptr", None)
            elif entry.address in births:
                birth, maker = births.pop(entry.address)
                birth.is_scratch = maker is not None and maker is operation
            yield event.start_time_ns, entry
        else:
            waiting.extend((child, (*callers, event)) for child in reversed(event.children))


def operation_of(callers: tuple):
    """The outermost operation with a kernel of its own: the one that a dispatch mode would see."""
    own = (each for each in callers if each.name.startswith("aten::"))
    return next((each for each in own if not is_composite(each.name)), None)


@functools.cache
def is_composite(name: str) -> bool:
    """Whether the operation has no kernel of its own: others, which it is made of, are dispatched."""
    schemas = torch._C._jit_get_schemas_for_operator(name)
    overloads = {s.overload_name for s in schemas if "out" not in s.overload_name}
    names = {f"{name}.{overload}".rstrip(".") for overload in overloads}
    names = {overload for overload in names if torch._C._dispatch_has_kernel(overload)}
    composites = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    return bool(names) and names <= set(composites)


@contextmanager
def cuda_record(mark_sizes: tuple[int, ...]) -> Iterator[Record]:
    """Let CUDA's caching allocator note each allocation of the block inside."""
    record = Record()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(max_entries=10**7, context=None)
    try:
        yield record
        torch.cuda.synchronize()
        lines = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    record.entries = cuda_entries(lines, mark_sizes)
    record.reserved_peak_bytes = torch.cuda.max_memory_reserved()
    record.notes = {"max_memory_allocated": str(torch.cuda.max_memory_allocated())}


def cuda_entries(lines: list[dict], mark_sizes: tuple[int, ...]) -> list[RecordLine]:
    """The entries of one device's trace in a snapshot; a mark is blocks of these sizes, each freed at once."""
    signs = {"alloc": 1, "free_requested": -1}
    entries = [
        RecordLine(line["addr"], signs[line["action"]] * line["size"])
        for line in lines
        if line["action"] in signs
    ]
    mark = [sign * size for size in mark_sizes for sign in (1, -1)]
    merged, position = [], 0
    while position < len(entries):
        is_mark = [entry.num_bytes for entry in entries[position : position + len(mark)]] == mark
        merged.append(RecordLine() if is_mark else entries[position])
        position += len(mark) if is_mark else 1
    return merged


def saved_tensors(run: Callable[[], object], elsewhere: Iterable[Tensor] = ()) -> list[Tensor]:
    """What autograd saves while ``run()`` runs: of each storage the first tensor, but for those counted ``elsewhere``.

    ``elsewhere``: parameters and other tensors that would be there anyway. Source:
    https://docs.pytorch.org/docs/stable/notes/autograd.html#saved-tensors

    >>> import torch
    >>> x = torch.ones(8, requires_grad=True)
    >>> [saved.shape for saved in saved_tensors(lambda: x.exp() * 2)]
    [torch.Size([8])]
    """
    seen = {tensor.untyped_storage()._cdata for tensor in elsewhere}
    saved = []  # held to the end: an address may be given to another tensor once its storage is gone

    def note(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage()._cdata
        if address not in seen:
            seen.add(address)
            saved.append(tensor.detach())
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run()
    return saved


def saved_bytes(run: Callable[[], object], elsewhere: Iterable[Tensor] = ()) -> int:
    """Bytes that autograd saves while ``run()`` runs, without what is counted ``elsewhere``.

    >>> import torch
    >>> x = torch.ones(1024, requires_grad=True)
    >>> saved_bytes(lambda: x.exp())  # its result: 4 B each
    4096
    """
    return sum(tensor.untyped_storage().nbytes() for tensor in saved_tensors(run, elsewhere))
