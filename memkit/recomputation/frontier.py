"""The memory-compute plane: what each strategy costs in FLOPs and what its peak is, and which are worth choosing.

The peaks were traced once, of whole models, and are read from a file (``scripts/trace_frontier.py``); FLOPs
are the formula's. A strategy is on the Pareto front if no other is as good in both and better in one.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from memkit.recomputation.costs import step_flops
from memkit.setup.models import GPT2_LARGE, LLAMA_3_8B, LLAMA_32_1B, ModelConfig
from memkit.setup.recipes import PURE_BF16, OptimizerConfig
from memkit.setup.strategies import (
    CORE,
    FULL,
    FULL_REENTRANT,
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

FILE = Path(__file__).with_name("frontier_traced_cuda_rules.json")
TOKENS = tuple(512 * 2**power for power in range(8))
MODELS = {model.name: model for model in (GPT2_LARGE, LLAMA_32_1B, LLAMA_3_8B)}


def shown_strategies(model: ModelConfig) -> tuple[Strategy, ...]:
    """The strategies of the plane."""
    return (
        NONE, CORE, SAVE_PRODUCTS, SAVE_EVERY_SECOND, SAVE_ATTENTION, every(2), square_root_groups(model.num_layers),
        sequential(4), FULL_REENTRANT, FULL,
    )  # fmt: skip


def traced_setup(model: ModelConfig, tokens: int) -> TrainingSetup:
    """The step that was traced for so many tokens: the longest sequence that the model and the tokens allow."""
    seq_len = min(tokens, model.max_seq_len)
    return TrainingSetup(
        model=model, precision=PURE_BF16, optimizer=OptimizerConfig(implementation="fused"), seq_len=seq_len,
        micro_batch_size=tokens // seq_len,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Point:
    """A strategy on the plane: FLOPs run again ÷ those of a plain step, and the traced peak in bytes."""

    strategy: Strategy
    overhead: float
    peak_bytes: int

    @property
    def worth(self) -> tuple[float, int]:
        """What it is compared by; less is better."""
        return self.overhead, self.peak_bytes


@cache
def traced_peaks() -> dict[str, dict[str, list[int]]]:
    """Peaks by model, strategy and position in ``TOKENS``."""
    return json.loads(FILE.read_text(encoding="utf-8"))["peak_bytes"]


def peak_at(model: ModelConfig, strategy: Strategy, tokens: int) -> int:
    """Traced peak in bytes; between two traced counts of tokens on the straight line between them.

    The peak is the largest of several moments, each a straight line in the tokens, so the true peak lies
    there or a little below.

    Raises: ValueError: a model, a strategy or a count of tokens that nobody traced.
    """
    known = traced_peaks().get(model.name, {}).get(strategy.name)
    if known is None:
        raise ValueError(f"{model.name!r} with {strategy.name!r} was not traced")
    if not TOKENS[0] <= tokens <= TOKENS[-1]:
        raise ValueError(f"tokens={tokens} is outside the traced {TOKENS[0]} to {TOKENS[-1]}")
    right = bisect_left(TOKENS, tokens)
    if TOKENS[right] == tokens:
        return known[right]
    left = right - 1
    share = (tokens - TOKENS[left]) / (TOKENS[right] - TOKENS[left])
    return round(known[left] + share * (known[right] - known[left]))


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
            peak_bytes=peak_at(model, strategy, micro_batch_size * seq_len),
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
