"""Whether a step fits on a card: the one rule, and what is on a card beside the tensors.

Beside the tensors are CUDA's context, the libraries' workspaces and the allocator's fragments. A step *fits* where
there is space even for the most of them (a ninth of the tensors, the most that was recorded), *does not fit* where
there is none even for the least (no fragments), and is *tight* between. A plan goes by the expected (a hundredth of the
card).

The workspaces are memory that no tensor asks for, per card and version of torch. The first matrix product of a process
makes PyTorch allocate a scratch buffer for cuBLAS from the caching allocator, and keep it. It counts in
``memory_allocated``, yet no tensor owns it. This is the 8,519,680 B (8.125 MiB) that stay after everything is deleted
(pytorch/pytorch#95668).

A buffer belongs to a cuBLAS handle and a stream, and a handle belongs to a thread. Autograd runs the backward
in a thread of its own, so a training step holds **two** buffers and inference one.
"""

import re
from dataclasses import dataclass

from memkit.cards import CARDS, CardMemory
from memkit.timeline import PARTS, Instant, where
from memkit.units import GIB, KIB, as_one_of, as_whole_number, format_bytes

SMALLER_BYTES, LARGER_BYTES = 2 * 4096 * KIB + 8 * 16 * KIB, 8 * 4096 * KIB
"""``:4096:2:16:8`` and ``:4096:8``.

Source: aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize (pytorch/pytorch#91564). cuBLASLt has 1 MiB of
its own (CUDABlas.cpp, _parseChosenWorkspaceSize, #73328), allocated and freed around each call, only where it does not
share cuBLAS's. Sharing is the default since #168175; ``TORCH_CUBLASLT_UNIFIED_WORKSPACE=0`` ends it. Versions between
(#156495) kept a second buffer for cuBLASLt.
"""

LARGER_SINCE = {
    9: (2, 0),  # pytorch/pytorch#91564
    # pytorch/pytorch#175344; a B200 with torch 2.11 took the smaller one (test_b200.py)
    10: (2, 12),
    11: (2, 14),  # pytorch/pytorch#189312, merged in July 2026, after 2.13 was cut
    12: (2, 12),  # pytorch/pytorch#175344
}
"""By major compute capability, the version of torch from which on it takes the larger one; all others never do."""

ASSUMED_TORCH = "2.13"
"""The version of torch that is meant where none is named."""


def workspace_bytes(compute_capability: tuple[int, int], torch_version: str = ASSUMED_TORCH) -> int:
    """Bytes of one cuBLAS workspace, where ``CUBLAS_WORKSPACE_CONFIG`` does not say otherwise.

    Raises: ValueError: a version that is none or is below 2.0, no pair of numbers.

    >>> workspace_bytes((8, 0)), workspace_bytes((9, 0))
    (8519680, 33554432)
    >>> workspace_bytes((10, 0), torch_version="2.11.0+cu128"), workspace_bytes((10, 0), torch_version="2.12.0")
    (8519680, 33554432)
    """
    digits = re.match(r"(\d+)\.(\d+)", torch_version)
    version = (int(digits[1]), int(digits[2])) if digits else (0, 0)
    if version < (2, 0):
        raise ValueError(f"torch_version={torch_version!r} is not 2.0 or later")
    since = LARGER_SINCE.get(compute_capability[0], (99, 0))
    return LARGER_BYTES if version >= since else SMALLER_BYTES


def training_workspace_bytes(compute_capability: tuple[int, int]) -> int:
    """Bytes of workspaces that a training step holds: one for the forward's thread, one for the backward's.

    >>> training_workspace_bytes((8, 0))
    17039360
    """
    return 2 * workspace_bytes(compute_capability)


ASSUMED_CAPABILITY = 8, 0
"""Of a card of which only the memory is known, as of an A100."""

CONTEXT_BYTES = GIB // 2
"""What CUDA's context takes beside PyTorch's allocator; chapter 07 measures it."""

SLACK_SHARE = 100
"""One part in so many of the space is left free, for fragments: they hang on the order of small requests."""

