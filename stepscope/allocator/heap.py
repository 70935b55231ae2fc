"""What the allocator of chapter 07 is made of: a card that gives memory, blocks, pools of free ones, and counters.

``stepscope.allocator.caching`` puts them together.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import NamedTuple

from memkit.units import as_whole_number, round_up
from stepscope.allocator.config import LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES, AllocatorConfig


class Entry(NamedTuple):
    """One line of an allocator's own record, in the words of a memory snapshot."""

    action: str
    address: int
    size: int


class Driver:
    """A card: ``capacity_bytes`` of memory, of which ``outside_bytes`` belong to others (CUDA context, processes).

    It never gives the same address twice, and it never fragments: real cards map pages of 2 MiB.
    """

    def __init__(self, capacity_bytes: int | None = None, outside_bytes: int = 0):
        if capacity_bytes is not None:
            capacity_bytes = as_whole_number("capacity_bytes", capacity_bytes, minimum=1)
        self.capacity_bytes = capacity_bytes
        self.used_bytes = as_whole_number("outside_bytes", outside_bytes)
        self.next_address = 0x7F00_0000_0000

    @property
    def free_bytes(self) -> int | None:
        """What ``cudaMemGetInfo`` calls free; ``None`` on a card without end."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.used_bytes

    def take(self, num_bytes: int) -> bool:
        """Commit physical memory, or say that there is not enough."""
        if self.free_bytes is not None and num_bytes > self.free_bytes:
            return False
        self.used_bytes += num_bytes
        return True

    def malloc(self, num_bytes: int) -> int | None:
        """``cudaMalloc``: the address of a new segment, or ``None``."""
        return self.reserve(num_bytes) if self.take(num_bytes) else None

    def reserve(self, num_bytes: int) -> int:
        """``cuMemAddressReserve``: addresses without memory behind them."""
        address = self.next_address
        self.next_address += round_up(num_bytes, SMALL_SEGMENT_BYTES)
        return address


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment. ``prev`` and ``next`` are its neighbours in the same segment, free or not."""

    address: int
    size: int
    pool: "Pool"
    requested_bytes: int = 0
    allocated: bool = False
    mapped: bool = True  # False: addresses of an expandable segment without memory behind them
    span: tuple[int, int] | None = None  # address and size of the expandable segment it lies in
    prev: "Block | None" = None
    next: "Block | None" = None

    @property
    def is_split(self) -> bool:
        """Whether it shares its segment with others; only an unsplit block can go back to the driver."""
        return self.prev is not None or self.next is not None

    @property
    def is_free(self) -> bool:
        return not self.allocated

    @property
    def state(self) -> str:
        """As a memory snapshot spells it."""
        return "active_allocated" if self.allocated else "inactive"


class Pool:
    """The free blocks of one pool, sorted by (size, address); the unmapped ones by address."""

    def __init__(self, is_small: bool):
        self.is_small = is_small
        self.page_bytes = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES  # an expandable segment's
        self.free: list[tuple[int, int]] = []
        self.unmapped: list[int] = []

    def add(self, block: Block) -> None:
        if block.mapped:
            insort(self.free, (block.size, block.address))
        else:
            insort(self.unmapped, block.address)

    def remove(self, block: Block) -> None:
        if block.mapped:
            del self.free[bisect_left(self.free, (block.size, block.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, block.address)]


class Heap:
    """All blocks of one card, with the counters and the trace that every rule keeps up to date."""

    def __init__(self, config: AllocatorConfig, driver: Driver):
        self.config, self.driver = config, driver
        self.small, self.large = Pool(is_small=True), Pool(is_small=False)
        self.blocks: dict[int, Block] = {}  # by address
        self.current = dict.fromkeys(("allocated", "active", "requested", "reserved"), 0)
        self.peak = dict(self.current)
        counted = ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free")
        self.counts = dict.fromkeys(counted, 0)
        self.trace: list[Entry] = []

    def record(self, action: str, address: int, size: int) -> None:
        self.trace.append(Entry(action, address, size))

    def count(self, name: str, amount: int) -> None:
        self.current[name] += amount
        self.peak[name] = max(self.peak[name], self.current[name])

    def reserve(self, action: str, block: Block, num_bytes: int) -> None:
        """Count and record memory that came from the driver (> 0) or went back to it (< 0)."""
        self.count("reserved", num_bytes)
        self.counts["num_device_alloc" if num_bytes > 0 else "num_device_free"] += 1
        self.record(action, block.address, abs(num_bytes))

    def cut(self, block: Block, size: int) -> Block:
        """Shorten ``block`` to ``size`` and return the rest as a new neighbour, in no pool yet."""
        rest = Block(block.address + size, block.size - size, block.pool, span=block.span)
        rest.mapped, rest.prev, rest.next = block.mapped, block, block.next
        if block.next is not None:
            block.next.prev = rest
        block.next, block.size = rest, size
        self.blocks[rest.address] = rest
        return rest

    def merge(self, block: Block, other: Block | None) -> None:
        """Swallow a neighbour if it is free too (``try_merge_blocks``); ``block`` is in no pool meanwhile."""
        if other is None or not other.is_free or other.mapped != block.mapped:
            return
        other.pool.remove(other)
        del self.blocks[other.address]
        if other is block.prev:
            del self.blocks[block.address]
            block.address, block.prev = other.address, other.prev
            if block.prev is not None:
                block.prev.next = block
            self.blocks[block.address] = block
        else:
            block.next = other.next
            if block.next is not None:
                block.next.prev = block
        block.size += other.size

    def add_free(self, block: Block) -> None:
        """Merge a block with its free neighbours and put it into its pool."""
        self.merge(block, block.prev)
        self.merge(block, block.next)
        block.pool.add(block)

    def release(self, block: Block) -> None:
        """``cudaFree`` of a whole free segment (``release_block``)."""
        self.driver.used_bytes -= block.size
        self.reserve("segment_free", block, -block.size)
        block.pool.remove(block)
        del self.blocks[block.address]

    def segments(self) -> list[list[Block]]:
        """Segments by address, each as the list of its blocks; an expandable one as runs of mapped blocks."""
        heads = [b for b in self.blocks.values() if b.mapped and (b.prev is None or not b.prev.mapped)]
        runs = []
        for block in sorted(heads, key=lambda head: head.address):
            run = []
            while block is not None and block.mapped:
                run.append(block)
                block = block.next
            runs.append(run)
        return runs
