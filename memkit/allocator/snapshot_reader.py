"""What a recorded memory snapshot says happened on a card, as events: chapter 07, ``memkit snapshot`` and ``compare``.

``torch.cuda.memory._snapshot()`` lists what happened (allocations, frees, segments of the driver, each with its size)
and what stands at the end. So nothing is modelled here. Played backwards from the end, the list leaves what stood
before it; played forwards it is the run; and the peaks are sums. Whoever asks what the same run would take under other
rules replays its events (``replay_trace``). That the book's allocator decides as a card does is held against
recordings, address by address, in ``tests/allocator/test_real_cards.py``.

The second half reads a file without trusting it: a snapshot often comes from somebody else.
"""

import gzip
import io
import json
import pickle
import re
import struct
import zlib
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from memkit.allocator.config import AllocatorConfig
from memkit.events import Event, Events
from memkit.timeline import Instant, MemoryTimeline
from memkit.units import GIB, MIB, format_bytes, shown

SEGMENT_SIGNS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
LACKS = "the recording lacks events, so what stood in memory cannot be known; record without skip_actions"


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """One device's part of a snapshot; ``other_devices`` have events too.

    ``failed`` says what was asked for, and by which line, where the run first ran out of memory. The instants of
    ``timeline`` count the bytes that were asked for, its ``reserved_peak_bytes`` what the segments had.
    """

    timeline: MemoryTimeline
    config: AllocatorConfig
    device: int
    other_devices: tuple[int, ...] = ()
    failed: str = ""


def read_snapshot(source: dict | str | Path, device: int | None = None) -> RecordedRun:
    """The recorded run in a snapshot or in its file (``.pickle``, ``.json``, ``.json.gz``), of which no code runs.

    Of several cards it is ``device``; where none is named, the one that ran out of memory, else the one with most
    events. Snapshots of torch 2.1 and later are read.

    Raises: ValueError: no snapshot, a field that is no snapshot's, no events (of that device), or actions that were
    left out, without which nobody can say what stood in memory. FileNotFoundError: there is no such file.

    >>> from memkit import TrainingSetup, models, read_snapshot, replay_trace, trace_memory, training_build
    >>> from memkit.allocator import predicted_snapshot
    >>> trace = trace_memory(training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=64)))
    >>> run = read_snapshot(predicted_snapshot(replay_trace(trace)))
    >>> [event.num_bytes for event in run.timeline.events] == [event.num_bytes for event in trace.events]
    True
    """
    snapshot = source if isinstance(source, dict) else load_snapshot(source)
    traces = field(snapshot, "device_traces", list)
    device = chosen_device(traces, device)
    entries = [entry_of(record, f"device_traces[{device}][{index}]") for index, record in enumerate(traces[device])]
    actions = {action for action, *_ in entries}
    # On one stream a free is complete when it is requested: where one half was not recorded, the other says as much.
    freed = "free_requested" if "free_requested" in actions else "free_completed"
    at_end, end_bytes = blocks_at_end(field(snapshot, "segments", list), device, freed)
    events = events_of(entries, at_end, freed)
    levels = list(accumulate((event.num_bytes for event in events), initial=0))
    segment_bytes = (size * SEGMENT_SIGNS.get(action, 0) for action, _, size, _ in reversed(entries))
    reserved_peak = max(accumulate(segment_bytes, lambda later, came: later - came, initial=end_bytes))
    if max(levels) > reserved_peak:
        raise ValueError(f"{max(levels)} B are asked for in segments of {reserved_peak} B: {LACKS}")
    num_before = sum(event.phase == "before" for event in events)
    totals = {"start": levels[num_before], "peak": max(levels), "end": levels[-1]}
    settings = field(snapshot, "allocator_settings", dict, default={})
    return RecordedRun(
        timeline=MemoryTimeline(
            instants=tuple(Instant(name=name, total_bytes=total) for name, total in totals.items()),
            source="measured",
            events=events,
            reserved_peak_bytes=reserved_peak,
            provenance={"source": "memory snapshot"},
        ),
        config=AllocatorConfig(expandable_segments=field(settings, "expandable_segments", bool, default=False)),
        device=device,
        other_devices=tuple(index for index, trace in enumerate(traces) if trace and index != device),
        failed=next((
            f"{format_bytes(size)} asked by {line or 'a line not recorded'}"
            for action, _, size, line in entries if action == "oom"
        ), ""),
    )


