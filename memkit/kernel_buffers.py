"""Buffers that a CUDA kernel takes for its own work and gives back before it returns.

No tensor of the program owns them, and who watches operations does not see them. They count in the peak all the
same: they stand beside the operation's inputs and results. Each function returns stages; the buffers of one stage
stand together.

Source: ATen/native/transformers/cuda/flash_attn/flash_api.cpp, attention_backward.cu and ATen/native/cuda/Embedding.cu,
for compute capability 8.0 or later.
"""

from memkit.units import round_up

FLASH_ROWS, FLASH_WIDTH = 128, 32
"""The flash kernel's backward works on rows and widths rounded up to these (256 wide above 192)."""

EFFICIENT_BLOCK = 64
"""The memory-efficient kernel adds up the query's gradient in float32, in blocks of 64 rows by 64 columns."""

LOCK_BYTES = 16
"""A lock and a counter for each of those blocks."""

SORTED_INDICES = 3072
"""Up to this many indices an embedding's backward needs no sorting."""

Stages = list[list[int]]


def flash_backward_buffers(
    batch: int, num_heads: int, num_kv_heads: int, length: int, head_dim: int, value_bytes: int
) -> Stages:
    """Row sums and the query's gradient in float32; with grouped heads dk and dv for every query head."""
    rows = round_up(length, FLASH_ROWS)
    width = round_up(head_dim, FLASH_WIDTH) if head_dim <= 192 else 256
    buffers = [4 * batch * num_heads * rows, 4 * batch * num_heads * rows * width]
    if num_kv_heads != num_heads:
        buffers += 2 * [batch * length * num_heads * head_dim * value_bytes]
    return [buffers]


def efficient_backward_buffers(batch: int, num_heads: int, length: int, head_dim: int, value_bytes: int) -> Stages:
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
        blocks += 2 * batch * num_heads * 4 * EFFICIENT_BLOCK * width  # dk and dv in float32, a block of rows each
    return [[*products, row_sums], [row_sums, blocks]]


def embedding_backward_buffers(num_indices: int) -> Stages:
    """The indices sorted and the order that sorts them, 8 bytes each, where there are many."""
    return [[8 * num_indices] * 2] if num_indices > SORTED_INDICES else []
