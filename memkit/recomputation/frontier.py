"""The memory-compute plane: what each strategy costs in FLOPs and what its peak is, and which are worth choosing.

Both are the formula's. It has none for the peak of the reentrant checkpoint, which is not on the plane. A strategy is
on the Pareto front if no other is as good in both and better in one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from memkit.formula.estimate import estimate_memory
from memkit.recomputation.costs import step_flops
from memkit.setup.models import GPT2_LARGE, LLAMA_3_8B, LLAMA_32_1B, ModelConfig
from memkit.setup.recipes import FUSED_ADAMW, PURE_BF16
from memkit.setup.strategies import (
    CORE,
    FULL,
    NONE,
    SAVE_ATTENTION,
    SAVE_EVERY_SECOND,
    SAVE_PRODUCTS,
    Strategy,
    every,
    sequential,
    square_root_groups,
)
from memkit.setup.training import TrainingSetup

MODELS = {model.name: model for model in (GPT2_LARGE, LLAMA_32_1B, LLAMA_3_8B)}


def shown_strategies(model: ModelConfig) -> tuple[Strategy, ...]:
    """The strategies of the plane."""
    return (
        NONE, CORE, SAVE_PRODUCTS, SAVE_EVERY_SECOND, SAVE_ATTENTION, every(2), square_root_groups(model.num_layers),
        sequential(4), FULL,
    )


@dataclass(frozen=True, kw_only=True)
class Point:
    """A strategy on the plane: FLOPs run again ÷ those of a plain step, and the peak in bytes."""

    strategy: Strategy
    overhead: float
    peak_bytes: int

    @property
    def worth(self) -> tuple[float, int]:
        """What it is compared by; less is better."""
        return self.overhead, self.peak_bytes


@cache
def peak_at(model: ModelConfig, strategy: Strategy, micro_batch_size: int, seq_len: int) -> int:
    """Peak in bytes of two steps in pure bf16 with fused AdamW and flash attention."""
    setup = TrainingSetup(
        model=model, precision=PURE_BF16, optimizer=FUSED_ADAMW, seq_len=seq_len, recomputation=strategy,
        micro_batch_size=micro_batch_size,
    )
    return estimate_memory(setup).peak_bytes


@cache
def overhead_of(model: ModelConfig, strategy: Strategy, seq_len: int) -> float:
    """FLOPs run again ÷ those of a plain step: the same for any number of sequences."""
    setup = TrainingSetup(model=model, precision=PURE_BF16, seq_len=seq_len)
    return step_flops(setup, strategy).overhead


def points(model: ModelConfig, micro_batch_size: int, seq_len: int) -> tuple[Point, ...]:
    """Every shown strategy on the plane, in the order of ``shown_strategies``."""
    return tuple(
        Point(
            strategy=strategy,
            overhead=overhead_of(model, strategy, seq_len),
            peak_bytes=peak_at(model, strategy, micro_batch_size, seq_len),
        )
        for strategy in shown_strategies(model)
    )


def beats(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether ``one`` has no number above the ``other``'s, and one below."""
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def pareto_front(items: Iterable) -> tuple:
    """The items that no other beats, in their order, by their ``worth``: numbers of which less is better.

    >>> one, two, three = (Point(strategy=NONE, overhead=x, peak_bytes=y) for x, y in ((0, 9), (0.2, 4), (0.3, 5)))
    >>> [point.peak_bytes for point in pareto_front((one, two, three))]
    [9, 4]
    """
    items = tuple(items)
    worths = [item.worth for item in items]
    return tuple(item for item in items if not any(beats(worth, item.worth) for worth in worths))


def cheapest_that_fits(setup: TrainingSetup, budget_bytes: int) -> Strategy:
    """Of the shown strategies the one with the fewest FLOPs run again whose peak is within the budget.

    Raises: ValueError: none is.
    """
    tried = shown_strategies(setup.model)
    fitting = [way for way in tried if estimate_memory(setup.under(way)).peak_bytes <= budget_bytes]
    if not fitting:
        least = min(estimate_memory(setup.under(way)).peak_bytes for way in tried)
        raise ValueError(f"budget_bytes={budget_bytes} is below the lowest peak of these strategies, {least}")
    return min(fitting, key=lambda way: step_flops(setup, way).overhead)