def events_of(entries: list[tuple], standing: dict[int, int], freed: str) -> Events:
    """Births and frees of blocks, after the births of what stood before the recording (phase ``before``).

    ``standing`` has the bytes of each block that is there at the end, by address; ``freed`` is the action that frees.

    Raises: ValueError: a block is born twice, freed twice, or is not at the end what it was.
    """
    for action, address, size, _ in reversed(entries):
        if action == "alloc" and standing.pop(address, None) != size:
            raise ValueError(f"{size} B allocated at {address} are gone later, and nothing freed them: {LACKS}")
        if action == freed:
            if address in standing:
                raise ValueError(f"{size} B freed at {address} are there later, and nothing made them: {LACKS}")
            standing[address] = size
    live = {
        address: Event(number, size, phase="before") for number, (address, size) in enumerate(sorted(standing.items()))
    }
    events, num_blocks = list(live.values()), len(live)
    for action, address, size, line in entries:
        if action == "alloc":
            live[address] = Event(num_blocks, size, where=line)
            events.append(live[address])
            num_blocks += 1
        elif action == freed:
            born = live.pop(address)
            events.append(Event(born.block, -born.num_bytes, where=born.where))
    return Events(events)


# ---------------------------------------------------------------- the fields of a snapshot, one after the other


def chosen_device(traces: list, device: int | None) -> int:
    """The device whose events are read.

    Raises: ValueError: it has none.
    """
    busy = [index for index, trace in enumerate(traces) if isinstance(trace, list) and trace]
    if not busy:
        raise ValueError("no events in it; torch.cuda.memory._record_memory_history() records them")
    if device is not None:
        if device not in busy:
            raise ValueError(f"device={device!r} has no events; there are some of {', '.join(map(str, busy))}")
        return device
    failed = [i for i in busy if any(isinstance(e, dict) and e.get("action") == "oom" for e in traces[i])]
    return max(failed or busy, key=lambda index: len(traces[index]))


def entry_of(record: object, place: str) -> tuple[str, int, int, str]:
    """Action, address, bytes and the program's own line of one entry.

    An ``oom`` has no address. What is of no block and no segment (a ``snapshot``, a user's mark) has no bytes either.
    """
    action = field(record, "action", str, place)
    if action not in ("alloc", "free_requested", "free_completed", "oom", *SEGMENT_SIGNS):
        return action, 0, 0, ""
    address = 0 if action == "oom" else field(record, "addr", int, place)
    line = line_of(field(record, "frames", list, place, default=[])) if action in ("alloc", "oom") else ""
    return action, address, field(record, "size", int, place), line


def blocks_at_end(segments: list, device: int, freed: str) -> tuple[dict[int, int], int]:
    """The bytes that each block in use asked for, by its address, and those of all segments of a device.

    A block that waits for another stream is in use, but its free was requested already.
    """
    asked, total = {}, 0
    for index, segment in enumerate(segments):
        if field(segment, "device", int, default=device) != device:
            continue
        place, filled = f"segments[{index}]", 0
        for block in field(segment, "blocks", list, place):
            filled += field(block, "size", int, place)
            state = field(block, "state", str, place)
            if state == "active_allocated" or (freed == "free_completed" and state != "inactive"):
                asked[field(block, "address", int, place)] = field(block, "requested_size", int, place)
        if filled != field(segment, "total_size", int, place):
            raise ValueError(f"{place} has blocks of {filled} B together, but total_size={segment['total_size']}")
        total += filled
    return asked, total


PLUMBING = re.compile(
    r"/(torch|functorch|triton|einops|opt_einsum|jaxtyping|beartype|typeguard)/|/python3[.]\d+/[^/]+$"
)
"""Files that run for whoever calls them: torch, what rearranges or checks tensors, the standard library."""
UNWINDING = ("torch::unwind::", "torch::CapturedTraceback::", "??")
"""Functions of the recorder itself."""


def line_of(frames: list) -> str:
    """The innermost line of the program, as ``file.py:line function``; frames come innermost first.

    A stack without Python is named by its innermost function that is not the recorder's own; autograd's thread has
    such stacks.
    """
    names = []
    for frame in frames:
        file = field(frame, "filename", str, "frames").replace("\\", "/")
        function = field(frame, "name", str, "frames")
        if file.endswith(".py") and not PLUMBING.search(file):
            return f"{file.rsplit('/', 1)[-1]}:{field(frame, 'line', int, 'frames')} {function}"
        names.append(function)
    if any("torch::autograd::" in name for name in names):
        return "backward, in autograd's own thread"
    return next((name for name in names if not name.startswith(UNWINDING)), "")


