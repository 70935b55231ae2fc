"""One device's part of a snapshot, every field of it checked: what happened, and what stood at the end.

A snapshot comes from elsewhere: cut short, recorded without some of its actions, of another version, or broken. So
nothing is used before it is looked at, and what contradicts itself is refused with the name of its field. Snapshots
of torch 2.1 to 2.13 are read, and those of 2.0 whose blocks have no address.
"""

import dataclasses
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from memkit.allocator.config import SMALL_SEGMENT_BYTES, AllocatorConfig
from memkit.allocator.heap import Entry
from memkit.units import TIB, shown

MAX_CARD_BYTES = 2 * TIB
MAX_MAPPED_BYTES = 16 * TIB
"""Of a recording: more than any card has; and what all its expandable segments may have mapped in turn."""
MAX_ADDRESS = 1 << 52  # above it lie the addresses that a replay makes up
PAGE_BYTES = SMALL_SEGMENT_BYTES
FROM_DRIVER, TO_DRIVER = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
BLOCK_ACTIONS = ("alloc", "free_requested", "free_completed")
NOT_PLAYED = ("snapshot", "workspace_snapshot", "user_defined")
ACTIONS = (*BLOCK_ACTIONS, *FROM_DRIVER, *TO_DRIVER, "oom", *NOT_PLAYED)
PLUMBING = re.compile(
    r"/(torch|functorch|triton|einops|opt_einsum|jaxtyping|beartype|typeguard)/|/python3[.]\d+/[^/]+$"
)
"""Files that run for whoever calls them: torch, what rearranges or checks tensors, the standard library."""
UNWINDING = ("torch::unwind::", "torch::CapturedTraceback::", "??")
"""Functions of the recorder itself."""
STATES = ("active_allocated", "active_pending_free", "active_awaiting_free", "inactive")


@dataclass
class UsedBlock:
    """A block in use; ``size`` is 0 until it is known."""

    address: int
    requested_bytes: int
    size: int
    is_pending: bool = False  # freed already, but another stream still uses it


@dataclass
class Segment:
    """A segment, or a run of mapped pages, with the blocks in use in it."""

    address: int
    size: int
    stream: int
    is_small: bool
    is_expandable: bool
    span_start: int = 0  # lowest address that an expandable segment is known to have
    blocks: list[UsedBlock] = dataclasses.field(default_factory=list)

    def blocks_with_ends(self) -> list[tuple[UsedBlock, int]]:
        """Each block with the address where the next one, or the segment's end, lies."""
        ends = [*(block.address for block in self.blocks[1:]), self.address + self.size]
        return list(zip(self.blocks, ends, strict=False))


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """What a snapshot tells of one device. ``lines`` has the user's own line for each of ``entries``.

    ``other_devices`` are those that have events too; ``lacks`` are the actions that were not recorded, and that
    were filled in.
    """

    entries: tuple[Entry, ...]
    lines: tuple[str, ...]
    segments: tuple["Segment", ...]
    config: AllocatorConfig
    device: int
    other_devices: tuple[int, ...]
    lacks: tuple[str, ...]


def recorded_run(snapshot: dict, device: int | None = None) -> RecordedRun:
    """The run of ``device``; of the one that ran out of memory, where none is named, else of the busiest.

    Raises: ValueError: no events, a device without events, a field that is missing, of another type or out of its
    range, and a recording that contradicts itself because actions were left out of it.
    """
    traces = field(snapshot, "", "device_traces", list)
    traces = [checked(trace, f"device_traces[{index}]", list) for index, trace in enumerate(traces)]
    device = chosen_device(traces, device)
    played: list[tuple[Entry, str]] = []
    lines: dict[int, str] = {}
    for index, record in enumerate(traces[device]):
        place = f"device_traces[{device}][{index}]"
        entry = entry_of(record, place)
        if entry.action not in NOT_PLAYED:
            frames = record.get("frames") or ()
            if id(frames) not in lines:  # many events share one list
                lines[id(frames)] = line_of(frames, place)
            played.append((entry, lines[id(frames)]))
    segments = segments_of(snapshot, device)
    played, lacks = filled_in(played, segments)
    entries = tuple(entry for entry, _ in played)
    check_life(entries, segments)
    return RecordedRun(
        entries=entries,
        lines=tuple(line for _, line in played),
        segments=segments,
        config=AllocatorConfig.from_settings(field(snapshot, "", "allocator_settings", dict, {})),
        device=device,
        other_devices=tuple(index for index, trace in enumerate(traces) if trace and index != device),
        lacks=lacks,
    )


