"""Buffers that a CUDA kernel takes for its own work and gives back before it returns.

No tensor of the program owns them, and who watches operations does not see them. They count in the peak all
the same: they stand beside the operation's inputs and results. Each function returns stages; the buffers of
one stage stand together.

Source: ATen/native/transformers/cuda/flash_attn/flash_api.cpp and attention_backward.cu, for compute
capability 8.0 or later; ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu,
cub/device/dispatch/dispatch_radix_sort.cuh (InvokeOnesweep) and the policies for compute capability 8.0
beside it; ATen/native/cuda/Reduce.cuh (setReduceConfig).
"""

import math
from collections.abc import Sequence

from memkit.units import round_up

FLASH_ROWS, FLASH_WIDTH, FLASH_LARGE_WIDTH = 128, 32, 64
"""The flash kernel's backward works on rows and widths rounded up to these; heads above 128 to the last one."""

EFFICIENT_BLOCK = 64
"""The memory-efficient kernel adds up the query's gradient in float32, in blocks of 64 rows by 64 columns."""

LOCK_BYTES = 16
"""A lock and a counter for each of those blocks."""

SINGLE_TILE, SWEEP_TILE = 256 * 9, 384 * 10
"""Pairs of 8-byte values that one block of a radix sort holds: all of a small sort, a step of a large one."""

DIGITS, DIGIT_BITS = 256, 8
SORTED_EMBEDDING_ROWS, ROWS_PER_PARTIAL_SUM = 3072, 10
"""Up to so many indices an embedding's backward needs no sorting; above, it adds so many rows at a time."""

INDEX_BYTES, INT_BYTES = 8, 4

PROCESSORS, THREADS_PER_PROCESSOR = 108, 2048
"""Processors of an A100 and the threads of each; a sum with few results is split over all of them."""

WARP, MAX_THREADS, VALUES_PER_THREAD = 32, 512, range(16, 256)
"""A thread of a sum adds at least 16 values, and at 256 the sum is split over thread blocks."""

SEMAPHORE_BYTES = 4

Stages = list[list[int]]


def flash_backward_buffers(
    batch: int, num_heads: int, num_kv_heads: int, length: int, head_dim: int, value_bytes: int
) -> Stages:
    """Row sums and the query's gradient in float32; with grouped heads dk and dv for every query head."""
    rows = round_up(length, FLASH_ROWS)
    width = round_up(head_dim, FLASH_WIDTH if head_dim <= 128 else FLASH_LARGE_WIDTH)
    buffers = [4 * batch * num_heads * rows, 4 * batch * num_heads * rows * width]
    if num_kv_heads != num_heads:
        buffers += 2 * [batch * length * num_heads * head_dim * value_bytes]
    return [buffers]


