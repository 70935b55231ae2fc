"""The cheapest way to fit a training step on a card: fewest FLOPs among the strategies that fit, traced before shown.

The formula (``memkit.recomputation.peak``) tries the strategies from the cheapest on: a strategy fits when the
allocator, on the card less the stated context and a hundredth for fragments, finds a place for every tensor of
two steps. The first that fits is then traced, where torch is there, and replayed on the same card with and
without that hundredth; the answer is the first that both let pass. Where the tensors would fit by formula and only
find no place, the trace has the word too: holes hang on the order of requests. ``scripts/judge_planner.py`` holds
it against traces of random cases.

A plan is made for ``PYTORCH_ALLOC_CONF=expandable_segments:True``. With the default segments the reserved
peak hangs on the order of every small request, and can lie many percent above what stands in tensors: nobody
can plan for that. It hangs on the card's size too: such a segment has addresses for 9/8 of the card, and near
their end the best fit chooses other blocks. So a room of 1.4 GiB is not a card of 2 GiB with 0.6 GiB taken.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec

from memkit.allocator.caching import OutOfMemory
from memkit.allocator.config import AllocatorConfig
from memkit.allocator.trace_replay import replay_trace
from memkit.fitting.room import CONTEXT_BYTES, planned_room
from memkit.formula.estimate import estimate_memory
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
from memkit.timeline import MemoryTimeline
from memkit.units import aligned_table, as_items, as_kind, format_bytes

EXPANDABLE = AllocatorConfig(expandable_segments=True)
CANDIDATES = (NONE, CORE, SAVE_PRODUCTS, SAVE_EVERY_SECOND, SAVE_ATTENTION, every(4), every(3), every(2), FULL)
"""Strategies of the plan. The others are left out since one of these costs no more and keeps no more."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A strategy, its FLOPs for one micro-batch, and its peaks on the card.

    ``peak`` is the formula's, ``None`` where it runs out of memory. ``traced_bytes`` is the trace's reserved
    peak, ``None`` where it was not traced or ran out; ``fits_traced`` is ``None`` where it was not traced.
    """

    strategy: Strategy
    flops: Flops
    peak: PeakPrediction | None
    traced_bytes: int | None = None
    fits_traced: bool | None = None

    @property
    def fits(self) -> bool:
        """Whether every tensor finds a place: by the trace, or where there is none by formula."""
        return self.peak is not None if self.fits_traced is None else self.fits_traced

    @property
    def reserved_bytes(self) -> int | None:
        """The traced peak of reserved bytes, or else the formula's."""
        return self.traced_bytes if self.fits_traced else self.peak and self.peak.reserved_bytes


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
        rows = [["strategy", "FLOPs run again", "reserved peak", "traced"]]
        for option in self.options:
            peak = format_bytes(option.peak.reserved_bytes) if option.peak else "out of memory"
            traced = {None: "–", False: "out of memory"}.get(option.fits_traced, format_bytes(option.traced_bytes))
            rows.append([option.strategy.name, f"+{option.flops.overhead:.1%}", peak, traced])
        answer = f"nothing fits in {format_bytes(self.room_bytes)}"
        if self.chosen:
            strategy, margin = self.chosen.strategy, format_bytes(self.room_bytes - self.chosen.reserved_bytes)
            how = "traced" if self.chosen.fits_traced else "by formula alone"
            answer = f"{strategy.name} fits in {format_bytes(self.room_bytes)} with {margin} to spare, {how}:"
            answer += f"\n{strategy.code}"
        return f"{aligned_table(rows)}\n\n{answer}"


def plan_recomputation(
    setup: TrainingSetup,
    card_bytes: int,
    *,
    context_bytes: int = CONTEXT_BYTES,
    candidates: tuple[Strategy, ...] = CANDIDATES,
    compute_capability: tuple[int, int] = (8, 0),
    config: AllocatorConfig = EXPANDABLE,
    is_traced: bool | None = None,
) -> Plan:
    """The strategy with the fewest FLOPs that fits ``planned_room``; of equals the first of the list.

    ``is_traced`` says whether the trace has the last word; by default it has where torch is installed.

    Raises: ValueError: no candidates, a context larger than the card, or a setup without a formula.

    >>> from memkit import GIB, OptimizerConfig, TrainingSetup, models, recipes
    >>> fused = OptimizerConfig(implementation="fused")
    >>> setup = TrainingSetup(model=models.LLAMA_32_1B, precision=recipes.PURE_BF16, optimizer=fused, seq_len=8192)
    >>> plan_recomputation(setup, 24 * GIB).chosen.strategy.name
    'save attention and products'
    """
    as_kind("setup", setup, TrainingSetup)
    room = planned_room(card_bytes, context_bytes)
    if not as_items("candidates", candidates, Strategy):
        raise ValueError("candidates is empty; memkit.strategies has some")
    if is_traced is None:
        is_traced = find_spec("torch") is not None
    how = {"config": config, "compute_capability": compute_capability}
    costs = [(step_flops(setup, strategy), strategy) for strategy in candidates]
    options = []
    for flops, strategy in sorted(costs, key=lambda pair: pair[0].total):
        try:
            peak = predict_peak(setup, strategy, room_bytes=card_bytes, outside_bytes=card_bytes - room, **how)
        except OutOfMemory:
            peak = None
        option = Option(strategy=strategy, flops=flops, peak=peak)
        if is_traced and (peak or estimate_memory(setup.under(strategy)).peak_bytes <= room):
            option = _traced(setup, option, card_bytes, (card_bytes - room, context_bytes), how)
        options.append(option)
        if options[-1].fits:
            break
    return Plan(options=tuple(options), room_bytes=room)


def _traced(
    setup: TrainingSetup, option: Option, card_bytes: int, outside: tuple[int, int], how: dict
) -> Option:
    """The option with the trace's word: what it reserves with the slack left free, and whether it fits."""
    trace = traced_step(setup, option.strategy)
    replays = [replay_trace(trace, capacity_bytes=card_bytes, outside_bytes=taken, **how) for taken in outside]
    fits = all(replay.failure is None for replay in replays)
    return replace(option, fits_traced=fits, traced_bytes=replays[0].peak_reserved_bytes if fits else None)


@lru_cache(maxsize=16)
def traced_step(setup: TrainingSetup, strategy: Strategy) -> MemoryTimeline:
    """Two traced steps of a setup under a strategy. Loads torch."""
    from memkit.program.transformer import strategy_build
    from memkit.tracing.trace import trace_memory

    return trace_memory(strategy_build(setup, strategy))