def chosen_device(traces: Sequence[list], device: int | None) -> int:
    """The device whose events are played.

    Raises: ValueError: it has none.
    """
    busy = [index for index, trace in enumerate(traces) if trace]
    if not busy:
        raise ValueError("no events in it; torch.cuda.memory._record_memory_history() records them")
    if device is not None:
        if device not in busy:
            raise ValueError(f"device={device!r} has no events; there are some of {', '.join(map(str, busy))}")
        return device
    ooms = [index for index in busy if any(isinstance(e, dict) and e.get("action") == "oom" for e in traces[index])]
    return max(ooms or busy, key=lambda index: len(traces[index]))


def checked(value: object, place: str, kind: type, low: int | None = None, high: int | None = None):
    """``value``, if it is of exactly this type and within its bounds.

    Raises: ValueError: naming ``place``.
    """
    if type(value) is not kind:
        raise ValueError(f"{place}={shown(value)} is a {type(value).__name__}, not a {kind.__name__}")
    if low is not None and not low <= value <= high:
        raise ValueError(f"{place}={shown(value)} is outside {low} to {high}")
    return value


_MISSING = object()


def field(record: dict, place: str, key: str, kind: type, default: object = _MISSING, low=None, high=None):
    """A field of a record; as ``checked``."""
    value = record.get(key, default)
    path = f"{place}.{key}" if place else key
    if value is _MISSING:
        raise ValueError(f"{path} is missing")
    return value if value is default else checked(value, path, kind, low, high)


def entry_of(record: object, place: str) -> Entry:
    """One event; an ``oom`` has no address, and what is not played need not have anything."""
    action = field(checked(record, place, dict), place, "action", str)
    if action not in ACTIONS:
        raise ValueError(f"{place}.action={action[:60]!r} is not one of {', '.join(ACTIONS)}")
    if action in NOT_PLAYED:
        return Entry(action, 0, 0, 0)
    address = 0 if action == "oom" else field(record, place, "addr", int, low=0, high=MAX_ADDRESS)
    least = 1 if action in (*FROM_DRIVER, *TO_DRIVER) else 0
    size = field(record, place, "size", int, low=least, high=MAX_CARD_BYTES)
    stream = field(record, place, "stream", int, 0, low=0, high=1 << 64)
    if action in ("segment_map", "segment_unmap") and (address % PAGE_BYTES or size % PAGE_BYTES):
        raise ValueError(f"{place}: {action} of {size} B at {address} is not of whole pages of {PAGE_BYTES} B")
    return Entry(action, address, size, stream)


def line_of(frames: object, place: str) -> str:
    """The innermost line of the program, as ``file.py:line function``; frames come innermost first.

    Lines of ``PLUMBING`` are passed over, for they run for whoever calls them. A stack without Python is named by
    its innermost function that is not the recorder's own; autograd's thread has such stacks.
    """
    if not isinstance(frames, (list, tuple)):
        raise ValueError(f"{place}.frames={shown(frames)} is no list")
    names = []
    for index, frame in enumerate(frames):
        spot = f"{place}.frames[{index}]"
        file = field(checked(frame, spot, dict), spot, "filename", str).replace("\\", "/")
        function = field(frame, spot, "name", str)
        if file.endswith(".py") and not PLUMBING.search(file):
            return f"{file.rsplit('/', 1)[-1]}:{field(frame, spot, 'line', int, low=0, high=1 << 31)} {function}"
        names.append(function)
    if any("torch::autograd::" in name for name in names):
        return "backward, in autograd's own thread"
    return next((name for name in names if not name.startswith(UNWINDING)), "")


