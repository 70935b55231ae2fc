"""What stands on a card beside the tensors of a trace, each as a range with its reason: low, expected, high.

These are CUDA's context, the libraries' workspaces and what the allocator caches. Whether a step then *fits*, is
*tight* or *does not fit* is ``memkit.fit``'s rule.
"""

from dataclasses import dataclass

from memkit.cards import CARDS, CardMemory
from memkit.fit import CONTEXT_BYTES, RECORDED_CACHE_SHARE, Fit, fit_on, training_workspace_bytes
from memkit.timeline import MemoryTimeline
from memkit.units import aligned_table, format_bytes
from stepscope.allocator.caching import AllocatorConfig
from stepscope.allocator.replay import replay_trace

CACHED = "cached, not allocated"
"""The item of what a trace leaves out that says what the allocator holds in its cache."""


@dataclass(frozen=True)
class LeftOut:
    """Bytes that stand on the card beside the tensors: at least, expected, at most, and why."""

    name: str
    low_bytes: int
    expected_bytes: int
    high_bytes: int
    reason: str

    @property
    def range_bytes(self) -> tuple[int, int, int]:
        return self.low_bytes, self.expected_bytes, self.high_bytes


def replayed_holes(trace: MemoryTimeline) -> tuple[int, int, int]:
    """Bytes cached and not allocated: least of the two kinds of segments, where what is whole and free is given back,
    default segments, worst of all known.
    """
    plain = replay_trace(trace)
    growing = replay_trace(trace, AllocatorConfig(expandable_segments=True))
    allocated = plain.peak_allocated_bytes
    held = growing.peak_reserved_bytes, plain.peak_reserved_bytes, plain.allocator.needed_bytes
    holes = [max(num_bytes - allocated, 0) for num_bytes in held]
    return min(holes), holes[1], max(*holes, allocated // RECORDED_CACHE_SHARE)


def left_out_of(trace: MemoryTimeline) -> tuple[LeftOut, ...]:
    """What the traced bytes leave out on any card of the table."""
    spaces = sorted(training_workspace_bytes(card.compute_capability) for card in CARDS.values())
    return (
        LeftOut(
            "CUDA context",
            *(CONTEXT_BYTES // 2, CONTEXT_BYTES, 2 * CONTEXT_BYTES),
            "kernels and tables the driver loads for a process; grows with driver, card and libraries loaded",
        ),
        LeftOut(
            "library workspaces",
            *(spaces[0], spaces[len(spaces) // 2], spaces[-1]),
            "cuBLAS keeps one for the forward's and one for the backward's thread; cuDNN may want more",
        ),
        LeftOut(
            CACHED,
            *replayed_holes(trace),
            "expandable segments, or whole free ones given back; default segments; the largest share recorded",
        ),
    )


def fits_of(
    left_out: tuple[LeftOut, ...], allocated_bytes: int, card: CardMemory | None = None
) -> tuple[Fit, ...]:
    """The card, or every NVIDIA one of the table, with the room left beside the tensors and what is left out.

    >>> from memkit import TrainingSetup, estimate_memory, models
    >>> timeline = estimate_memory(TrainingSetup(model=models.GPT2_XL))
    >>> [fit.card for fit in fits_of(left_out_of(timeline), timeline.peak_bytes) if fit.verdict == "fits"][:2]
    ['A100 PCIe 40 GB', 'A100 SXM 40 GB']
    """
    holes = {item.name: item.range_bytes for item in left_out}.get(CACHED)
    if holes is None:
        raise ValueError(f"left_out={left_out!r} has no {CACHED!r}; left_out_of(trace) gives it")
    cards = [each for each in CARDS.values() if each.vendor == "NVIDIA"] if card is None else [card]
    return tuple(fit_on(each, allocated_bytes, holes) for each in cards)


def left_out_in_words(items: tuple[LeftOut, ...]) -> str:
    """The ranges as a table, and a line with each reason."""
    rows = [["what the number leaves out", "low", "expected", "high"]]
    rows += [[item.name, *map(format_bytes, item.range_bytes)] for item in items]
    return "\n".join([aligned_table(rows), *(f"{item.name}: {item.reason}" for item in items)])
