"""Memory snapshots, read and written: a recording as events (chapter 07, ``stepscope snapshot``), a trace as a
snapshot.

``torch.cuda.memory._snapshot()`` lists what happened (allocations, frees, segments of the driver, each with its size)
and what stands at the end. So nothing is modelled here. Played backwards from the end, the list leaves what stood
before it; played forwards it is the run; and the peaks are sums. Whoever asks what the same run would take under other
rules replays its events (``replay_trace``). That the book's allocator decides as a card does is held against
recordings, address by address, in ``tests/stepscope/allocator/test_real_cards.py``.

``predicted_snapshot`` is one of a run that has not happened: it writes what the model predicts in the same form, so
that https://pytorch.org/memory_viz and ``torch/cuda/_memory_viz.py`` open it, on a machine without a GPU.
"""

import gzip
import io
import json
import pickle
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path

from memkit.timeline import Event, Events, Instant, MemoryTimeline
from memkit.units import GIB, format_bytes, shown
from stepscope.allocator.caching import AllocatorConfig, Block
from stepscope.allocator.replay import Replay

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
    events. Snapshots of torch 2.0 and later are read.

    Raises: ValueError: no snapshot, no events (of that device), or actions that were left out, without which nobody
    can say what stood in memory. FileNotFoundError: there is no such file.

    >>> from memkit import TrainingSetup, models, trace_memory, training_build
    >>> from stepscope import read_snapshot, replay_trace
    >>> from stepscope.allocator import predicted_snapshot
    >>> trace = trace_memory(training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=64)))
    >>> run = read_snapshot(predicted_snapshot(replay_trace(trace)))
    >>> [event.num_bytes for event in run.timeline.events] == [event.num_bytes for event in trace.events]
    True
    """
    snapshot = source if isinstance(source, dict) else load_snapshot(source)
    try:
        return run_of(snapshot, device)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"not a snapshot as torch writes it: {type(error).__name__}: {error}"
        ) from None


def run_of(snapshot: dict, device: int | None) -> RecordedRun:
    """The run of one device; of a field that is missing or of another type, Python's own error."""
    traces = snapshot["device_traces"]
    busy = [index for index, trace in enumerate(traces) if trace]
    if not busy:
        raise ValueError("no events in it; torch.cuda.memory._record_memory_history() records them")
    if device is None:
        failed = [n for n in busy if any(record["action"] == "oom" for record in traces[n])]
        device = max(failed or busy, key=lambda index: len(traces[index]))
    elif device not in busy:
        raise ValueError(
            f"device={device!r} has no events; there are some of {', '.join(map(str, busy))}"
        )
    entries = list(entries_of(traces[device]))
    segments = [s for s in snapshot["segments"] if s.get("device", device) == device]
    blocks = [block for segment in segments for block in blocks_of(segment)]
    used = [block for block in blocks if block["state"] == "active_allocated"]
    standing = {whole(block, "address"): whole(block, "requested_size") for block in used}
    events = events_of(entries, standing)
    levels = list(accumulate((event.num_bytes for event in events), initial=0))
    end_bytes = sum(whole(segment, "total_size") for segment in segments)
    taken = (size * SEGMENT_SIGNS.get(action, 0) for action, _, size, _ in reversed(entries))
    reserved_peak = max(accumulate(taken, lambda later, came: later - came, initial=end_bytes))
    if max(levels) > reserved_peak or sum(whole(block, "size") for block in blocks) != end_bytes:
        raise ValueError(f"{max(levels)} B are asked for in segments of {reserved_peak} B: {LACKS}")
    num_before = sum(event.phase == "before" for event in events)
    totals = {"start": levels[num_before], "peak": max(levels), "end": levels[-1]}
    failures = ((size, line) for action, _, size, line in entries if action == "oom")
    asked = (f"{format_bytes(n)} asked by {line or 'a line not recorded'}" for n, line in failures)
    settings = snapshot.get("allocator_settings", {})
    return RecordedRun(
        timeline=MemoryTimeline(
            instants=tuple(Instant(name=name, total_bytes=total) for name, total in totals.items()),
            source="measured",
            events=events,
            reserved_peak_bytes=reserved_peak,
            provenance={"source": "memory snapshot"},
        ),
        config=AllocatorConfig(expandable_segments=settings.get("expandable_segments", False)),
        device=device,
        other_devices=tuple(index for index in busy if index != device),
        failed=next(asked, ""),
    )


