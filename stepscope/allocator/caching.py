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


class TraceEntry(NamedTuple):
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

    @property
    def is_segment(self) -> bool:
        """Whether it is all of a segment, which goes back to the driver before a request fails."""
        return self.span is None and not self.is_split

    @property
    def growable_size(self) -> int:
        """Its bytes and the unmapped addresses right behind it, as the best fit counts them."""
        grows = self.next is not None and not self.next.mapped
        return self.size + (self.next.size if grows else 0)


class Pool:
    """The free blocks of one pool that have memory behind them, sorted by (size, address)."""

    def __init__(self, is_small: bool):
        self.is_small = is_small
        # an expandable segment's
        self.page_bytes = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
        self.free: list[tuple[int, int]] = []
        self.whole_bytes = 0  # of segments in which nothing is in use

    def add(self, block: Block) -> None:
        if block.mapped:
            insort(self.free, (block.size, block.address))
            self.whole_bytes += block.size * block.is_segment

    def remove(self, block: Block) -> None:
        if block.mapped:
            del self.free[bisect_left(self.free, (block.size, block.address))]
            self.whole_bytes -= block.size * block.is_segment


class OutOfMemory(MemoryError):
    """No block fits and the driver gives no segment, even after all whole free segments were returned.

    The message has the words of PyTorch's; note that what it "tried to allocate" is the segment, not the request.
    """

    def __init__(self, allocator: "CachingAllocator", requested_bytes: int, segment_bytes: int):
        self.requested_bytes = requested_bytes
        driver, allocated_bytes = allocator.driver, allocator.allocated_bytes
        super().__init__(
            f"CUDA out of memory. Tried to allocate {format_bytes(segment_bytes)}. "
            f"GPU 0 has a total capacity of {format_bytes(driver.capacity_bytes)} "
            f"of which {format_bytes(driver.free_bytes)} is free. Including non-PyTorch memory, this process has "
            f"{format_bytes(driver.used_bytes)} memory in use. "
            f"Of the allocated memory {format_bytes(allocated_bytes)} is allocated by PyTorch, and "
            f"{format_bytes(allocator.reserved_bytes - allocated_bytes)} is reserved by PyTorch but unallocated. "
            "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to "
            "avoid fragmentation."
        )


