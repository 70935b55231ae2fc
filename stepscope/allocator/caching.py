"""Where the blocks go: PyTorch's CUDA caching allocator as chapter 07 tells it, exact to the byte and the address.

The driver's ``cudaMalloc`` is slow, so PyTorch keeps what it once got. It cuts *segments* into *blocks*:

- ``malloc`` rounds the request, then takes the smallest free block of its pool that fits (of
  equals the one at the lowest address). A block that is too large is split: the front is handed out, the rest
  stays free. Nothing fits: a new segment is asked from the driver. The driver refuses: whole free segments
  are given back and it is asked once more. It refuses again: out of memory.
- ``free`` returns a block to its pool and merges it with its free neighbours. Nothing goes back to the
  driver.

So there are two numbers: ``allocated`` sums the blocks in use, ``reserved`` sums the segments. What lies
between them is cached, and what lies between in pieces too small for the next request is fragmentation.

Nobody gets the bytes that they ask for: a request is rounded up to a block, by ``AllocatorConfig``. Chapter 07's cure
for fragmentation is the one option that is modelled, ``PYTORCH_ALLOC_CONF=expandable_segments:True``. A plain segment
cannot grow, so a request a little larger than every hole costs a new segment. An expandable segment reserves more
addresses than the card has memory, which costs nothing, and maps 2 MiB (small pool) or 20 MiB (large pool) at a time
behind them. A free block at its end counts with the room it can grow into. Whole free pages can go back to the driver
even from the middle.

Source: c10/cuda/CUDACachingAllocator.cpp of torch 2.6, c10/core/AllocatorConfig.h of torch 2.13; a name in
backticks after a method is its counterpart there. Recorded runs of torch 2.11 replay exactly
(``tests/stepscope/allocator/test_real_cards.py``). Not modelled: options but expandable segments, more than one
stream, private pools (CUDA graphs, MemPool), the cudaMallocAsync backend.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import NamedTuple

from memkit.units import ALLOCATOR_BLOCK_BYTES, MIB, TIB, as_whole_number, format_bytes, round_up

SMALL_REQUEST_BYTES = 1 * MIB  # kSmallSize: a rounded request up to this goes to the small pool
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer: a segment (or page) of the small pool
LARGE_SEGMENT_BYTES = 20 * MIB  # kLargeBuffer: a segment (or page) of the large pool
# kMinLargeAlloc: from here on a request gets a segment of its own size
MIN_OWN_SEGMENT_BYTES = 10 * MIB
SEGMENT_ROUNDING_BYTES = 2 * MIB  # kRoundLarge: such a segment is rounded up to this


def segment_size(size: int) -> int:
    """Bytes asked from ``cudaMalloc`` when no cached block fits a request of rounded ``size``.

    >>> [segment_size(n * MIB) // MIB for n in (1, 2, 10, 11)]
    [2, 20, 10, 12]
    """
    if size <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < MIN_OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return round_up(size, SEGMENT_ROUNDING_BYTES)


@dataclass(frozen=True, kw_only=True)
class AllocatorConfig:
    """The option of ``PYTORCH_ALLOC_CONF`` that the model knows; all others stay as by default."""

    expandable_segments: bool = False


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
        # an expandable segment's
        self.page_bytes = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
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
        heads = [
            b for b in self.blocks.values() if b.mapped and (b.prev is None or not b.prev.mapped)
        ]
        runs = []
        for block in sorted(heads, key=lambda head: head.address):
            run = []
            while block is not None and block.mapped:
                run.append(block)
                block = block.next
            runs.append(run)
        return runs


def grow(heap: Heap, pool: Pool, size: int) -> Block | None:
    """A free block of at least ``size``, mapped at the lowest address (``try_allocate_expandable_block``)."""
    block = _find_room(heap, pool, size)
    if not block.mapped and not _map(heap, block, min(block.size, size)):
        return None
    while block.size < size:
        following = block.next
        if not _map(heap, following, min(size - block.size, following.size)):
            return None
        block = following  # it swallowed the one before it
    pool.remove(block)
    return block


def _find_room(heap: Heap, pool: Pool, size: int) -> Block:
    """A run of free and unmapped blocks with room, else a new run of addresses (``find_expandable_block``)."""
    for address in pool.unmapped:
        start = heap.blocks[address]
        if start.prev is not None and start.prev.is_free:
            start = start.prev
        room, block = 0, start
        while room < size and block is not None and block.is_free:
            room, block = room + block.size, block.next
        if room >= size:
            return start
    capacity = heap.driver.capacity_bytes or TIB
    num_bytes = round_up(capacity + capacity // 8, pool.page_bytes)
    address = heap.driver.reserve(num_bytes)
    block = Block(address, num_bytes, pool, mapped=False, span=(address, num_bytes))
    heap.blocks[address] = block
    pool.add(block)
    return block


def _map(heap: Heap, block: Block, num_bytes: int) -> bool:
    """Put memory behind the first ``num_bytes`` of an unmapped block, in whole pages (``map_block``)."""
    num_bytes = min(round_up(num_bytes, block.pool.page_bytes), block.size)
    if not heap.driver.take(num_bytes):
        return False
    block.pool.remove(block)
    if num_bytes < block.size:
        block.pool.add(heap.cut(block, num_bytes))
    block.mapped = True
    heap.reserve("segment_map", block, num_bytes)
    heap.add_free(block)
    return True


def unmap(heap: Heap, block: Block) -> None:
    """Give the whole pages inside a free block back to the driver (``unmap_block``)."""
    page, start = block.pool.page_bytes, block.span[0]
    begin = start + round_up(block.address - start, page)
    end = start + (block.address + block.size - start) // page * page
    if begin >= end:
        return
    pool = block.pool
    pool.remove(block)
    if begin > block.address:
        front, block = block, heap.cut(block, begin - block.address)
        pool.add(front)
    if end < block.address + block.size:
        pool.add(heap.cut(block, end - block.address))
    block.mapped = False
    heap.driver.used_bytes -= block.size
    heap.reserve("segment_unmap", block, -block.size)
    heap.add_free(block)
    if not block.is_split:  # nothing of the segment is left: its addresses go back too
        pool.remove(block)
        del heap.blocks[block.address]


def growable_size(block: Block) -> int:
    """Bytes of a free block and of the unmapped addresses right behind it, as the best fit counts them."""
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)


class OutOfMemory(MemoryError):
    """No block fits and the driver gives no segment, even after all whole free segments were returned.

    The message has the words of PyTorch's; note that what it "tried to allocate" is the segment, not the request.
    """

    def __init__(self, allocator: "CachingAllocator", requested_bytes: int, segment_bytes: int):
        self.requested_bytes = requested_bytes
        self.segment_bytes = segment_bytes
        self.capacity_bytes = allocator.driver.capacity_bytes
        self.free_bytes = allocator.driver.free_bytes
        self.allocated_bytes = allocator.allocated_bytes
        self.cached_bytes = allocator.reserved_bytes - allocator.allocated_bytes
        super().__init__(
            f"CUDA out of memory. Tried to allocate {format_bytes(segment_bytes)}. "
            f"GPU 0 has a total capacity of {format_bytes(self.capacity_bytes)} "
            f"of which {format_bytes(self.free_bytes)} is free. Including non-PyTorch memory, this process has "
            f"{format_bytes(allocator.driver.used_bytes)} memory in use. "
            f"Of the allocated memory {format_bytes(self.allocated_bytes)} is allocated by PyTorch, and "
            f"{format_bytes(self.cached_bytes)} is reserved by PyTorch but unallocated. If reserved but "
            "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
            "fragmentation."
        )


class CachingAllocator(Heap):
    """One card's caching allocator. Sizes are bytes, addresses integers; ``trace`` lists what a snapshot records.

    >>> allocator = CachingAllocator()
    >>> address = allocator.malloc(1_000_000)
    >>> allocator.allocated_bytes, allocator.reserved_bytes  # rounded to 512; one segment of 2 MiB
    (1000448, 2097152)
    """

    def __init__(self, config: AllocatorConfig | None = None, driver: Driver | None = None):
        super().__init__(config or AllocatorConfig(), driver or Driver())

    @property
    def allocated_bytes(self) -> int:
        """``memory_allocated``: whole blocks in use, with their rounding and their unsplit rest."""
        return self.current["allocated"]

    @property
    def reserved_bytes(self) -> int:
        """``memory_reserved``: the segments, or mapped pages, held from the driver."""
        return self.current["reserved"]

    def reset_peak(self) -> None:
        """``reset_peak_memory_stats``: the peak becomes the present."""
        self.peak.update(self.current)

    def malloc(self, num_bytes: int) -> int | None:
        """The address of a block for ``num_bytes``; ``None`` for zero bytes, which need no block (``malloc``).

        Raises: OutOfMemory: the driver gives no segment for it.
        """
        if as_whole_number("num_bytes", num_bytes) == 0:
            return None
        size = round_up(num_bytes)
        pool = self.small if size <= SMALL_REQUEST_BYTES else self.large
        block = self._find_free(pool, size) or self._make_block(pool, size)
        if block is None:
            self.counts["num_ooms"] += 1
            self.record("oom", self.driver.free_bytes or 0, size)
            raise OutOfMemory(self, num_bytes, segment_size(size))
        if self._should_split(block, size):
            pool.add(self.cut(block, size))
        block.allocated, block.requested_bytes = True, num_bytes
        for name, amount in (
            ("allocated", block.size),
            ("active", block.size),
            ("requested", num_bytes),
        ):
            self.count(name, amount)
        self.record("alloc", block.address, num_bytes)
        return block.address

    def free(self, address: int) -> None:
        """Give a block back to its pool, merged with its free neighbours (``free``, ``free_block``)."""
        block = self.blocks.get(address)
        if block is None or not block.allocated:
            raise ValueError(f"address={address} is not the start of an allocated block")
        block.allocated = False
        self.record("free_requested", address, block.requested_bytes)
        self.record("free_completed", address, block.requested_bytes)
        for name, amount in (
            ("allocated", block.size),
            ("active", block.size),
            ("requested", block.requested_bytes),
        ):
            self.count(name, -amount)
        block.requested_bytes = 0
        self.add_free(block)

    def empty_cache(self) -> None:
        """Give whole free segments and pages back (``release_cached_blocks``)."""
        for pool in (self.large, self.small):
            free = [self.blocks[address] for _, address in pool.free]
            for block in free:
                if block.span is None and not block.is_split:
                    self.release(block)
            for block in free:
                if block.span is not None:
                    unmap(self, block)

    def _find_free(self, pool: Pool, size: int) -> Block | None:
        """Best fit among the free blocks (``get_free_block``)."""
        start = bisect_left(pool.free, (size, 0))
        candidates = (self.blocks[pool.free[i][1]] for i in range(start, len(pool.free)))
        block = next(candidates, None)
        if self.config.expandable_segments:
            for following in candidates:  # prefer the one that can grow to the least size
                if growable_size(following) >= growable_size(block):
                    break
                block = following
        if block is not None:
            pool.remove(block)
        return block

    def _should_split(self, block: Block, size: int) -> bool:
        """Whether the rest is worth keeping apart; otherwise the block is handed out whole (``should_split``)."""
        if block.pool.is_small or self.config.expandable_segments:
            return block.size - size >= ALLOCATOR_BLOCK_BYTES
        return block.size - size > SMALL_REQUEST_BYTES

    def _make_block(self, pool: Pool, size: int) -> Block | None:
        """Ask the driver; if it refuses, give the cache back and ask again."""
        block = self._new_segment(pool, size)
        if block is None:
            self.empty_cache()
            self.counts["num_alloc_retries"] += 1
            block = self._new_segment(pool, size)
        return block

    def _new_segment(self, pool: Pool, size: int) -> Block | None:
        """One ``cudaMalloc``, or pages mapped into an expandable segment (``alloc_block``)."""
        if self.config.expandable_segments:
            return grow(self, pool, size)
        num_bytes = segment_size(size)
        address = self.driver.malloc(num_bytes)
        if address is None:
            return None
        block = self.blocks[address] = Block(address, num_bytes, pool)
        self.reserve("segment_alloc", block, num_bytes)
        return block
