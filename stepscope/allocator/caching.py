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

Source: c10/cuda/CUDACachingAllocator.cpp of torch 2.6, c10/core/AllocatorConfig.h of torch 2.13; a name in
backticks after a method is its counterpart there. Recorded runs of torch 2.11 replay exactly
(``tests/stepscope/allocator/test_real_cards.py``). Not modelled: options but expandable segments, more than one
stream, private pools (CUDA graphs, MemPool), the cudaMallocAsync backend.
"""

from bisect import bisect_left

from memkit.units import ALLOCATOR_BLOCK_BYTES, as_whole_number, format_bytes, round_up
from stepscope.allocator.config import SMALL_REQUEST_BYTES, AllocatorConfig, segment_size
from stepscope.allocator.expandable import grow, growable_size, unmap
from stepscope.allocator.heap import Block, Driver, Heap, Pool


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
        for name, amount in (("allocated", block.size), ("active", block.size), ("requested", num_bytes)):
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
        for name, amount in (("allocated", block.size), ("active", block.size), ("requested", block.requested_bytes)):
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
