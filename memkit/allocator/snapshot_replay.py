"""Replay a recorded GPU run through the allocator's model, and check the model against the recording.

A snapshot holds the blocks at its end and the events that led there. ``memkit.allocator.snapshot_start``
finds the state at its start. From there the model plays the events forward and makes every decision itself:
which free block to take, when to ask the driver, and for how much. The recording then says whether it was
right.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from memkit.allocator.caching import CachingAllocator, OutOfMemory
from memkit.allocator.config import AllocatorConfig
from memkit.allocator.heap import Driver
from memkit.allocator.replays import Agreement, Failure, Replay
from memkit.allocator.snapshot_files import as_torch_layout, load_snapshot
from memkit.allocator.snapshot_start import FREED_BEFORE, build, settle_sizes, state_before
from memkit.allocator.trace_replay import replay_trace
from memkit.timeline import Event, Instant, MemoryTimeline

__all__ = ["load_snapshot", "replay_snapshot", "replay_trace"]

FROM_DRIVER = ("segment_alloc", "segment_map")
TO_DRIVER = ("segment_free", "segment_unmap")


def replay_snapshot(
    source: dict | str | Path | MemoryTimeline,
    config: AllocatorConfig | None = None,
    capacity_bytes: int | None = None,
    outside_bytes: int = 0,
) -> Replay:
    """Play a snapshot (or its file), or the events of a trace, through the allocator.

    ``config`` other than the recorded one, or a card of ``capacity_bytes``, asks *what if*: the same requests
    under other rules. Then ``agreement`` says how the decisions differ, not how good the model is.

    Raises: ValueError: the snapshot holds no events.

    >>> from memkit import TrainingSetup, models, replay_snapshot, replay_trace, trace_memory, training_build
    >>> from memkit.allocator import predicted_snapshot
    >>> predicted = replay_trace(trace_memory(training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=64))))
    >>> again = replay_snapshot(predicted_snapshot(predicted))
    >>> again.peak_reserved_bytes == predicted.peak_reserved_bytes
    True
    """
    if isinstance(source, MemoryTimeline):
        return replay_trace(source, config, capacity_bytes=capacity_bytes, outside_bytes=outside_bytes)
    snapshot = as_torch_layout(source) if isinstance(source, dict) else load_snapshot(source)
    recorded_config = AllocatorConfig.from_settings(snapshot.get("allocator_settings", {}))
    config = config or recorded_config
    entries, device = _entries(snapshot)
    events = [(e["action"], e.get("addr", 0), e.get("size", 0), e.get("stream", 0)) for e in entries]
    segments = [s for s in snapshot["segments"] if s.get("device", device) == device]
    runs = state_before(events, segments)
    num_ambiguous = settle_sizes(runs, events, recorded_config)
    allocator = CachingAllocator(config, _RecordedDriver(capacity_bytes, outside_bytes))
    build(allocator, runs)
    start = {block.address: block for run in runs for block in run.blocks if not block.is_pending}
    start_bytes = allocator.allocated_bytes
    player = _Player(allocator, events, [where_of(e.get("frames") or ()) for e in entries])
    player.play()
    is_as_recorded = config == recorded_config and capacity_bytes is None
    timeline = MemoryTimeline(
        instants=(
            Instant(name="start", total_bytes=start_bytes),
            Instant(name="peak", total_bytes=allocator.peak["allocated"]),
            Instant(name="end", total_bytes=allocator.allocated_bytes),
        ),
        source="measured" if is_as_recorded else "traced",
        events=_timeline_events(start, events, player.where),
        reserved_peak_bytes=allocator.peak["reserved"],
        provenance={"source": str(snapshot.get("source", "memory snapshot"))},
    )
    count = player.count
    agreement = Agreement(
        num_mallocs=count["mallocs"],
        num_mallocs_predicted=count["mallocs predicted"],
        num_mallocs_extra=count["mallocs extra"],
        num_frees=count["frees"],
        num_frees_predicted=count["frees predicted"],
        num_frees_extra=count["frees extra"],
        num_allocations=count["allocations"],
        num_same_address=count["same address"],
        first_other_address=player.first_other_address,
        num_ambiguous_blocks=num_ambiguous,
        recorded_reserved_peak_bytes=_recorded_reserved_peak(events, segments),
    )
    return Replay(
        timeline=timeline,
        config=config,
        allocator=allocator,
        allocated=tuple(player.allocated),
        reserved=tuple(player.reserved),
        failure=player.failure,
        agreement=agreement,
    )


def _entries(snapshot: dict) -> tuple[list[dict], int]:
    """The events of the device that has most of them."""
    traces = snapshot["device_traces"]
    if not any(traces):
        raise ValueError("no events in it; torch.cuda.memory._record_memory_history() records them")
    device = max(range(len(traces)), key=lambda index: len(traces[index]))
    return traces[device], device


def where_of(frames: Sequence[dict]) -> str:
    """The innermost line of the user's own code, as ``file.py:line function``; frames come innermost
    first."""
    for frame in frames:
        name = frame["filename"].replace("\\", "/")
        if name.endswith(".py") and "/torch/" not in name:
            return f"{name.rsplit('/', 1)[-1]}:{frame['line']} {frame['name']}"
    return frames[0]["name"] if frames else ""


def _timeline_events(start: dict, events: Sequence[tuple], where: Sequence[str]) -> tuple[Event, ...]:
    numbers = {address: number for number, address in enumerate(start)}
    out = [Event(numbers[a], block.requested_bytes, phase="before") for a, block in start.items()]
    live = {address: (numbers[address], block.requested_bytes, "") for address, block in start.items()}
    count = len(numbers)
    for (action, address, size, _), line in zip(events, where, strict=True):
        if action == "alloc":
            live[address] = (count, size, line)
            out.append(Event(count, size, where=line))
            count += 1
        elif action == "free_requested" and address in live:
            number, num_bytes, line = live.pop(address)
            out.append(Event(number, -num_bytes, where=line))
    return tuple(out)


def _recorded_reserved_peak(events: Sequence[tuple], segments: Sequence[dict]) -> int:
    """From the recording alone: the segments at the end, and back through every one that came or went."""
    reserved = peak = sum(segment["total_size"] for segment in segments)
    for action, _, size, _ in reversed(events):
        reserved += size * (action in TO_DRIVER) - size * (action in FROM_DRIVER)
        peak = max(peak, reserved)
    return peak


class _RecordedDriver(Driver):
    """A driver that answers with the recorded addresses as long as the model asks what the run asked."""

    def __init__(self, capacity_bytes: int | None, outside_bytes: int):
        super().__init__(capacity_bytes, outside_bytes)
        self.recorded: list[tuple[str, int, int, int]] = []
        self.next_address = 1 << 52  # addresses of the model's own making, above any that a card gives

    def malloc(self, num_bytes: int) -> int | None:
        if not self.take(num_bytes):
            return None
        for action, address, size, _ in self.recorded:
            if action == "segment_alloc" and size == num_bytes:
                return address
        return super().reserve(num_bytes)

    def reserve(self, num_bytes: int) -> int:
        for action, address, _, _ in self.recorded:
            if action == "segment_map":
                return address
        return super().reserve(num_bytes)


class _Player:
    """Plays recorded events forward through an allocator and keeps count."""

    def __init__(self, allocator: CachingAllocator, events: Sequence[tuple], where: Sequence[str]):
        self.allocator, self.events, self.where = allocator, events, where
        self.own_address = {b.address: b.address for b in allocator.blocks.values() if not b.is_free}
        self.allocated: list[int] = []
        self.reserved: list[int] = []
        self.count = Counter()
        self.first_other_address: int | None = None
        self.failure: Failure | None = None
        self.has_stopped = False

    def play(self) -> None:
        index, driver = 0, self.allocator.driver
        while index < len(self.events) and not self.has_stopped:
            action, address, size, stream = self.events[index]
            if action in TO_DRIVER:
                index = self._give_back(index)
                continue
            if action in FROM_DRIVER:
                driver.recorded.append(self.events[index])
            elif action == "alloc":
                self._allocate(index, address, size, stream)
                driver.recorded.clear()
            elif action == "free_requested":
                self._free(index, address)
            elif action == "free_completed":
                self.allocator.synchronize((FREED_BEFORE, self.own_address.pop(address, None)))
                self.allocator.process_events()
            elif action == "oom" and self.failure is None:  # the run may have caught it and gone on
                self._fail(index, size, "recorded")
            self._note(index + 1)
            index += 1

    def _fail(self, index: int, size: int, message: str) -> None:
        self.failure = Failure(event=index, requested_bytes=size, where=self.where[index], message=message)

    def _note(self, up_to: int) -> None:
        missing = up_to - len(self.allocated)
        self.allocated += [self.allocator.allocated_bytes] * missing
        self.reserved += [self.allocator.reserved_bytes] * missing

    def _allocate(self, index: int, address: int, size: int, stream: int) -> None:
        length = len(self.allocator.trace)
        try:
            own = self.allocator.malloc(size, stream)
        except OutOfMemory as error:
            self._fail(index, size, str(error))
            self.has_stopped = True
            return
        predicted = Counter((e[0], e[2]) for e in self.allocator.trace[length:] if e[0] in FROM_DRIVER)
        recorded = Counter((e[0], e[2]) for e in self.allocator.driver.recorded)
        self.count["mallocs"] += recorded.total()
        self.count["mallocs predicted"] += (predicted & recorded).total()
        self.count["mallocs extra"] += (predicted - recorded).total()
        self.count["allocations"] += 1
        self.count["same address"] += own == address
        if own != address and self.first_other_address is None:
            self.first_other_address = index
        self.own_address[address] = own

    def _free(self, index: int, address: int) -> None:
        own = self.own_address.get(address)
        if own is None:
            return
        following = self.events[index + 1] if index + 1 < len(self.events) else (None, None)
        if following[:2] != ("free_completed", address):  # another stream still uses it
            self.allocator.record_stream(own, (FREED_BEFORE, own))
        self.allocator.free(own)

    def _give_back(self, index: int) -> int:
        """A run of returns to the driver: all that ``empty_cache`` would return, or those blocks alone.

        A recording does not tell ``empty_cache`` from the retry of a refused request. The two differ where
        the retry waited for another stream: the request does not look at the blocks that this set free, the
        model does.
        """
        end = index
        while end < len(self.events) and self.events[end][0] in TO_DRIVER:
            end += 1
        recorded = Counter((e[0], e[2]) for e in self.events[index:end])
        heads = [run[0] for run in self.allocator.segments() if len(run) == 1]
        whole = {block.address: block for block in heads if block.is_free and block.span is None}
        predicted = Counter(("segment_free", block.size) for block in whole.values())
        named = [whole[e[1]] for e in self.events[index:end] if e[1] in whole]
        if len(named) == end - index < len(whole):  # garbage collection or oversize blocks: only some go back
            for block in named:
                self.allocator.release(block)
        else:
            length = len(self.allocator.trace)
            self.allocator.empty_cache()
            predicted = Counter((e[0], e[2]) for e in self.allocator.trace[length:] if e[0] in TO_DRIVER)
        self.count["frees"] += end - index
        self.count["frees predicted"] += (predicted & recorded).total()
        self.count["frees extra"] += (predicted - recorded).total()
        self._note(end)
        return end