def efficient_backward_buffers(
    batch: int, num_heads: int, length: int, head_dim: int, value_bytes: int
) -> Stages:
    """Row sums of gradient × output, in the kernel for 16-bit heads up to 64 and before it otherwise; then blocks."""
    row_sums = 4 * batch * num_heads * length
    width = round_up(head_dim, EFFICIENT_BLOCK)
    num_blocks = batch * num_heads * -(-length // EFFICIENT_BLOCK) * (width // EFFICIENT_BLOCK)
    blocks = num_blocks * (4 * EFFICIENT_BLOCK**2 + LOCK_BYTES)
    is_half = value_bytes == 2
    if is_half and head_dim <= EFFICIENT_BLOCK:
        return [[row_sums, blocks]]
    products = [4 * batch * num_heads * length * head_dim] * (3 if is_half else 1)
    if is_half:
        # dk and dv in float32, a block of rows each
        blocks += 2 * batch * num_heads * 4 * EFFICIENT_BLOCK * width
    return [[*products, row_sums], [row_sums, blocks]]


def sort_bytes(num_pairs: int, largest_key: int) -> int:
    """Scratch of a radix sort of (key, index) pairs, 8 bytes each, by as many bits as the keys have.

    >>> sort_bytes(2048, 9999), sort_bytes(8192, 9999)
    (1, 136703)
    """
    if num_pairs <= SINGLE_TILE:
        return 1  # CUB asks for one byte where it needs none
    passes = -(-largest_key.bit_length() // DIGIT_BITS)
    copies = 2 * [num_pairs * INDEX_BYTES] if passes > 1 else []
    tiles = -(-num_pairs // SWEEP_TILE)
    parts = [passes * DIGITS * INT_BYTES, tiles * DIGITS * INT_BYTES, *copies, passes * INT_BYTES]
    return sum(round_up(part, 256) for part in parts) + 255


def embedding_backward_buffers(
    num_indices: int, num_rows: int, width: int, value_bytes: int, index_bytes: int = INDEX_BYTES
) -> Stages:
    """Sorted indices; then sums of up to 10 equal indices' rows, in float32, room for the worst case."""
    if num_indices <= SORTED_EMBEDDING_ROWS:
        return []
    all_indices, segments = num_indices * index_bytes, min(num_indices, num_rows)
    partial_sums = num_indices // ROWS_PER_PARTIAL_SUM + segments
    tables = [all_indices, INDEX_BYTES, *2 * [segments * index_bytes], INDEX_BYTES]
    tables += [partial_sums * index_bytes, partial_sums * width * max(value_bytes, 4)]
    return [[all_indices] * 3 + [sort_bytes(num_indices, num_rows)], [all_indices] * 2 + tables]


def block_shape(fast: int, slow: int, max_threads: int) -> tuple[int, int]:
    """Threads of a block along the fast and the slow dimension, powers of two."""
    width, height = (
        min(1 << (max(size, 1).bit_length() - 1), max_threads) for size in (fast, slow)
    )
    rows = min(height, max_threads // min(width, WARP))
    return min(width, max_threads // rows), rows


def merged(dims: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Sizes and strides from the fastest on, neighbours merged that are one walk."""
    out: list[tuple[int, int]] = []
    for stride, size in sorted((stride, size) for size, stride in dims if size > 1):
        if out and stride == out[-1][0] * out[-1][1]:
            out[-1] = (out[-1][0] * size, out[-1][1])
        else:
            out.append((size, stride))
    return tuple(out)


def sum_buffers(
    reduced: Sequence[tuple[int, int]], kept: Sequence[tuple[int, int]], value_bytes: int = 4
) -> Stages:
    """Scratch of a reduction over dimensions given as (size, stride) in elements, ``value_bytes`` a running result.

    A running result per thread and block, and a counter per group of results; none without a split.

    >>> sum_buffers([(1280, 5120)], [(5120, 1)])  # of 1,280 rows, as a bias' gradient is
    [[52428800, 160]]
    """
    reduced, kept = merged(reduced), merged(kept)
    if not reduced:
        return []
    num_inputs, num_outputs = (math.prod(size for size, _ in dims) for dims in (reduced, kept))
    along_rows = not kept or reduced[0][1] < kept[0][1]
    fast, slow = (num_inputs, num_outputs) if along_rows else (num_outputs, num_inputs)
    vector = 1  # neighbouring results that one thread makes: 4, 2 or 1, as sizes and strides allow
    if along_rows and reduced[0][1] == 1 and num_inputs >= 128 and len(reduced) == 1:
        fast //= 4
    elif not along_rows and kept[0][1] == 1:
        vector = math.gcd(4, kept[0][0], *(stride for _, stride in (*reduced, *kept[1:])))
        fast //= vector
    width, height = block_shape(fast, slow, MAX_THREADS // vector)
    step, outputs_per_block = (width, 1) if along_rows else (1, width)
    if -(-num_inputs // step) < min(height * VALUES_PER_THREAD.start, VALUES_PER_THREAD.stop):
        return []  # each row of threads has outputs of its own
    step *= height
    values = -(-num_inputs // step)
    groups = -(-(num_outputs // vector) // outputs_per_block)
    num_blocks = PROCESSORS * (THREADS_PER_PROCESSOR // (width * height))
    if values < VALUES_PER_THREAD.stop or groups > num_blocks:
        return []
    by_values = -(-values // VALUES_PER_THREAD.start)
    split = max(min(-(-num_blocks // groups), by_values), -(-values // VALUES_PER_THREAD.stop))
    if split == 1:
        return []
    lanes = 1 if along_rows else width * vector
    return [[value_bytes * num_outputs * split * lanes, SEMAPHORE_BYTES * groups]]
