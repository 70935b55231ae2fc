"""What a replay through the allocator's model found, and how far a recording agrees with it."""

from dataclasses import dataclass

from memkit.allocator.caching import CachingAllocator
from memkit.allocator.config import AllocatorConfig
from memkit.timeline import MemoryTimeline
from memkit.units import aligned_table, format_bytes


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far the model's decisions were the recorded ones. ``mallocs`` are requests to the driver."""

    num_mallocs: int
    num_mallocs_predicted: int  # at the right moment and of the right size
    num_mallocs_extra: int  # by the model alone
    num_frees: int
    num_frees_predicted: int
    num_frees_extra: int
    num_allocations: int
    num_same_address: int
    first_other_address: int | None  # index of the event, None where all agree
    num_ambiguous_blocks: int  # blocks from before the recording whose size it does not tell
    recorded_reserved_peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The allocation that failed: index of its event, its size, and what was said."""

    event: int
    requested_bytes: int
    where: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a replay found. ``allocated`` and ``reserved`` are the bytes after each event that was played.

    ``causes`` has one index per entry of ``allocator.trace``: the event of ``timeline`` that made it happen
    (replayed traces only). Of a recording, ``device`` is the card, ``other_devices`` are those that the file has
    events of too, and ``lacks`` the actions that were not recorded; a free's missing half was put beside the other.
    """

    timeline: MemoryTimeline
    config: AllocatorConfig
    allocator: CachingAllocator
    allocated: tuple[int, ...]
    reserved: tuple[int, ...]
    failure: Failure | None = None
    agreement: Agreement | None = None
    causes: tuple[int, ...] = ()
    device: int | None = None
    other_devices: tuple[int, ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def peak_allocated_bytes(self) -> int:
        return self.allocator.peak["allocated"]

    @property
    def peak_reserved_bytes(self) -> int:
        return self.allocator.peak["reserved"]

    @property
    def peak_event(self) -> int:
        """Index of the event that brought ``allocated`` to its peak."""
        return max(range(len(self.allocated)), key=self.allocated.__getitem__)

    @property
    def fragmentation(self) -> float:
        """Share of the reserved bytes that no block uses, at the moment when the blocks use most."""
        if not self.reserved or not self.reserved[self.peak_event]:
            return 0.0
        return 1 - self.allocated[self.peak_event] / self.reserved[self.peak_event]

    def __str__(self) -> str:
        rows = [
            ["replay", f"of {len(self.allocated):,} events"],
            ["peak allocated", format_bytes(self.peak_allocated_bytes)],
            ["peak reserved", format_bytes(self.peak_reserved_bytes)],
            ["fragmentation at the peak", f"{self.fragmentation:.1%}"],
        ]
        if self.agreement is not None:
            a = self.agreement
            rows += [
                ["requests to the driver", f"{a.num_mallocs_predicted} of {a.num_mallocs}"],
                ["requests by the model alone", f"{a.num_mallocs_extra}"],
                ["returned to the driver", f"{a.num_frees_predicted} of {a.num_frees}"],
                ["same address", f"{a.num_same_address} of {a.num_allocations}"],
                ["recorded peak reserved", format_bytes(a.recorded_reserved_peak_bytes)],
            ]
        if self.other_devices:
            rows.insert(1, ["device", f"{self.device}; also recorded: {', '.join(map(str, self.other_devices))}"])
        if self.lacks:
            rows.append(["not recorded", ", ".join(self.lacks)])
        rows.append(["failed", "nothing" if self.failure is None else self.failure.message])
        return aligned_table(rows)
