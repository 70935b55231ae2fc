"""What a request becomes: the sizes and options of PyTorch's CUDA caching allocator.

Nobody gets the bytes he asked for. A request is rounded up to a *block*; blocks are cut out of *segments*,
and only a segment is asked from the driver with ``cudaMalloc``. This module knows the sizes;
``memkit.allocator.caching`` knows where the blocks go. The options are those of the environment variable
``PYTORCH_ALLOC_CONF``.

Source: c10/core/AllocatorConfig.h of torch 2.13, c10/cuda/CUDACachingAllocator.cpp of torch 2.6.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from memkit.kinds import checked
from memkit.units import ALLOCATOR_BLOCK_BYTES, MIB, as_kind, as_whole_number, round_up, shown

SMALL_REQUEST_BYTES = 1 * MIB  # kSmallSize: a rounded request up to this goes to the small pool
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer: a segment (or page) of the small pool
LARGE_SEGMENT_BYTES = 20 * MIB  # kLargeBuffer: a segment (or page) of the large pool
MIN_OWN_SEGMENT_BYTES = 10 * MIB  # kMinLargeAlloc: from here on a request gets a segment of its own size
SEGMENT_ROUNDING_BYTES = 2 * MIB  # kRoundLarge: such a segment is rounded up to this

NUM_DIVISION_INTERVALS = 16  # one per power of two, from 1 MiB to 32 GiB; the ends reach further
IGNORED_OPTIONS = (
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "release_lock_on_cudamalloc",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
)
"""Options that change time, host memory or the error's text, but no size on the card."""

NOT_MODELLED = ("garbage_collection_threshold", "large_segment_size_mb", "max_non_split_rounding_mb")
"""Refused. A snapshot tells neither of the last two, nor the fraction of the card under which the first one acts."""


