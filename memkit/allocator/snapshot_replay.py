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
from memkit.allocator.heap import Block, Driver, Entry
from memkit.allocator.recorded import FROM_DRIVER, TO_DRIVER, RecordedRun, field, recorded_run
from memkit.allocator.replays import Agreement, Player, Replay
from memkit.allocator.snapshot_files import as_torch_layout, load_snapshot
from memkit.allocator.snapshot_start import FREED_BEFORE, build, settle_sizes, state_before
from memkit.allocator.trace_replay import replay_trace
from memkit.events import Event, Events
from memkit.timeline import Instant, MemoryTimeline


def replay_snapshot(
    source: dict | str | Path | MemoryTimeline,
    config: AllocatorConfig | None = None,
    capacity_bytes: int | None = None,
    device: int | None = None,
) -> Replay:
    """Play a snapshot (or its file), or the events of a trace, through the allocator.

    A snapshot of several cards is of ``device``; where none is named, of the one that ran out of memory, else of
    the one with most events; the result names the others. ``config`` other than the recorded one, or a card of
    ``capacity_bytes``, asks *what if*: the same requests under other rules. Then ``agreement`` says how the
    decisions differ, not how good the model is.

    Raises: ValueError: the snapshot holds no events (of that device), a field of it is wrong, or actions are
    missing without which nobody can say what stood in memory.

    >>> from memkit import TrainingSetup, models, replay_snapshot, replay_trace, trace_memory, training_build
    >>> from memkit.allocator import predicted_snapshot
    >>> predicted = replay_trace(trace_memory(training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=64))))
    >>> again = replay_snapshot(predicted_snapshot(predicted))
    >>> again.peak_reserved_bytes == predicted.peak_reserved_bytes
    True
    """
    if isinstance(source, MemoryTimeline):
        return replay_trace(source, config, capacity_bytes=capacity_bytes)
    snapshot = as_torch_layout(source) if isinstance(source, dict) else load_snapshot(source)
    run = recorded_run(snapshot, device)
    is_as_recorded = config in (None, run.config) and capacity_bytes is None
    driver = _RecordedDriver(capacity_bytes)
    allocator = CachingAllocator(run.config if config is None else config, driver)
    replaying = Replaying(allocator, run)
    start_bytes = allocator.allocated_bytes
    replaying.play()
    instants = {"start": start_bytes, "peak": allocator.peak["allocated"], "end": allocator.allocated_bytes}
    timeline = MemoryTimeline(
        instants=tuple(Instant(name=name, total_bytes=total) for name, total in instants.items()),
        source="measured" if is_as_recorded else "traced",
        events=Events([*replaying.before, *filter(None, replaying.events)]),
        reserved_peak_bytes=allocator.peak["reserved"],
        provenance={"source": field(snapshot, "", "source", str, "memory snapshot")},
    )
    return replaying.player.replay(
        timeline, agreement=replaying.agreement(), device=run.device, other_devices=run.other_devices, lacks=run.lacks
    )


class _RecordedDriver(Driver):
    """A driver that answers with the recorded addresses as long as the model asks what the run asked.

    ``blocks`` are those of the allocator: an address is not given twice, even where model and run part.
    """

    def __init__(self, capacity_bytes: int | None):
        super().__init__(capacity_bytes)
        self.recorded: list[Entry] = []
        self.blocks: dict[int, Block] = {}
        self.next_address = 1 << 52  # addresses of the model's own making, above any that a card gives

    def malloc(self, num_bytes: int) -> int | None:
        if not self.take(num_bytes):
            return None
        for entry in self.recorded:
            if entry.action == "segment_alloc" and entry.size == num_bytes and self._is_free(entry.address, num_bytes):
                return entry.address
        return super().reserve(num_bytes)

    def reserve(self, num_bytes: int, needed_bytes: int = 0) -> int:
        for entry in self.recorded:
            if entry.action == "segment_map" and self._is_free(entry.address, needed_bytes):
                return entry.address
        return super().reserve(num_bytes)

    def _is_free(self, address: int, num_bytes: int) -> bool:
        """Whether nobody has these addresses but the unmapped end of a segment, which may be shorter than it seems."""
        return address not in self.blocks and not any(
            block.address < address + num_bytes and address < block.address + block.size
            for block in self.blocks.values()
            if block.mapped or block.next is not None or block.address > address
        )


