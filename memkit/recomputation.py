"""What a recomputation strategy keeps and what it costs, read off the list of operations, and which are worth it.

A region that is run again keeps its input, and beyond it what the strategy's policy saves; every other block
keeps its whole ledger. The price is counted in FLOPs of matrix products, the forward of what is run again.
PyTorch stops a recomputation once the last kept tensor is there, so that the last product of a region runs
only if a dropout after it keeps a mask.

On the memory-compute plane are each strategy's FLOPs and peak, both the formula's. It has none for the peak of the
reentrant checkpoint, which is not on the plane. A strategy is on the Pareto front if no other is as good in both and
better in one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from memkit.formula.activations import Ledger, ledger_of
from memkit.formula.estimate import estimate_memory
from memkit.formula.liveness import Walk
from memkit.formula.model import model_of
from memkit.models import ModelConfig
from memkit.setup import TrainingSetup
from memkit.strategies import (
    CORE,
    FULL,
    NONE,
    POLICIES,
    Strategy,
    every,
    sequential,
    square_root_groups,
)


@dataclass(frozen=True, kw_only=True)
class Flops:
    """Multiplications and additions in the matrix products of one micro-batch.

    ``backward`` is what the gradients need; ``recomputed`` what the strategy runs again; ``in_kernel`` what a
    fused attention kernel computes again inside its backward, strategy or not: the scores.
    """

    forward: int
    backward: int
    recomputed: int
    in_kernel: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.forward + self.backward + self.recomputed + self.in_kernel

    @property
    def overhead(self) -> float:
        """FLOPs run again ÷ FLOPs of a plain step, which runs nothing again but the kernel's scores."""
        return self.recomputed / (self.total - self.recomputed)


def blocks_ledger(setup: TrainingSetup, strategy: Strategy) -> Ledger:
    """What all L blocks keep from forward to backward under a strategy, on the device.

    >>> from memkit.models import GPT2_LARGE
    >>> from memkit.strategies import FULL, NONE, every
    >>> from memkit.recipes import PURE_BF16
    >>> setup = TrainingSetup(model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8)
    >>> [round(blocks_ledger(setup, way).per_sbh / 36, 1) for way in (NONE, every(2), FULL)]
    [32.1, 17.0, 2.0]
    """
    setup = setup.under(strategy)
    model = model_of(setup)
    title = f"{setup.model.num_layers} blocks, {setup.recomputation.name}"
    return ledger_of(model, title, range(1, len(model.units) + 1))


def step_flops(setup: TrainingSetup, strategy: Strategy | None = None) -> Flops:
    """FLOPs of one micro-batch's forward and backward, and of what the strategy (the setup's own) runs again.

    A product costs 2 FLOPs a multiplication in the forward, and as many in the backward for each factor whose gradient
    is wanted: a frozen weight's is not.

    >>> from memkit.models import LLAMA_2_7B
    >>> flops = step_flops(TrainingSetup(model=LLAMA_2_7B))
    >>> round(flops.backward / flops.forward, 2)
    2.0
    """
    model = model_of(setup.under(strategy))
    forward = backward = in_kernel = 0
    for op in model.graph.operations:
        flops = model.times[op.unit] * op.flops
        forward += flops
        wanted = [x.needs_grad for x in op.reads[:2]]
        if op.kind != "attention":
            backward += flops * sum(wanted)
        elif any(wanted):  # the kernel makes the gradients of all its inputs
            backward += 2 * flops
            in_kernel += flops // 2
    again = Walk(model).flops_again
    recomputed = sum(model.times[unit] * flops for unit, flops in again.items())
    return Flops(forward=forward, backward=backward, recomputed=recomputed, in_kernel=in_kernel)


def shown_strategies(model: ModelConfig) -> tuple[Strategy, ...]:
    """The strategies of the plane."""
    groups = square_root_groups(model.num_layers), sequential(4)
    return (NONE, CORE, *POLICIES, every(2), *groups, FULL)


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
def overhead_of(setup: TrainingSetup, strategy: Strategy) -> float:
    """FLOPs run again ÷ those of a plain step."""
    return step_flops(setup, strategy).overhead


@cache
def points(setup: TrainingSetup) -> tuple[Point, ...]:
    """Every shown strategy on the plane of a setup."""
    one = replace(setup, micro_batch_size=1)  # the share is the same for any number of sequences
    return tuple(
        Point(
            strategy=strategy,
            overhead=overhead_of(one, strategy),
            peak_bytes=estimate_memory(setup.under(strategy)).peak_bytes,
        )
        for strategy in shown_strategies(setup.model)
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


def cheapest(found: Sequence[Point], room_bytes: int | None) -> Point:
    """The first point with the fewest FLOPs that fits; of the lowest peak if none fits."""
    fitting = [each for each in found if room_bytes is None or each.peak_bytes <= room_bytes]
    if fitting:
        return min(fitting, key=lambda each: each.overhead)
    return min(found, key=lambda each: each.peak_bytes)


def cheapest_that_fits(setup: TrainingSetup, budget_bytes: int) -> Strategy:
    """The strategy that ``cheapest`` takes of the shown ones."""
    return cheapest(points(setup), budget_bytes).strategy