@checked
@dataclass(frozen=True, kw_only=True)
class AllocatorConfig:
    """The options that decide sizes; bytes where PyTorch's own spelling says ``_mb``.

    ``max_split_bytes`` is ``None`` where any block may be split.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    roundup_power2_divisions: tuple[int, ...] = (0,) * NUM_DIVISION_INTERVALS
    per_process_memory_fraction: float = 1.0

    def __post_init__(self):
        most, least = self.max_split_bytes, LARGE_SEGMENT_BYTES
        if most is not None and as_whole_number("max_split_bytes", most) < least:
            raise ValueError(f"max_split_size_mb:{most / MIB:g} is below the size of a large segment, {least // MIB}")
        divisions = as_kind("roundup_power2_divisions", self.roundup_power2_divisions, tuple)
        if len(divisions) != NUM_DIVISION_INTERVALS:
            raise ValueError(
                f"roundup_power2_divisions has {len(divisions)} entries, "
                f"not {NUM_DIVISION_INTERVALS} (one per power of two from 1 MiB)"
            )
        for count in divisions:
            if as_whole_number("roundup_power2_divisions", count) & (count - 1):
                raise ValueError(f"roundup_power2_divisions:{count} is neither 0 nor a power of two")
        fraction = self.per_process_memory_fraction
        if not 0.0 < as_kind("per_process_memory_fraction", fraction, int, float) <= 1.0:
            raise ValueError(f"per_process_memory_fraction:{fraction} is outside (0, 1]")

    @classmethod
    def parse(cls, text: str) -> "AllocatorConfig":
        """Read a ``PYTORCH_ALLOC_CONF`` string such as ``expandable_segments:True,max_split_size_mb:64``.

        Raises: ValueError: what torch 2.13 refuses, a key that no version knows (torch refuses that on CUDA), and
        one of ``NOT_MODELLED``.

        >>> AllocatorConfig.parse("max_split_size_mb:64").max_split_bytes
        67108864
        """
        fields: dict[str, object] = {}
        text = "".join(text.split())
        for part in text.removesuffix(",").split(",") if text else []:
            key, colon, value = part.partition(":")
            if not colon or not value:
                raise ValueError(f"{part!r} in {text!r} is not of the form key:value")
            if key in IGNORED_OPTIONS:
                continue
            if key in NOT_MODELLED:
                raise ValueError(f"{part} is not modelled; without it the allocator is as by default")
            if key not in _READERS:
                known = ", ".join(sorted(_READERS))
                raise ValueError(f"{key!r} is not an allocator option; known are {known}")
            read, problem = _READERS[key]
            try:
                fields |= read(value)
            except (KeyError, ValueError):
                raise ValueError(f"{part} {problem}") from None
        return cls(**fields)

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> "AllocatorConfig":
        """The options of a recorded run, from the ``allocator_settings`` of its memory snapshot.

        Raises: ValueError: an option of another type, or a value that torch refuses.
        """
        divisions = settings.get("roundup_power2_divisions") or {}
        if not isinstance(divisions, Mapping):
            raise ValueError(f"roundup_power2_divisions={shown(divisions)} is no mapping")
        max_split = as_whole_number("max_split_size", settings.get("max_split_size", -1), minimum=-1)
        return cls(
            expandable_segments=settings.get("expandable_segments", False),
            max_split_bytes=max_split if max_split > 0 else None,
            roundup_power2_divisions=tuple(divisions.get(str(1 << i), 0) for i in range(NUM_DIVISION_INTERVALS)),
        )

    def divisions_for(self, num_bytes: int) -> int:
        """``roundup_power2_divisions`` for a request: one entry per power of two, the ends extended."""
        interval = num_bytes.bit_length() - MIB.bit_length()
        return self.roundup_power2_divisions[min(max(interval, 0), NUM_DIVISION_INTERVALS - 1)]

    def round_size(self, num_bytes: int) -> int:
        """Bytes of the block that a request needs: up to 512, or up to a step between two powers of two.

        >>> AllocatorConfig().round_size(1), AllocatorConfig().round_size(513)
        (512, 1024)
        >>> AllocatorConfig.parse("roundup_power2_divisions:4").round_size(1_200_000)  # steps of 2**20 / 4
        1310720
        """
        if num_bytes < ALLOCATOR_BLOCK_BYTES:
            return ALLOCATOR_BLOCK_BYTES
        divisions = self.divisions_for(num_bytes)
        if divisions > 1 and num_bytes > ALLOCATOR_BLOCK_BYTES * divisions:
            power = 1 << (num_bytes.bit_length() - 1)
            return round_up(num_bytes, power // divisions)
        return round_up(num_bytes)

    def segment_size(self, size: int) -> int:
        """Bytes asked from ``cudaMalloc`` when no cached block fits a request of rounded ``size``.

        >>> [AllocatorConfig().segment_size(n * MIB) // MIB for n in (1, 2, 10, 11)]
        [2, 20, 10, 12]
        """
        if size <= SMALL_REQUEST_BYTES:
            return SMALL_SEGMENT_BYTES
        if size < MIN_OWN_SEGMENT_BYTES:
            return LARGE_SEGMENT_BYTES
        return round_up(size, SEGMENT_ROUNDING_BYTES)


def _digits(value: str, least: int = 0) -> int:
    """A whole number as torch reads it: no sign and no underscore, both of which ``int`` takes."""
    if not value.isdecimal() or int(value) < least:
        raise ValueError
    return int(value)


_READERS: dict[str, tuple[Callable[[str], dict[str, object]], str]] = {
    "expandable_segments": (
        lambda value: {"expandable_segments": {"True": True, "False": False}[value]},
        "is neither True nor False",
    ),
    "max_split_size_mb": (lambda value: {"max_split_bytes": _digits(value) * MIB}, "is not a whole number of MiB"),
    "roundup_power2_divisions": (  # those by size are read from snapshots alone
        lambda value: {"roundup_power2_divisions": (_digits(value, least=1),) * NUM_DIVISION_INTERVALS},
        "is not one power of two for all sizes",
    ),
    "per_process_memory_fraction": (lambda value: {"per_process_memory_fraction": float(value)}, "is not a number"),
    "backend": (
        lambda value: {"native": {}}[value],
        "is not modelled, only native is; cudaMallocAsync keeps its own pool",
    ),
}
"""By option: the fields that its value gives, and what is wrong with a value that gives none."""