def field(record: object, key: str, kind: type, place: str = "the snapshot", default: object = None):
    """``record[key]``, if it is of this type; a whole number is neither below 0 nor absurdly large.

    Raises: ValueError: naming the place and the key.
    """
    if not isinstance(record, dict):
        raise ValueError(f"{place} has {shown(record)} where a dict with {key!r} belongs")
    value = record.get(key, default)
    if type(value) is not kind or (kind is int and not 0 <= value < 1 << 64):
        expected = "a whole number from 0 to 2^64" if kind is int else f"a {kind.__name__}"
        raise ValueError(f"{place}: {key}={shown(value)} is not {expected}")
    return value


# ---------------------------------------------------------------- a file that nobody trusts

MAX_BYTES = 2 * GIB
"""The largest file that is read, unpacked."""
MAX_RATIO = 200
"""How many times larger than its file a packed snapshot may be (and ``MIB`` more); real ones reach 54."""
BROKEN = (
    ValueError, LookupError, TypeError, AttributeError, EOFError, OSError, OverflowError, MemoryError, RecursionError,
    pickle.UnpicklingError, struct.error, zlib.error,
)
"""What the readers of a broken file raise."""


def load_snapshot(path: str | Path) -> dict:
    """The plain data of a snapshot's file.

    Raises: ValueError: the file is neither JSON nor a pickle of plain containers, or is too large.
    """
    path = Path(path)
    size = path.stat().st_size
    if not 0 < size <= MAX_BYTES:
        raise ValueError(f"{path.name} has {size} B; 1 to {MAX_BYTES} are read as a snapshot")
    try:
        snapshot = plain_data(path.read_bytes())
        field(snapshot, "segments", list)
    except BROKEN as error:
        raise ValueError(f"{path.name} is not read as a snapshot: {error}") from None
    return snapshot


def plain_data(content: bytes) -> object:
    """What a JSON text or a pickle says, packed by gzip or not, if it says nothing but plain data."""
    if content[:2] == b"\x1f\x8b":
        most = min(MAX_BYTES, MAX_RATIO * len(content) + MIB)
        with gzip.open(io.BytesIO(content)) as packed:
            content = packed.read(most + 1)
        if len(content) > most:
            raise ValueError(f"unpacked it has more than {format_bytes(most)}")
    if content.lstrip()[:1] in (b"{", b"["):
        return json.loads(content)
    return PlainUnpickler(io.BytesIO(content)).load()


def _refuse(unpickler: pickle._Unpickler) -> None:
    """In place of what an opcode would do."""
    raise ValueError("it has an opcode that no snapshot needs")


def _listed(num_items: int):
    """In place of the opcode that makes a tuple of the last items: a list of them."""

    def load(unpickler: pickle._Unpickler) -> None:
        unpickler.stack[-num_items:] = [unpickler.stack[-num_items:]]

    return load


class PlainUnpickler(pickle._Unpickler):
    """Reads dicts, lists, tuples (as lists), texts and numbers, and knows no opcode for anything else.

    A pickle is a program: one from a stranger can run any code, or ask for any amount of memory. So this is the
    unpickler that is written in Python, with most of its table gone; the one in C makes room for what a file
    announces before it looks whether that comes. A tuple becomes a list because a list is no key: the time to hash a
    tuple of tuples doubles with each level.
    """

    dispatch = dict.fromkeys(range(256), _refuse) | {
        op: pickle._Unpickler.dispatch[op] for op in (
            pickle.PROTO + pickle.FRAME + pickle.STOP + pickle.MARK + pickle.NONE + pickle.NEWTRUE + pickle.NEWFALSE
            + pickle.INT + pickle.BININT + pickle.BININT1 + pickle.BININT2 + pickle.LONG + pickle.LONG1 + pickle.FLOAT
            + pickle.BINFLOAT + pickle.UNICODE + pickle.BINUNICODE + pickle.SHORT_BINUNICODE + pickle.EMPTY_LIST
            + pickle.LIST + pickle.APPEND + pickle.APPENDS + pickle.EMPTY_DICT + pickle.DICT + pickle.SETITEM
            + pickle.SETITEMS + pickle.PUT + pickle.BINPUT + pickle.LONG_BINPUT + pickle.MEMOIZE + pickle.GET
            + pickle.BINGET + pickle.LONG_BINGET
            + pickle.GLOBAL + pickle.STACK_GLOBAL + pickle.INST  # these get as far as ``find_class``
        )
    } | {
        pickle.EMPTY_TUPLE[0]: pickle._Unpickler.dispatch[pickle.EMPTY_LIST[0]],
        pickle.TUPLE[0]: pickle._Unpickler.dispatch[pickle.LIST[0]],
        pickle.TUPLE1[0]: _listed(1), pickle.TUPLE2[0]: _listed(2), pickle.TUPLE3[0]: _listed(3),
    }

    def find_class(self, module, name):
        raise ValueError(f"it names {module}.{name}; a snapshot names nothing, and what is named can be run")
