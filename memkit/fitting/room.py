"""Whether a step fits on a card: the one rule, and what stands on a card beside the tensors.

Beside the tensors stand CUDA's context, the libraries' workspaces and the allocator's holes. Each is a range with
its reason: low, expected, high. A step fits where all of it finds room at the highest (fragments of a ninth of the
tensors, the most that was recorded), should fit at the expected (a hundredth of the card), may just fit at the lowest
(none). A planner plans with the expected: ``planned_room``.
"""

from dataclasses import dataclass

from memkit.allocator.config import AllocatorConfig
from memkit.allocator.trace_replay import replay_trace
from memkit.allocator.workspaces import training_workspace_bytes
from memkit.hardware.cards import CARDS, Card
from memkit.timeline import MemoryTimeline
from memkit.units import GIB, aligned_table, as_whole_number, format_bytes

CONTEXT_BYTES = GIB // 2
"""What CUDA's context takes beside PyTorch's allocator; chapter 07 measures it."""

SLACK_SHARE = 100
"""One part in so many of the room is left free, for fragments: they hang on the order of small requests."""

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
    """A card, the bytes of tensors that are to fit, and what is spare beside them; negative where it is too small.

    ``least_bytes``, ``expected_bytes`` and ``most_bytes`` are what is spare at worst, as expected and at best.
    """

    card: str
    need_bytes: int
    least_bytes: int
    expected_bytes: int
    most_bytes: int

    @property
    def room_bytes(self) -> int:
        """Bytes of tensors that the card is expected to take."""
        return self.need_bytes + self.expected_bytes

    @property
    def is_expected(self) -> bool:
        """Whether it fits beside what is expected on the card: what a plan goes by."""
        return self.expected_bytes >= 0

    @property
    def verdict(self) -> str:
        """``fits``, ``should fit``, ``may just fit`` or ``does not fit``."""
        rooms = (("fits", self.least_bytes), ("should fit", self.expected_bytes), ("may just fit", self.most_bytes))
        return next((words for words, room in rooms if room >= 0), "does not fit")

    @property
    def headline(self) -> str:
        """The verdict first, with what is needed and what the card has for tensors."""
        need, room = format_bytes(self.need_bytes, 1), format_bytes(max(0, self.room_bytes), 1)
        return f"{self.verdict.capitalize()}: {need} of {room} for tensors on one {self.card}."

    def __str__(self) -> str:
        decides, when = (self.least_bytes, "worst") if self.is_expected else (self.most_bytes, "best")
        ends = f"probably {_left(self.expected_bytes)}, at {when} {_left(decides)}"
        return f"It {self.verdict} on one {self.card}: {ends}; context, workspaces and fragments counted."


def _left(num_bytes: int) -> str:
    return f"{format_bytes(abs(num_bytes))} {'to spare' if num_bytes >= 0 else 'too much'}"


def planned_room(card_bytes: int) -> int:
    """Bytes that a plan uses: the card's less the context's, less one part in ``SLACK_SHARE`` of the rest.

    For tensors and workspaces, which a replay with a ``compute_capability`` allocates among them; ``fit_on`` is told
    of the tensors alone, and takes the workspaces off.

    >>> planned_room(80 * GIB) // 2**20  # MiB
    80593

    Raises: ValueError: no card, or a context as large as the card.
    """
    room = as_whole_number("card_bytes", card_bytes, 1) - CONTEXT_BYTES
    if room < 1:
        raise ValueError(f"card_bytes={card_bytes} less context_bytes={CONTEXT_BYTES} leaves no room")
    return room - room // SLACK_SHARE


def fit_on(card: Card, allocated_bytes: int, holes: tuple[int, int, int] | None = None) -> Fit:
    """Whether ``allocated_bytes`` of tensors fit on a card beside everything else.

    ``holes``: low, expected and high bytes that the allocator caches beside them, where a replay knows them;
    without one none, the planner's slack, and the worst recorded share.

    >>> print(fit_on(CARDS["RTX 4090"], 20 * GIB))
    It fits on one RTX 4090: probably 2.89 GiB to spare, at worst 411.55 MiB to spare; context, workspaces and
    fragments counted.
    """
    slack = card.memory_bytes - CONTEXT_BYTES - planned_room(card.memory_bytes)
    low, expected, high = holes or (0, slack, allocated_bytes // RECORDED_CACHE_SHARE)
    room = card.memory_bytes - allocated_bytes - training_workspace_bytes(card.compute_capability)
    return Fit(
        card=card.name, need_bytes=allocated_bytes, least_bytes=room - 2 * CONTEXT_BYTES - max(high, expected),
        expected_bytes=room - CONTEXT_BYTES - expected, most_bytes=room - CONTEXT_BYTES // 2 - low,
    )


def replayed_holes(trace: MemoryTimeline) -> tuple[int, int, int]:
    """Bytes cached and not allocated: least of the two kinds of segments, default segments, worst of all known."""
    plain = replay_trace(trace)
    growing = replay_trace(trace, AllocatorConfig(expandable_segments=True))
    holes = [max(r.peak_reserved_bytes - plain.peak_allocated_bytes, 0) for r in (growing, plain)]
    return min(holes), holes[1], max(*holes, plain.peak_allocated_bytes // RECORDED_CACHE_SHARE)


def left_out_of(trace: MemoryTimeline) -> tuple[LeftOut, ...]:
    """What the traced bytes leave out on any card of the table."""
    spaces = sorted(training_workspace_bytes(card.compute_capability) for card in CARDS.values())
    holes = replayed_holes(trace)
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
            name="cached, not allocated", low_bytes=holes[0], expected_bytes=holes[1], high_bytes=holes[2],
            reason="expandable segments; default segments; the largest share of the recorded runs held here",
        ),
    )


def fits_of(left_out: tuple[LeftOut, ...], allocated_bytes: int) -> tuple[Fit, ...]:
    """Every NVIDIA card of the table with the room left beside the tensors and what their number leaves out."""
    if not left_out:
        raise ValueError("left_out=() has no holes of the allocator: left_out_of(trace) gives them, at its end")
    cached = left_out[-1]
    holes = cached.low_bytes, cached.expected_bytes, cached.high_bytes
    return tuple(fit_on(card, allocated_bytes, holes) for card in CARDS.values() if card.vendor == "NVIDIA")


def left_out_in_words(items: tuple[LeftOut, ...]) -> str:
    """The ranges as a table, and a line with each reason."""
    rows = [["what the number leaves out", "low", "expected", "high"]]
    rows += [[i.name, *map(format_bytes, (i.low_bytes, i.expected_bytes, i.high_bytes))] for i in items]
    return "\n".join([aligned_table(rows), *(f"{item.name}: {item.reason}" for item in items)])