def segments_of(snapshot: dict, device: int) -> tuple[Segment, ...]:
    """The segments of a device, no two of which overlap."""
    listed = field(snapshot, "", "segments", list)
    own = [(i, s) for i, s in enumerate(listed) if checked(s, f"segments[{i}]", dict).get("device", device) == device]
    segments, end = tuple(segment_of(segment, f"segments[{index}]") for index, segment in own), 0
    for segment in sorted(segments, key=lambda segment: segment.address):
        if segment.address < end:
            raise ValueError(f"segments: the one at {segment.address} begins before the end of the one before")
        end = segment.address + segment.size
    total = sum(segment.size for segment in segments)
    if total > MAX_CARD_BYTES:
        raise ValueError(f"segments have {total} B together; no card has more than {MAX_CARD_BYTES}")
    return segments


def segment_of(record: dict, place: str) -> Segment:
    """One segment, checked: its blocks, in use or free, fill it without gaps."""
    address = field(record, place, "address", int, low=0, high=MAX_ADDRESS)
    size = field(record, place, "total_size", int, low=1, high=MAX_CARD_BYTES)
    stream = field(record, place, "stream", int, 0, low=0, high=1 << 64)
    kind = field(record, place, "segment_type", str)
    if kind not in ("small", "large"):
        raise ValueError(f"{place}.segment_type={kind[:60]!r} is neither small nor large")
    is_expandable = field(record, place, "is_expandable", bool, False)
    if is_expandable and (address % PAGE_BYTES or size % PAGE_BYTES):
        raise ValueError(f"{place}: {size} B at {address} are not whole pages of {PAGE_BYTES} B")
    segment, position = Segment(address, size, stream, kind == "small", is_expandable), address
    for index, block in enumerate(field(record, place, "blocks", list)):
        spot = f"{place}.blocks[{index}]"
        start = field(checked(block, spot, dict), spot, "address", int, position)
        length = field(block, spot, "size", int, low=1, high=size)
        state = field(block, spot, "state", str)
        most = MAX_CARD_BYTES if state == "inactive" else length  # a free block keeps the size last asked for
        asked = field(block, spot, "requested_size", int, length, low=0, high=most)
        if start != position or state not in STATES:
            raise ValueError(f"{spot}: {state[:60]!r} at {start}, where one of {', '.join(STATES)} is at {position}")
        if state != "inactive":
            segment.blocks.append(UsedBlock(start, asked, length, state != "active_allocated"))
        position += length
    if position != address + size:
        raise ValueError(f"{place}.blocks have {position - address} B, total_size={size}")
    return segment


def filled_in(
    played: list[tuple[Entry, str]], segments: Sequence[Segment]
) -> tuple[list[tuple[Entry, str]], tuple[str, ...]]:
    """The entries with both halves of each free where one half was not recorded, and the name of that half."""
    count = Counter(entry.action for entry, _ in played)
    waits = any(block.is_pending for segment in segments for block in segment.blocks)
    halves = BLOCK_ACTIONS[1:]
    if count["free_requested"] and not count["free_completed"] and not waits:
        missing = "free_completed"
    elif count["free_completed"] and not count["free_requested"] and count["alloc"]:
        missing = "free_requested"
    else:
        return played, ()
    actions = {half: halves for half in halves}
    return [
        (entry._replace(action=action), line)
        for entry, line in played
        for action in actions.get(entry.action, (entry.action,))
    ], (missing,)


MISSING_BETWEEN = {
    ("alloc", "alloc"): ("free_completed", "the block is alloc"),
    ("free_requested", "alloc"): ("free_completed", "the block is free_requested"),
    ("free_requested", "free_requested"): ("alloc", "it is free_requested"),
    ("free_completed", "free_requested"): ("alloc", "it is free_completed"),
    ("free_completed", "free_completed"): ("alloc", "it was completed before"),
    ("alloc", "free_completed"): ("free_requested", "nobody asked for it"),
}
"""For two actions on one block that cannot follow each other: what is missing between them, and what is wrong."""


