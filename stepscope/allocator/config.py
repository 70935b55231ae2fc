"""What a request becomes: the sizes of PyTorch's CUDA caching allocator, and its one option that chapter 07 uses.

Nobody gets the bytes that they ask for. A request is rounded up to a *block*; blocks are cut out of *segments*,
and only a segment is asked from the driver with ``cudaMalloc``. This module knows the sizes;
``stepscope.allocator.caching`` knows where the blocks go.

Source: c10/core/AllocatorConfig.h of torch 2.13, c10/cuda/CUDACachingAllocator.cpp of torch 2.6.
"""

from dataclasses import dataclass

from memkit.units import MIB, round_up

SMALL_REQUEST_BYTES = 1 * MIB  # kSmallSize: a rounded request up to this goes to the small pool
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer: a segment (or page) of the small pool
LARGE_SEGMENT_BYTES = 20 * MIB  # kLargeBuffer: a segment (or page) of the large pool
MIN_OWN_SEGMENT_BYTES = 10 * MIB  # kMinLargeAlloc: from here on a request gets a segment of its own size
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