class CachingAllocator:
    """One card's caching allocator. Sizes are bytes, addresses integers; ``trace`` lists what a snapshot records.

    ``current`` and ``peak`` have the counters of ``memory_stats`` by name, ``blocks`` all blocks by address.
    ``needed_bytes`` are the most that were reserved in segments of which a part was in use. What is reserved beside
    them goes back before a request fails; a card without room for it may want some more, as blocks lie otherwise there.

    >>> allocator = CachingAllocator()
    >>> address = allocator.malloc(1_000_000)
    >>> allocator.allocated_bytes, allocator.reserved_bytes  # rounded to 512; one segment of 2 MiB
    (1000448, 2097152)
    """

    def __init__(self, config: AllocatorConfig | None = None, driver: Driver | None = None):
        self.config, self.driver = config or AllocatorConfig(), driver or Driver()
        self.small, self.large = Pool(is_small=True), Pool(is_small=False)
        self.blocks: dict[int, Block] = {}
        self.current = dict.fromkeys(("allocated", "active", "requested", "reserved"), 0)
        self.peak = dict(self.current)
        self.needed_bytes = 0
        self.trace: list[TraceEntry] = []

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

    def segments(self) -> list[list[Block]]:
        """Segments by address, each as the list of its blocks; an expandable one as runs of mapped blocks."""
        runs: list[list[Block]] = []
        for _, block in sorted(self.blocks.items()):
            if block.mapped and (block.prev is None or not block.prev.mapped):
                runs.append([])
            if block.mapped:
                runs[-1].append(block)
        return runs

    def malloc(self, num_bytes: int) -> int | None:
        """The address of a block for ``num_bytes``; ``None`` for zero bytes, which need no block (``malloc``).

        Raises: OutOfMemory: the driver gives no segment for it.
        """
        if as_whole_number("num_bytes", num_bytes) == 0:
            return None
        size = round_up(num_bytes)
        pool = self.small if size <= SMALL_REQUEST_BYTES else self.large
        block = self._find_free(pool, size) or self._new_segment(pool, size)
        if block is None:  # the driver refused: give the cache back and ask again
            self.empty_cache()
            block = self._new_segment(pool, size)
        if block is None:
            self.record("oom", self.driver.free_bytes or 0, size)
            raise OutOfMemory(self, num_bytes, segment_size(size))
        if self._should_split(block, size):
            pool.add(self.cut(block, size))
        block.allocated, block.requested_bytes = True, num_bytes
        self._count_block(block, 1)
        whole_bytes = self.small.whole_bytes + self.large.whole_bytes
        self.needed_bytes = max(self.needed_bytes, self.reserved_bytes - whole_bytes)
        self.record("alloc", block.address, num_bytes)
        return block.address

    def free(self, address: int) -> None:
        """Give a block back to its pool, merged with its free neighbours (``free``, ``free_block``)."""
        block = self.blocks.get(address)
        if block is None or not block.allocated:
            raise ValueError(f"address={address} is not the start of an allocated block")
        self.record("free_requested", address, block.requested_bytes)
        self.record("free_completed", address, block.requested_bytes)
        self._count_block(block, -1)
        block.allocated, block.requested_bytes = False, 0
        self._add_free(block)

    def empty_cache(self) -> None:
        """Give whole free segments and pages back (``release_cached_blocks``)."""
        for pool in (self.large, self.small):
            free = [self.blocks[address] for _, address in pool.free]
            for block in free:
                if block.is_segment:
                    self._release(block)
            for block in free:
                if block.span is not None:
                    self._unmap(block)

    # --- counters and the record --------------------------------------------------------------------------------------

    def record(self, action: str, address: int, size: int) -> None:
        self.trace.append(TraceEntry(action, address, size))

    def count(self, name: str, amount: int) -> None:
        self.current[name] += amount
        self.peak[name] = max(self.peak[name], self.current[name])

    def _count_block(self, block: Block, sign: int) -> None:
        self.count("allocated", sign * block.size)
        self.count("active", sign * block.size)
        self.count("requested", sign * block.requested_bytes)

    def _reserve(self, action: str, block: Block, num_bytes: int) -> None:
        """Count and record memory that came from the driver (> 0) or went back to it (< 0)."""
        self.count("reserved", num_bytes)
        self.record(action, block.address, abs(num_bytes))

    # --- blocks and their neighbours ----------------------------------------------------------------------------------

    def cut(self, block: Block, size: int) -> Block:
        """Shorten ``block`` to ``size`` and return the rest as a new neighbour, in no pool yet."""
        rest = Block(block.address + size, block.size - size, block.pool, span=block.span)
        rest.mapped, rest.prev, rest.next = block.mapped, block, block.next
        if block.next is not None:
            block.next.prev = rest
        block.next, block.size = rest, size
        self.blocks[rest.address] = rest
        return rest

    def _merge(self, block: Block, other: Block | None) -> None:
        """Swallow a neighbour if it is free too (``try_merge_blocks``); ``block`` is in no pool meanwhile."""
        if other is None or not other.is_free or other.mapped != block.mapped:
            return
        other.pool.remove(other)
        first, second = (other, block) if other is block.prev else (block, other)
        del self.blocks[second.address]
        block.address, block.size = first.address, first.size + second.size
        block.prev, block.next = first.prev, second.next
        self.blocks[block.address] = block
        if block.prev is not None:
            block.prev.next = block
        if block.next is not None:
            block.next.prev = block

    def _add_free(self, block: Block) -> None:
        """Merge a block with its free neighbours and put it into its pool."""
        self._merge(block, block.prev)
        self._merge(block, block.next)
        block.pool.add(block)

    def _release(self, block: Block) -> None:
        """``cudaFree`` of a whole free segment (``release_block``)."""
        self.driver.used_bytes -= block.size
        self._reserve("segment_free", block, -block.size)
        block.pool.remove(block)
        del self.blocks[block.address]

    def _find_free(self, pool: Pool, size: int) -> Block | None:
        """Best fit among the free blocks (``get_free_block``)."""
        start = bisect_left(pool.free, (size, 0))
        candidates = (self.blocks[pool.free[i][1]] for i in range(start, len(pool.free)))
        block = next(candidates, None)
        if self.config.expandable_segments:
            for following in candidates:  # prefer the one that can grow to the least size
                if following.growable_size >= block.growable_size:
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

    def _new_segment(self, pool: Pool, size: int) -> Block | None:
        """One ``cudaMalloc``, or pages mapped into an expandable segment (``alloc_block``)."""
        if self.config.expandable_segments:
            return self._grow(pool, size)
        num_bytes = segment_size(size)
        address = self.driver.malloc(num_bytes)
        if address is None:
            return None
        block = self.blocks[address] = Block(address, num_bytes, pool)
        self._reserve("segment_alloc", block, num_bytes)
        return block

    # --- expandable segments ------------------------------------------------------------------------------------------

    def _grow(self, pool: Pool, size: int) -> Block | None:
        """A free block of at least ``size``, mapped at the lowest address (``try_allocate_expandable_block``)."""
        block = self._find_room(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following  # it swallowed the one before it
        pool.remove(block)
        return block

    def _find_room(self, pool: Pool, size: int) -> Block:
        """A run of free and unmapped blocks with room, else a new run of addresses (``find_expandable_block``)."""
        for _, start in sorted(self.blocks.items()):
            if start.mapped or start.pool is not pool:
                continue
            if start.prev is not None and start.prev.is_free:
                start = start.prev
            room, block = 0, start
            while room < size and block is not None and block.is_free:
                room, block = room + block.size, block.next
            if room >= size:
                return start
        capacity = self.driver.capacity_bytes or TIB
        num_bytes = round_up(capacity + capacity // 8, pool.page_bytes)
        address = self.driver.reserve(num_bytes)
        block = Block(address, num_bytes, pool, mapped=False, span=(address, num_bytes))
        self.blocks[address] = block
        return block

    def _map(self, block: Block, num_bytes: int) -> bool:
        """Put memory behind the first ``num_bytes`` of an unmapped block, in whole pages (``map_block``)."""
        num_bytes = min(round_up(num_bytes, block.pool.page_bytes), block.size)
        if not self.driver.take(num_bytes):
            return False
        if num_bytes < block.size:
            self.cut(block, num_bytes)
        block.mapped = True
        self._reserve("segment_map", block, num_bytes)
        self._add_free(block)
        return True

    def _unmap(self, block: Block) -> None:
        """Give the whole pages inside a free block back to the driver (``unmap_block``)."""
        pool, start = block.pool, block.span[0]
        begin = start + round_up(block.address - start, pool.page_bytes)
        end = start + (block.address + block.size - start) // pool.page_bytes * pool.page_bytes
        if begin >= end:
            return
        pool.remove(block)
        if begin > block.address:
            front, block = block, self.cut(block, begin - block.address)
            pool.add(front)
        if end < block.address + block.size:
            pool.add(self.cut(block, end - block.address))
        block.mapped = False
        self.driver.used_bytes -= block.size
        self._reserve("segment_unmap", block, -block.size)
        self._add_free(block)
        if not block.is_split:  # nothing of the segment is left: its addresses go back too
            del self.blocks[block.address]
