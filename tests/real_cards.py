"""A recorded run played through the book's allocator, decision by decision, beside what the card decided.

A recording (``card_recordings``) has the blocks at its end and the events that led there. Played backwards they give
the blocks at its start. From there the allocator plays forward and decides by itself which free block to take, when to
ask the driver and for how much; the card's addresses say whether it was right.

A block that lives to the end has its size in the recording. One that stood at the start and was freed on the way left
only the size that was *asked for*: its block is that, rounded, and what was too small to be split off behind it.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field

from memkit.units import round_up
from stepscope.allocator.caching import (
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    Block,
    CachingAllocator,
    Driver,
)


class RecordedDriver(Driver):
    """Answers with the recorded address where the model asks for what the card asked for."""

    def __init__(self):
        super().__init__()
        self.waiting: list[tuple[int, int]] = []  # (size, address) of recorded requests
        self.num_alike = self.num_other = 0

    def malloc(self, num_bytes: int) -> int:
        self.used_bytes += num_bytes
        for size, address in self.waiting:
            if size == num_bytes:
                self.waiting.remove((size, address))
                self.num_alike += 1
                return address
        self.num_other += 1
        return self.reserve(num_bytes)


@dataclass
class UsedBlock:
    """A block at the start; ``size`` is 0 until it is known."""

    address: int
    asked: int
    size: int = 0


@dataclass
class Replayed:
    """The allocator after the run, and how far its decisions were the card's."""

    allocator: CachingAllocator
    start_bytes: int
    # blocks at the start that could have been larger, for all that the recording says
    num_unsettled: int
    num_allocations: int = 0
    num_same_address: int = 0
    first_other_event: int | None = None
    # sizes that went back to the driver, by us less by the card
    returned: Counter = field(default_factory=Counter)

    @property
    def driver(self) -> RecordedDriver:
        return self.allocator.driver


def replayed(snapshot: dict, looks_ahead: bool = True) -> Replayed:
    """Play the run of a recording of one stream, without expandable segments, as all of ours are."""
    entries = [(e["action"], e["addr"], e["size"]) for e in snapshot["device_traces"][0]]
    segments, used = state_before(snapshot, entries)
    allocator = CachingAllocator(driver=RecordedDriver())
    num_unsettled = build(
        allocator, segments, used, first_in_hole(segments, used, entries) if looks_ahead else {}
    )
    run = Replayed(allocator, allocator.allocated_bytes, num_unsettled)
    address_of = {block.address: block.address for block in used}  # ours by the card's
    last_action = ""
    for index, (action, address, size) in enumerate(entries):
        if action == "segment_alloc":
            run.driver.waiting.append((size, address))
        elif action == "alloc":
            own = address_of[address] = allocator.malloc(size)
            run.num_allocations += 1
            run.num_same_address += own == address
            if own != address and run.first_other_event is None:
                run.first_other_event = index
            run.driver.num_other += len(run.driver.waiting)  # the card asked for more than we did
            run.driver.waiting.clear()
        elif action == "free_requested":
            allocator.free(address_of.pop(address))
        elif action == "segment_free":
            # the cache is given back, by ``empty_cache`` or before a second request
            if last_action != action:
                length = len(allocator.trace)
                allocator.empty_cache()
                run.returned.update(entry.size for entry in allocator.trace[length:])
            run.returned[size] -= 1
        last_action = action
    return run


def state_before(snapshot: dict, entries: list[tuple]) -> tuple[dict[int, int], list[UsedBlock]]:
    """Sizes of the segments by address, and the used blocks, before the first event."""
    segments = {segment["address"]: segment["total_size"] for segment in snapshot["segments"]}
    used = {
        block["address"]: UsedBlock(block["address"], block["requested_size"], block["size"])
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    for action, address, size in reversed(entries):
        if action == "alloc":
            del used[address]
        elif action == "free_requested":
            used[address] = UsedBlock(address, size)
        elif action == "segment_alloc":
            del segments[address]
        elif action == "segment_free":
            segments[address] = size
    return dict(sorted(segments.items())), sorted(used.values(), key=lambda block: block.address)


def first_in_hole(
    segments: dict[int, int], used: list[UsedBlock], entries: list[tuple]
) -> dict[int, int]:
    """For a block: where the hole behind it begins, if a block was cut from there before the block was freed."""
    starts = [block.address for block in used]
    borders = sorted([*starts, *segments, 1 << 64])
    ends = {start: borders[bisect_right(borders, start)] for start in starts}
    begins: dict[int, int] = {}
    for action, address, _ in entries:
        if action == "free_requested":
            ends.pop(address, None)
        elif action == "alloc" and starts:
            before = starts[bisect_right(starts, address) - 1]
            if before < address < ends.get(before, 0):
                begins.setdefault(before, address)
    return begins


def build(
    allocator: CachingAllocator,
    segments: dict[int, int],
    used: list[UsedBlock],
    begins: dict[int, int],
) -> int:
    """Put segments and blocks into an empty allocator; how many blocks' sizes nothing tells."""
    num_unsettled, waiting = 0, list(reversed(used))
    for address, size in segments.items():
        end = address + size
        pool = allocator.small if size == SMALL_SEGMENT_BYTES else allocator.large
        allocator.driver.used_bytes += size
        allocator.count("reserved", size)
        rest = allocator.blocks[address] = Block(address, size, pool)
        while waiting and waiting[-1].address < end:
            start = waiting.pop()
            following = waiting[-1].address if waiting and waiting[-1].address < end else end
            if not start.size:
                start.size = round_up(start.asked)
                gap = following - start.address - start.size
                least_hole = 512 if pool.is_small else SMALL_REQUEST_BYTES + 1
                if gap < least_hole:
                    start.size += gap
                elif start.address in begins:
                    start.size = begins[start.address] - start.address
                else:
                    num_unsettled += not pool.is_small
            if start.address > rest.address:
                hole, rest = rest, allocator.cut(rest, start.address - rest.address)
                pool.add(hole)
            block, rest = rest, allocator.cut(rest, start.size) if start.size < rest.size else None
            block.allocated, block.requested_bytes = True, start.asked
            for name, amount in (
                ("active", block.size),
                ("allocated", block.size),
                ("requested", start.asked),
            ):
                allocator.count(name, amount)
            if rest is None:
                break
        if rest is not None:
            pool.add(rest)
    assert not waiting, "blocks that lie in no segment"
    return num_unsettled