def check_life(entries: Sequence[Entry], segments: Sequence[Segment]) -> None:
    """Follow every block and segment from the first entry to the end that the snapshot shows.

    Raises: ValueError: a block is born twice or freed twice, or lies in no segment; a segment goes that was not
    there. Then entries are missing, and what stood in memory cannot be known.
    """
    blocks = {block.address: block for segment in segments for block in segment.blocks}
    state: dict[int, str] = {}
    sizes: dict[int, int] = {}
    mapped = 0
    for index, entry in enumerate(entries):
        action, address, size, _ = entry
        wrong = MISSING_BETWEEN.get((state.get(address), action))
        if wrong:
            refuse(index, entry, *wrong)
        if action in ("segment_map", "segment_unmap"):
            mapped += size
            if mapped > MAX_MAPPED_BYTES:
                refuse(index, entry, "", f"all mapped in turn exceeds {MAX_MAPPED_BYTES} B")
        if action == "alloc":
            sizes[address] = size
        if action in BLOCK_ACTIONS:
            state[address] = action
            if sizes.setdefault(address, size) != size:
                refuse(index, entry, "alloc", f"its size was {sizes[address]}")
    for address, last in state.items():
        block = blocks.get(address)
        if (block is not None) != (last != "free_completed"):
            presence = "not" if block is None else "still"
            words = f"the block at {address} is last said to be {last}, but at the end it is {presence} there"
            raise ValueError(f"{words}: {_ADVICE}")
        # a snapshot of torch 2.0 has no requested size
        if block is not None and block.requested_bytes not in (sizes[address], block.size):
            born, end = sizes[address], block.requested_bytes
            raise ValueError(f"the block at {address} is born with {born} B, ends with {end}: {_ADVICE}")
    check_places(entries, segments)


_ADVICE = "the recording lacks events, so what stood in memory cannot be known; record without skip_actions"


def refuse(index: int, entry: Entry, missing: str, words: str) -> None:
    """Raises: ValueError: naming the event and what is likely missing before it."""
    lacking = f", a {missing} before it is missing" if missing else ""
    what = f"event {index}, {entry.action} of {entry.size} B at {entry.address}"
    raise ValueError(f"{what}: {words}{lacking}; {_ADVICE}")


def check_places(entries: Sequence[Entry], segments: Sequence[Segment]) -> None:
    """Go backwards from the end: every block lies in memory that was there, and none comes twice.

    Raises: ValueError: it does not.
    """
    runs: list[tuple[int, int]] = []  # runs of addresses, sorted, none next to another
    for segment in segments:
        add_run(runs, segment.address, segment.address + segment.size)
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        start, end = entry.address, entry.address + entry.size
        place = bisect_right(runs, (start, MAX_ADDRESS * 2)) - 1
        is_inside = place >= 0 and end <= runs[place][1]
        if entry.action in TO_DRIVER:
            overlaps = place >= 0 and runs[place][1] > start
            if overlaps or (place + 1 < len(runs) and runs[place + 1][0] < end):
                refuse(index, entry, "", "it is there later, and nothing brought it back")
            add_run(runs, start, end)
        elif entry.action in FROM_DRIVER:
            if not is_inside:
                refuse(index, entry, "", "it is not there later, and nothing took it away")
            low, high = runs[place]
            runs[place : place + 1] = [run for run in ((low, start), (end, high)) if run[0] < run[1]]
        elif entry.action in BLOCK_ACTIONS and entry.size and not is_inside:
            refuse(index, entry, "", "it lies in no segment")


def add_run(runs: list[tuple[int, int]], start: int, end: int) -> None:
    """Put a run among those that it does not overlap, and join it with its neighbours."""
    place = bisect_right(runs, (start, end))
    last = place + (place < len(runs) and runs[place][0] == end)
    first = place - (place > 0 and runs[place - 1][1] == start)
    joined = runs[first:last]
    runs[first:last] = [(min([start, *(run[0] for run in joined)]), max([end, *(run[1] for run in joined)]))]