class Replaying:
    """A recorded run on its way through an allocator that starts where the run started, decision by decision.

    ``before`` are the births of what stood at the start, ``events`` the births and frees among the entries.
    """

    def __init__(self, allocator: CachingAllocator, run: RecordedRun):
        self.allocator, self.run = allocator, run
        runs = state_before(run.entries, run.segments)
        self.num_ambiguous = settle_sizes(runs, run.entries, run.config)
        build(allocator, runs)
        allocator.driver.blocks = allocator.blocks
        self.player = Player(allocator)
        start = [block for run in runs for block in run.blocks if not block.is_pending]
        self.before = [Event(i, block.requested_bytes, phase="before") for i, block in enumerate(start)]
        self.block_at = {block.address: event for block, event in zip(start, self.before, strict=True)}
        self.player.live = {event.block: (address, event) for address, event in self.block_at.items()}
        self.events = self._events()
        self.waiting = {block.address: block.address for run in runs for block in run.blocks if block.is_pending}
        self.count = Counter()
        self.first_other_address: int | None = None

    def _events(self) -> list[Event | None]:
        """One event for each entry that is the birth or the free of a block."""
        live, out, count = dict(self.block_at), [], len(self.before)
        for entry, line in zip(self.run.entries, self.run.lines, strict=True):
            event = None
            if entry.action == "alloc":
                event = live[entry.address] = Event(count, entry.size, where=line)
                count += 1
            elif entry.action == "free_requested" and entry.address in live:
                born = live.pop(entry.address)
                event = Event(born.block, -born.num_bytes, where=born.where)
            out.append(event)
        return out

    def play(self) -> None:
        """Every entry, up to a request that the model cannot serve."""
        entries, player, index = self.run.entries, self.player, 0
        has_stopped = False
        while index < len(entries) and not has_stopped:
            entry, event = entries[index], self.events[index]
            if entry.action in TO_DRIVER:
                index = self._give_back(index)
                continue
            if entry.action in FROM_DRIVER:
                self.allocator.driver.recorded.append(entry)
            elif entry.action == "alloc" and entry.size:
                has_stopped = not self._allocate(index, entry, event)
                self.allocator.driver.recorded.clear()
            elif entry.action == "free_requested":
                self._free(index, entry, event)
            elif entry.action == "free_completed":
                self.allocator.synchronize((FREED_BEFORE, self.waiting.pop(entry.address, None)))
                self.allocator.process_events()
            elif entry.action == "oom" and player.failure is None:  # the run may have caught it and gone on
                player.fail(entry.size, self.run.lines[index], "recorded")
            player.note(index + 1 - len(player.allocated))
            index += 1

    def _allocate(self, index: int, entry: Entry, event: Event) -> bool:
        """Play one allocation, compare it with the recorded one, and say whether the model had room for it."""
        length = len(self.allocator.trace)
        try:
            own = self.player.hold(event, entry.stream)
        except OutOfMemory as error:
            self.player.fail(entry.size, event.where, str(error))
            return False
        if len(self.allocator.trace) > length + 1 or self.allocator.driver.recorded:  # either asked the driver
            predicted = _from_and_to(self.allocator.trace[length:], FROM_DRIVER)
            self._compare("mallocs", predicted, _from_and_to(self.allocator.driver.recorded, FROM_DRIVER))
        self.count["allocations"] += 1
        self.count["same_address"] += own == entry.address
        if own != entry.address and self.first_other_address is None:
            self.first_other_address = index
        return True

    def _compare(self, what: str, predicted: Counter, recorded: Counter) -> None:
        self.count[what] += recorded.total()
        self.count[f"{what}_predicted"] += (predicted & recorded).total()
        self.count[f"{what}_extra"] += (predicted - recorded).total()

    def _free(self, index: int, entry: Entry, event: Event | None) -> None:
        if event is None or event.block not in self.player.live:
            return
        own = self.player.live[event.block][0]
        following = self.run.entries[index + 1] if index + 1 < len(self.run.entries) else None
        if following is None or following[:2] != ("free_completed", entry.address):  # another stream still uses it
            self.allocator.record_stream(own, (FREED_BEFORE, own))
            self.waiting[entry.address] = own
        self.player.let_go(event)

    def _give_back(self, index: int) -> int:
        """A run of returns to the driver: all that ``empty_cache`` would return, or those blocks alone.

        A recording does not tell ``empty_cache`` from the retry of a refused request. The two differ where
        the retry waited for another stream: the request does not look at the blocks that this set free, the
        model does.
        """
        end, entries = index, self.run.entries
        while end < len(entries) and entries[end].action in TO_DRIVER:
            end += 1
        heads = [run[0] for run in self.allocator.segments() if len(run) == 1]
        whole = {block.address: block for block in heads if block.is_free and block.span is None}
        predicted = Counter(("segment_free", block.size) for block in whole.values())
        named = {e.address: whole[e.address] for e in entries[index:end] if e.address in whole}
        if len(named) == end - index < len(whole):  # garbage collection or oversize blocks: only some go back
            for block in named.values():
                self.allocator.release(block)
        else:
            length = len(self.allocator.trace)
            self.allocator.empty_cache()
            predicted = _from_and_to(self.allocator.trace[length:], TO_DRIVER)
        self._compare("frees", predicted, _from_and_to(entries[index:end], TO_DRIVER))
        self.player.note(end - len(self.player.allocated))
        return end

    def agreement(self) -> Agreement:
        """How far the model's decisions were the recorded ones."""
        what = (f"{side}{kind}" for side in ("mallocs", "frees") for kind in ("", "_predicted", "_extra"))
        return Agreement(
            **{f"num_{name}": self.count[name] for name in (*what, "allocations", "same_address")},
            first_other_address=self.first_other_address,
            num_ambiguous_blocks=self.num_ambiguous,
            recorded_reserved_peak_bytes=self._recorded_reserved_peak(),
        )

    def _recorded_reserved_peak(self) -> int:
        """From the recording alone: the segments at the end, and back through every one that came or went."""
        reserved = peak = sum(segment.size for segment in self.run.segments)
        for entry in reversed(self.run.entries):
            reserved += entry.size * ((entry.action in TO_DRIVER) - (entry.action in FROM_DRIVER))
            peak = max(peak, reserved)
        return peak


def _from_and_to(entries: Sequence[Entry], actions: tuple[str, ...]) -> Counter:
    """How often which size came from the driver, or went to it."""
    return Counter((entry.action, entry.size) for entry in entries if entry.action in actions)