RECORDED_CACHE_SHARE = 9
"""One part in so many of the allocated bytes was reserved beside them in the worst recorded run held here."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A card, the bytes of tensors that are to fit, and what is spare beside them; negative where it is too small.

    ``least_bytes``, ``expected_bytes`` and ``most_bytes`` are what is spare at worst, as expected and at best;
    ``fragments_bytes`` are what may fragment beside the tensors, the workspaces and a context of the expected size.
    """

    card: str
    need_bytes: int
    least_bytes: int
    expected_bytes: int
    most_bytes: int
    fragments_bytes: int

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
        """``fits``, even at worst; ``does not fit``, not even at best; ``tight``: nobody knows before."""
        if self.least_bytes >= 0:
            return "fits"
        return "tight" if self.most_bytes >= 0 else "does not fit"

    @property
    def predicate(self) -> str:
        """The verdict as what a sentence says of the step."""
        return "is tight" if self.verdict == "tight" else self.verdict

    @property
    def unless(self) -> str:
        """What a tight step hangs on; of any other nothing."""
        if self.verdict != "tight":
            return ""
        if self.fragments_bytes < 0:
            return f"only if CUDA's context takes less than {format_bytes(CONTEXT_BYTES)}"
        return f"unless more than {format_bytes(self.fragments_bytes)} are lost in fragments"

    @property
    def headline(self) -> str:
        """The verdict first, with what is needed, and what the card has for tensors or may lose."""
        need, space = format_bytes(self.need_bytes, 1), format_bytes(max(0, self.room_bytes), 1)
        if self.unless:
            return f"Tight: {need} fit on one {self.card} {self.unless}."
        return f"{self.verdict.capitalize()}: {need} of {space} for tensors on one {self.card}."

    def __str__(self) -> str:
        ends = {
            "fits": f"probably {_left(self.expected_bytes)}, at worst {_left(self.least_bytes)}",
            "tight": f"it fits {self.unless}, at worst {_left(self.least_bytes)}",
            "does not fit": f"probably {_left(self.expected_bytes)}, at best {_left(self.most_bytes)}",
        }
        beside = "context, workspaces and fragments counted"
        return f"It {self.predicate} on one {self.card}: {ends[self.verdict]}; {beside}."


def _left(num_bytes: int) -> str:
    return f"{format_bytes(abs(num_bytes))} {'to spare' if num_bytes >= 0 else 'too much'}"


def planned_room(card_bytes: int) -> int:
    """Bytes that a plan uses: the card's less the context's, less one part in ``SLACK_SHARE`` of the rest.

    For tensors and workspaces, which a replay with a ``compute_capability`` allocates among them; ``fit_on`` is given
    the tensors alone, and takes the workspaces off.

    >>> planned_room(80 * GIB) // 2**20  # MiB
    80593

    Raises: ValueError: no card, or a context as large as the card.
    """
    space = as_whole_number("card_bytes", card_bytes, CONTEXT_BYTES + 1) - CONTEXT_BYTES
    return space - space // SLACK_SHARE


def fit_on(
    card: CardMemory, allocated_bytes: int, holes: tuple[int, int, int] | None = None
) -> Fit:
    """Whether ``allocated_bytes`` of tensors fit on a card beside everything else.

    ``holes``: low, expected and high bytes that the allocator caches beside them, where a replay knows them;
    without one none, the planner's slack, and the worst recorded share.

    >>> print(fit_on(CARDS["RTX 4090"], 20 * GIB))
    It fits on one RTX 4090: probably 2.89 GiB to spare, at worst 411.55 MiB to spare; context, workspaces and
    fragments counted.
    """
    slack = card.memory_bytes - CONTEXT_BYTES - planned_room(card.memory_bytes)
    low, expected, high = holes or (0, slack, allocated_bytes // RECORDED_CACHE_SHARE)
    capability = card.compute_capability or ASSUMED_CAPABILITY
    left = card.memory_bytes - allocated_bytes - training_workspace_bytes(capability)
    return Fit(
        card=card.name,
        need_bytes=allocated_bytes,
        least_bytes=left - 2 * CONTEXT_BYTES - max(high, expected),
        expected_bytes=left - CONTEXT_BYTES - expected,
        most_bytes=left - CONTEXT_BYTES // 2 - low,
        fragments_bytes=left - CONTEXT_BYTES,
    )


NO_CARD = "none"


def peak_in_words(peak: Instant, card: str = NO_CARD) -> str:
    """The peak, its largest part, and whether it fits on the card."""
    part = max(PARTS, key=lambda name: getattr(peak, name) or 0)
    share = (getattr(peak, part) or 0) / peak.total_bytes
    size = format_bytes(peak.total_bytes)
    said = f"Peak {size}, at the {where(peak)}; the largest part is {part.replace('_', ' ')}, {share:.0%} of it."
    if card == NO_CARD:
        return said
    return f"{said} {fit_on(CARDS[as_one_of('card', card, CARDS)], peak.total_bytes)}"