def blocks_of(segment: dict) -> Iterable[dict]:
    """A segment's blocks with address and requested size, which torch 2.0 does not write: they follow one another.

    What was asked for stands first in a block's history there.
    """
    address = segment["address"]
    for block in segment["blocks"]:
        if "address" not in block:
            block = block | {"address": address}
        if "requested_size" not in block:
            first = (block.get("history") or [{}])[0]
            block = block | {"requested_size": first.get("real_size", block["size"])}
        address = block["address"] + whole(block, "size")
        yield block


def entries_of(trace: Iterable[dict]) -> Iterable[tuple[str, int, int, str]]:
    """Action, address, bytes and the program's own line of what happened; an ``oom`` has the address 0."""
    for record in trace:
        action = record["action"]
        if action in ("alloc", "free_requested", "oom", *SEGMENT_SIGNS):
            line = line_of(record.get("frames", ())) if action in ("alloc", "oom") else ""
            address = 0 if action == "oom" else whole(record, "addr")
            yield action, address, whole(record, "size"), line


def events_of(entries: list[tuple], standing: dict[int, int]) -> Events:
    """Births and frees of blocks, after the births of what stood before the recording (phase ``before``).

    ``standing`` has the bytes of each block that is there at the end, by address.

    Raises: ValueError: a block is born twice, freed twice, or is not at the end what it was.
    """
    for action, address, size, _ in reversed(entries):
        if action == "alloc":
            is_known = standing.pop(address, None) == size
        else:
            is_known = action != "free_requested" or address not in standing
        if not is_known:
            raise ValueError(f"{size} B at {address}: {LACKS}")
        if action == "free_requested":
            standing[address] = size
    events = [
        Event(n, standing[address], phase="before") for n, address in enumerate(sorted(standing))
    ]
    live = dict(zip(sorted(standing), events, strict=True))
    num_blocks = count(len(live))
    for action, address, size, line in entries:
        if action == "alloc":
            live[address] = Event(next(num_blocks), size, where=line)
            events.append(live[address])
        elif action == "free_requested":
            born = live.pop(address)
            events.append(Event(born.block, -born.num_bytes, where=born.where))
    return Events(events)


def whole(record: dict, key: str) -> int:
    """A size or an address. Raises: ValueError: it is none."""
    if type(record[key]) is not int or not 0 <= record[key] < 1 << 64:
        raise ValueError(f"{key}={shown(record[key])} is not a whole number from 0 to 2^64")
    return record[key]


PLUMBING = re.compile(
    r"/(torch|functorch|triton|einops|opt_einsum|jaxtyping|beartype|typeguard)/|/python3[.]\d+/[^/]+$"
)
"""Files that run for whoever calls them: torch, what rearranges or checks tensors, the standard library."""

RECORDER = "torch::unwind::", "torch::CapturedTraceback::", "??"
"""Functions of the recorder itself."""


IN_AUTOGRAD = "backward, in autograd's own thread"
"""The place of what autograd does for no line of the program."""


def line_of(frames: Iterable[dict]) -> str:
    """The innermost line of the program, as ``file.py:line function``; frames come innermost first.

    A stack without Python is named by its innermost function that is not the recorder's own; autograd's thread has
    such stacks.
    """
    names = []
    for frame in frames:
        file = frame["filename"].replace("\\", "/")
        if file.endswith(".py") and not PLUMBING.search(file):
            return f"{file.rsplit('/', 1)[-1]}:{whole(frame, 'line')} " + frame["name"]
        names.append(frame["name"])
    if any("torch::autograd::" in name for name in names):
        return IN_AUTOGRAD
    return next((name for name in names if not name.startswith(RECORDER)), "")


MAX_BYTES = 2 * GIB
"""The largest file that is read, unpacked."""


class PlainUnpickler(pickle.Unpickler):
    """Builds dicts, lists, texts and numbers; whatever a pickle names could run, and is refused."""

    def find_class(self, module, name):
        raise ValueError(
            f"it names {module}.{name}; a snapshot names nothing, and what is named can be run"
        )


