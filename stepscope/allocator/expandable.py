"""Chapter 07's cure for fragmentation: one long run of addresses per pool, with memory mapped behind it page by page.

A plain segment cannot grow, so a request a little larger than every hole costs a new segment. An expandable
segment reserves more addresses than the card has memory, which costs nothing, and maps 2 MiB (small pool) or
20 MiB (large pool) at a time behind them. A free block at its end counts with the room it can grow into.
Whole free pages can go back to the driver even from the middle.

Switched on by ``PYTORCH_ALLOC_CONF=expandable_segments:True``. A name in backticks is the counterpart in
c10/cuda/CUDACachingAllocator.cpp.
"""

from memkit.units import TIB, round_up
from stepscope.allocator.heap import Block, Heap, Pool


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
