"""The cheapest way to fit a training step on a card: fewest FLOPs among the strategies whose predicted peak fits.

A strategy fits when the allocator, in a room of the card's bytes less the stated context and a hundredth for
fragments, finds a place for every tensor of two steps. The prediction is ``memkit.recomputation.peak``'s, so
nothing is run. ``scripts/judge_planner.py`` holds its answers against traces.

A plan is made for ``PYTORCH_ALLOC_CONF=expandable_segments:True``. With the default segments the reserved
peak hangs on the order of every small request, and can lie many percent above what stands in tensors: nobody
can plan for that.
"""

from dataclasses import dataclass

from memkit.allocator.caching import OutOfMemory
from memkit.allocator.config import AllocatorConfig
from memkit.recomputation.costs import Flops, step_flops
from memkit.recomputation.peak import PeakPrediction, predict_peak
from memkit.setup.strategies import (
    CORE,
    FULL,
    NONE,
    SAVE_ATTENTION,
    SAVE_EVERY_SECOND,
    SAVE_PRODUCTS,
    Strategy,
    every,
)
from memkit.setup.training import TrainingSetup
from memkit.units import GIB, aligned_table, as_whole_number, format_bytes

CONTEXT_BYTES = GIB // 2
"""What CUDA's context takes beside PyTorch's allocator unless one says otherwise; chapter 07 measures it."""

SLACK_SHARE = 100
"""One part in so many of the room is left free, for fragments: they hang on the order of small requests."""

EXPANDABLE = AllocatorConfig(expandable_segments=True)
CANDIDATES = (NONE, CORE, SAVE_PRODUCTS, SAVE_EVERY_SECOND, SAVE_ATTENTION, every(4), every(3), every(2), FULL)
"""Strategies of the plan. The others are left out since one of these costs no more and keeps no more."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A strategy, its FLOPs for one micro-batch, and its peak in the room; ``None`` where it runs out of memory."""

    strategy: Strategy
    flops: Flops
    peak: PeakPrediction | None

    @property
    def fits(self) -> bool:
        """Whether every tensor finds a place."""
        return self.peak is not None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was tried, the cheapest first; the last one fits, unless none does."""

    options: tuple[Option, ...]
    room_bytes: int

    @property
    def chosen(self) -> Option | None:
        """The cheapest option that fits."""
        return self.options[-1] if self.options[-1].fits else None

    def __str__(self) -> str:
        rows = [["strategy", "FLOPs run again", "reserved peak"]]
        for option in self.options:
            peak = format_bytes(option.peak.reserved_bytes) if option.peak else "out of memory"
            rows.append([option.strategy.name, f"+{option.flops.overhead:.1%}", peak])
        answer = f"nothing fits in {format_bytes(self.room_bytes)}"
        if self.chosen:
            strategy = self.chosen.strategy
            answer = f"{strategy.name} fits in {format_bytes(self.room_bytes)}:\n{strategy.code}"
        return f"{aligned_table(rows)}\n\n{answer}"


def planned_room(card_bytes: int, context_bytes: int = CONTEXT_BYTES) -> int:
    """Bytes that a plan uses: the card's less the context's, less one part in ``SLACK_SHARE`` of the rest.

    >>> planned_room(80 * GIB) // 2**20  # MiB
    80593
    """
    room = card_bytes - context_bytes
    return room - room // SLACK_SHARE


def plan_recomputation(
    setup: TrainingSetup,
    card_bytes: int,
    *,
    context_bytes: int = CONTEXT_BYTES,
    candidates: tuple[Strategy, ...] = CANDIDATES,
    compute_capability: tuple[int, int] = (8, 0),
    config: AllocatorConfig = EXPANDABLE,
) -> Plan:
    """The strategy with the fewest FLOPs that fits ``planned_room``; of equals the first of the list.

    Raises: ValueError: no candidates, a context larger than the card, or a setup without a formula.

    >>> from memkit import GIB, OptimizerConfig, TrainingSetup, models, recipes
    >>> fused = OptimizerConfig(implementation="fused")
    >>> setup = TrainingSetup(model=models.LLAMA_32_1B, precision=recipes.PURE_BF16, optimizer=fused, seq_len=8192)
    >>> plan_recomputation(setup, 24 * GIB).chosen.strategy.name
    'save attention and products'
    """
    as_whole_number("context_bytes", context_bytes)
    room = planned_room(as_whole_number("card_bytes", card_bytes, 1), context_bytes)
    if room < 1 or not candidates:
        raise ValueError(f"card_bytes={card_bytes} less context_bytes={context_bytes}, {len(candidates)} candidates")
    costs = [(step_flops(setup, strategy), strategy) for strategy in candidates]
    options = []
    for flops, strategy in sorted(costs, key=lambda pair: pair[0].total):
        try:
            peak = predict_peak(
                setup, strategy, room_bytes=room, config=config, compute_capability=compute_capability
            )
        except OutOfMemory:
            peak = None
        options.append(Option(strategy=strategy, flops=flops, peak=peak))
        if peak:
            break
    return Plan(options=tuple(options), room_bytes=room)