def load_snapshot(path: str | Path) -> dict:
    """The plain data of a snapshot's file, packed by gzip or not; it often comes from somebody else.

    Raises: ValueError: the file is neither JSON nor a pickle of plain data, or is too large.
    """
    content = Path(path).read_bytes()
    try:
        if content[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(content)) as packed:
                content = packed.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it has more than {format_bytes(MAX_BYTES)}")
        is_json = content.lstrip()[:1] in (b"{", b"[")
        snapshot = json.loads(content) if is_json else PlainUnpickler(io.BytesIO(content)).load()
        if not isinstance(snapshot, dict) or "segments" not in snapshot:
            raise ValueError("it is no dict with 'segments'")
    except Exception as error:  # noqa: BLE001 - whatever the readers of a broken file raise
        raise ValueError(f"{Path(path).name} is not read as a snapshot: {error}") from None
    return snapshot


CATEGORIES = {
    "weights": "parameter",
    "gradients": "gradient",
    "optimizer_states": "optimizer_state",
    "activations": "activation",
    "temporary": "temporary",
}
"""Our parts in the words that the visualiser colours by."""

WORKSPACE = {"filename": "??", "line": 0, "name": "cuBLAS workspace"}


def predicted_snapshot(result: Replay) -> dict:
    """The snapshot that the replay of a trace would have left, with the traced lines as stack frames."""
    trace, frames_at, served = [], {}, set()
    events = result.timeline.events
    for index, (action, address, size) in enumerate(result.allocator.trace):
        cause = result.causes[index]
        event = events[cause]
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": index}
        frames, part = frames_of(event), event.part
        if action == "alloc" and cause in served:  # the event's second block
            frames, part = [WORKSPACE, *frames], "temporary"
        if action == "oom":
            entry["device_free"] = entry.pop("addr")
        elif action == "alloc":
            served.add(cause)
            frames_at[address] = frames
            entry["category"] = CATEGORIES.get(part, "unknown")
        elif action.startswith("free"):
            frames = frames_at[address]
        trace.append({**entry, "frames": frames})
    is_expandable = result.allocator.config.expandable_segments
    return {
        "segments": [_segment(run, frames_at) for run in result.allocator.segments()],
        "device_traces": [trace],
        "allocator_settings": {"max_split_size": -1, "expandable_segments": is_expandable},
        "external_annotations": [],
    }


def frames_of(event: Event) -> list[dict]:
    """Stack frames, innermost first: the operation, the model's line, the phase of the step."""
    frames = [{"filename": "??", "line": 0, "name": event.op}] if event.op else []
    for where in event.where.splitlines():
        match = re.fullmatch(r"(backward of )?(.+?):(\d+)\s*(.*)", where)
        side, file, line, name = match.groups() if match else ("", "??", 0, where)
        frames.append({"filename": file, "line": int(line), "name": (side or "") + name})
    return [*frames, {"filename": "??", "line": 0, "name": event.phase or "unknown phase"}]


def _segment(run: list[Block], frames_at: dict[int, list[dict]]) -> dict:
    head = run[0]
    return {
        "device": 0,
        "address": head.address,
        "total_size": sum(block.size for block in run),
        "allocated_size": sum(block.size for block in run if block.allocated),
        "active_size": sum(block.size for block in run if not block.is_free),
        "requested_size": sum(block.requested_bytes for block in run if not block.is_free),
        "stream": 0,
        "segment_type": "small" if head.pool.is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": head.span is not None,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested_bytes,
                "state": block.state,
                "frames": [] if block.is_free else frames_at[block.address],
            }
            for block in run
        ],
    }


def write_snapshot(snapshot: dict, path: str | Path) -> Path:
    """Write a snapshot as the pickle that pytorch.org/memory_viz reads.

    It has protocol 4: the public viewer refuses protocol 5, which is Python 3.14's default (pytorch/pytorch#183842).
    Whoever dumps a snapshot there writes it again with this function.
    """
    path = Path(path)
    path.write_bytes(pickle.dumps(snapshot, protocol=4))
    return path
