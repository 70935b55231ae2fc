"""The state before a recording: play its events backwards from the blocks at its end.

A block that lives to the end has its size in the snapshot. One that was there at the start and was freed on
the way left only the size that was *asked for*. Its block is that, rounded, plus whatever the allocator found
too small to split off. Two things tell how much: a gap in front of the next block that is too small to be a
hole of its own belongs to the block, and the first block that is later cut out of a hole shows where the hole
begins. Where neither speaks the block is taken to have no rest, and is counted as ambiguous.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from memkit.allocator.caching import CachingAllocator
from memkit.allocator.config import SMALL_REQUEST_BYTES, SMALL_SEGMENT_BYTES, AllocatorConfig
from memkit.allocator.heap import Block, Entry, Pool
from memkit.allocator.recorded import PAGE_BYTES, Segment, UsedBlock
from memkit.units import ALLOCATOR_BLOCK_BYTES, TIB

SPAN_BYTES = 2 * TIB  # addresses given to an expandable segment whose true reservation no snapshot tells
FREED_BEFORE = "freed before"
"""Stands for the stream that still uses a freed block: (this, the block's address)."""


def state_before(events: Sequence[Entry], segments: Sequence[Segment]) -> list[Segment]:
    """Segments and used blocks before the first event."""
    whole = {s.address: replace(s, blocks=[]) for s in segments if not s.is_expandable}
    anchors = _anchors(events, segments)
    blocks = sorted((e.address, e.size) for e in events if e.action in ("alloc", "free_completed"))
    pages = {
        page: (s.stream, s.is_small)
        for s in segments
        if s.is_expandable
        for page in range(s.address, s.address + s.size, PAGE_BYTES)
    }
    used = {block.address: replace(block) for s in segments for block in s.blocks}
    for action, address, size, stream in reversed(events):
        if action == "alloc":
            used.pop(address, None)
        elif action == "free_completed":
            used[address] = UsedBlock(address, size, 0, is_pending=True)
        elif action == "free_requested" and address in used:
            used[address].is_pending = False
        elif action == "segment_alloc":
            whole.pop(address, None)
        elif action == "segment_free":
            whole[address] = Segment(address, size, stream, size == SMALL_SEGMENT_BYTES, False)
        elif action == "segment_map":
            for page in range(address, address + size, PAGE_BYTES):
                pages.pop(page, None)
        elif action == "segment_unmap":
            is_small = _was_small(address, size, blocks)
            pages |= {page: (stream, is_small) for page in range(address, address + size, PAGE_BYTES)}
    runs = sorted([*whole.values(), *_runs(pages)], key=lambda segment: segment.address)
    for run in runs:
        own = [anchor[0] for anchor in anchors if anchor[1:] == (run.stream, run.is_small)]
        run.span_start = min([run.address, *own])
    starts = [segment.address for segment in runs]
    for block in sorted(used.values(), key=lambda b: b.address):
        index = bisect_right(starts, block.address) - 1
        if index < 0 or block.address >= starts[index] + runs[index].size:
            raise ValueError(f"the block at {block.address} lies in no segment; the recording lacks events")
        last = runs[index].blocks[-1] if runs[index].blocks else None
        if last and last.address + max(last.size, last.requested_bytes) > block.address:
            raise ValueError(f"the blocks at {last.address} and {block.address} overlap; the recording lacks events")
        runs[index].blocks.append(block)
    return runs


def _anchors(events: Sequence[Entry], segments: Sequence[Segment]) -> list[tuple[int, int, bool]]:
    """Places of expandable segments whose pool is known: (address, stream, whether small).

    A small request maps one page of 2 MiB, a large one never so little.
    """
    ends = [(s.address, s.stream, s.is_small) for s in segments if s.is_expandable]
    maps = [(e.address, e.stream, e.size == PAGE_BYTES) for e in events if e.action == "segment_map"]
    return ends + maps


def _was_small(address: int, size: int, blocks: Sequence[tuple[int, int]]) -> bool:
    """Whether pages that went back were the small pool's: told by the blocks that lay in them.

    Without such a block their size decides: the large pool returns multiples of 20 MiB.
    """
    index = bisect_left(blocks, (address, 0))
    if index < len(blocks) and blocks[index][0] < address + size:
        return blocks[index][1] <= SMALL_REQUEST_BYTES
    return bool(size % (10 * PAGE_BYTES))


def _runs(pages: dict[int, tuple[int, bool]]) -> list[Segment]:
    runs: list[Segment] = []
    for page, (stream, is_small) in sorted(pages.items()):
        last = runs[-1] if runs else None
        if last and (last.address + last.size, last.stream, last.is_small) == (page, stream, is_small):
            last.size += PAGE_BYTES
        else:
            runs.append(Segment(page, PAGE_BYTES, stream, is_small, True))
    return runs


def settle_sizes(runs: Sequence[Segment], events: Sequence[Entry], config: AllocatorConfig) -> int:
    """Give every block its size; return how many could have been larger for all that the recording says."""
    first_in_hole = _first_address_in_hole(runs, events)
    num_ambiguous = 0
    for run in runs:
        fine = run.is_small or config.expandable_segments
        least_hole = ALLOCATOR_BLOCK_BYTES if fine else SMALL_REQUEST_BYTES + 1
        for block, end in run.blocks_with_ends():
            if block.size:
                continue
            block.size = config.round_size(block.requested_bytes)
            gap = end - block.address - block.size
            is_oversize = config.max_split_bytes is not None and block.size >= config.max_split_bytes
            if gap < least_hole or (is_oversize and not run.is_expandable):
                block.size += gap
            elif block.address in first_in_hole:
                block.size = first_in_hole[block.address] - block.address
            elif not fine:
                num_ambiguous += 1
    return num_ambiguous


def _first_address_in_hole(runs: Sequence[Segment], events: Sequence[Entry]) -> dict[int, int]:
    """For a block: where the hole behind it begins, if a block was cut from there before the block was
    freed."""
    starts = [block.address for run in runs for block in run.blocks]
    watched = {block.address: end for run in runs for block, end in run.blocks_with_ends()}
    begins: dict[int, int] = {}
    for action, address, *_ in events:
        if action == "free_completed":
            watched.pop(address, None)
        elif action == "alloc" and starts:
            before = starts[bisect_right(starts, address) - 1]
            if before < address < watched.get(before, 0):
                begins[before] = address
                del watched[before]
    return begins


def build(allocator: CachingAllocator, runs: Sequence[Segment]) -> None:
    """Put segments and blocks into an empty allocator, as if it had made them."""
    neighbours = [list(own) for _, own in groupby(runs, lambda run: (run.is_expandable, run.stream, run.is_small))]
    starts, known = [], 0
    for own in neighbours:  # the addresses between two groups are the later one's, as far as it is known to reach
        starts.append(max(known, min(run.span_start for run in own)))
        known = own[-1].address + own[-1].size
    for own, start, end in zip(neighbours, starts, [*starts[1:], known + SPAN_BYTES], strict=False):
        allocator.driver.used_bytes += sum(run.size for run in own)
        allocator.count("reserved", sum(run.size for run in own))
        pool = allocator.small if own[0].is_small else allocator.large
        if own[0].is_expandable:
            _build_span(allocator, pool, own, start, min(end, start + SPAN_BYTES))
            continue
        for run in own:
            block = allocator.blocks[run.address] = Block(run.address, run.size, run.stream, pool)
            _fill(allocator, block, run.blocks)


def _build_span(allocator: CachingAllocator, pool: Pool, runs: Sequence[Segment], start: int, end: int) -> None:
    """One long run of addresses, with memory behind those of ``runs``."""
    span = (start, end - start)
    rest = allocator.blocks[start] = Block(*span, runs[0].stream, pool, mapped=False, span=span)
    for run in runs:
        block = _cut_off_front(allocator, rest, run.address)
        rest = allocator.cut(block, run.size) if run.size < block.size else None
        block.mapped = True
        _fill(allocator, block, run.blocks)
    if rest is not None:
        pool.add(rest)


def _cut_off_front(allocator: CachingAllocator, block: Block, address: int) -> Block:
    """The part of ``block`` from ``address`` on; what lies before it, if anything, goes into the pool."""
    if address == block.address:
        return block
    rest = allocator.cut(block, address - block.address)
    block.pool.add(block)
    return rest


def _fill(allocator: CachingAllocator, block: Block, starts: Sequence[UsedBlock]) -> None:
    """Cut the used blocks out of a free one."""
    for start in starts:
        block = _cut_off_front(allocator, block, start.address)
        rest = allocator.cut(block, start.size) if start.size < block.size else None
        block.allocated = not start.is_pending
        block.requested_bytes = start.requested_bytes
        if start.is_pending:
            block.num_events = 1
            allocator.waiting[FREED_BEFORE, block.address] = [block]
        allocator.count("active", block.size)
        allocator.count("requested", block.requested_bytes)
        allocator.count("allocated", 0 if start.is_pending else block.size)
        if rest is None:
            return
        block = rest
    block.pool.add(block)
