"""What a number of bytes leaves out, beside it: the context, the libraries' workspaces, the allocator's holes.

Each is a range with its reason. The lowest and the highest are bounds, not measurements, unless the reason says so.
"""

from dataclasses import dataclass

from memkit.allocator.config import AllocatorConfig
from memkit.allocator.trace_replay import replay_trace
from memkit.allocator.workspaces import training_workspace_bytes
from memkit.fitting.planner import CONTEXT_BYTES
from memkit.hardware.cards import CARDS, Card
from memkit.timeline import MemoryTimeline
from memkit.units import aligned_table, format_bytes

RECORDED_CACHE_SHARE = 9
"""One part in so many of the allocated bytes was reserved beside them in the worst recorded run held here."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Bytes that stand on the card beside the tensors: at least, expected, at most, and why."""

    name: str
    low_bytes: int
    expected_bytes: int
    high_bytes: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A card and the room left on it at least, expected and at most; negative where it is too small."""

    card: str
    least_bytes: int
    expected_bytes: int
    most_bytes: int

    @property
    def verdict(self) -> str:
        """``fits``, ``should fit``, ``may just fit`` or ``does not fit``."""
        rooms = (("fits", self.least_bytes), ("should fit", self.expected_bytes), ("may just fit", self.most_bytes))
        return next((words for words, room in rooms if room >= 0), "does not fit")


def left_out_of(trace: MemoryTimeline, card: Card | None = None) -> tuple[LeftOut, ...]:
    """What the traced bytes leave out on a card, or on any card of the table."""
    cards = [card] if card else list(CARDS.values())
    spaces = sorted(training_workspace_bytes(c.compute_capability) for c in cards)
    plain = replay_trace(trace)
    growing = replay_trace(trace, AllocatorConfig(expandable_segments=True))
    holes = [max(r.peak_reserved_bytes - plain.peak_allocated_bytes, 0) for r in (growing, plain)]
    worst = max(*holes, plain.peak_allocated_bytes // RECORDED_CACHE_SHARE)
    return (
        LeftOut(
            name="CUDA context", low_bytes=CONTEXT_BYTES // 2, expected_bytes=CONTEXT_BYTES,
            high_bytes=2 * CONTEXT_BYTES,
            reason="kernels and tables the driver loads for a process; grows with driver, card and libraries loaded",
        ),
        LeftOut(
            name="library workspaces", low_bytes=spaces[0], expected_bytes=spaces[len(spaces) // 2],
            high_bytes=spaces[-1],
            reason="cuBLAS keeps one for the forward's and one for the backward's thread; cuDNN may want more",
        ),
        LeftOut(
            name="cached, not allocated", low_bytes=min(holes), expected_bytes=holes[1], high_bytes=worst,
            reason="expandable segments; default segments; the largest share of the recorded runs held here",
        ),
    )  # fmt: skip


def fits_of(trace: MemoryTimeline, allocated_bytes: int) -> tuple[Fit, ...]:
    """Every NVIDIA card of the table with the room left beside the tensors and what their number leaves out."""
    fits = []
    shared = left_out_of(trace)
    for card in CARDS.values():
        if card.vendor != "NVIDIA":
            continue
        space = training_workspace_bytes(card.compute_capability)
        room = card.memory_bytes - allocated_bytes - space
        low, expected, high = (
            sum(getattr(item, f"{name}_bytes") for item in shared if item.name != "library workspaces")
            for name in ("low", "expected", "high")
        )
        fits.append(
            Fit(card=card.name, least_bytes=room - high, expected_bytes=room - expected, most_bytes=room - low)
        )
    return tuple(fits)


def left_out_in_words(items: tuple[LeftOut, ...]) -> str:
    """The ranges as a table, and a line with each reason."""
    rows = [["what the number leaves out", "low", "expected", "high"]]
    rows += [[i.name, *map(format_bytes, (i.low_bytes, i.expected_bytes, i.high_bytes))] for i in items]
    return "\n".join([aligned_table(rows), *(f"{item.name}: {item.reason}" for item in items)])
