"""From a global batch in tokens to micro-batches: how many forwards, on how many ranks, before one optimizer step.

A global batch is ``seq_len`` · ``micro_batch_size`` · ``grad_accum_steps`` · ``dp_size`` tokens. Three of the five
numbers are usually given: the batch (by the recipe), the sequence (by the data) and the ranks (by the budget). The
micro-batch is then bounded by memory, and the accumulation steps follow, if they come out whole.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from memkit.formats.dtypes import dtype_bits
from memkit.formula.estimate import estimate_memory
from memkit.formula.parameters import count_parameters
from memkit.hardware.cards import Card
from memkit.setup.layouts import Layout
from memkit.setup.training import MAX_GRAD_ACCUM_STEPS, TrainingSetup
from memkit.sharding.step import estimate_sharded
from memkit.timeline import Instant, MemoryTimeline
from memkit.units import as_whole_number, format_count


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """One way to see a global batch: sequences of ``seq_len`` tokens in micro-batches on ``dp_size`` ranks.

    >>> BatchPlan(seq_len=8192, micro_batch_size=1, grad_accum_steps=64, dp_size=8).global_batch_tokens
    4194304
    """

    seq_len: int
    micro_batch_size: int
    grad_accum_steps: int
    dp_size: int

    @property
    def global_batch_tokens(self) -> int:
        """Tokens between two optimizer steps, over all ranks."""
        return self.seq_len * self.micro_batch_size * self.grad_accum_steps * self.dp_size

    def __str__(self) -> str:
        counts = {
            "sequence": self.micro_batch_size, "accumulation step": self.grad_accum_steps, "rank": self.dp_size,
        }  # fmt: skip
        factors = " × ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items())
        return f"{self.seq_len:,} tokens × {factors} = {format_count(self.global_batch_tokens)} tokens"


def plan_batch(global_batch_tokens: int, *, seq_len: int, micro_batch_size: int, dp_size: int = 1) -> BatchPlan:
    """The plan that sees exactly ``global_batch_tokens`` between two optimizer steps.

    Raises: ValueError: the tokens are no whole number of micro-batches for every rank; it names the nearest that are.

    >>> plan_batch(2**22, seq_len=8192, micro_batch_size=1).grad_accum_steps
    512
    >>> plan_batch(4_000_000, seq_len=8192, micro_batch_size=1)
    Traceback (most recent call last):
    ValueError: 4,000,000 tokens are 488.28 passes of 8,192; whole plans: 3,997,696 (488), 4,005,888 (489 steps)
    """
    given = {"seq_len": seq_len, "micro_batch_size": micro_batch_size, "dp_size": dp_size}
    sizes = {name: as_whole_number(name, value, 1) for name, value in given.items()}
    tokens = as_whole_number("global_batch_tokens", global_batch_tokens, 1)
    one_pass = sizes["seq_len"] * sizes["micro_batch_size"] * sizes["dp_size"]
    if tokens % one_pass:
        below, above = nearest_plans(tokens, **sizes)
        known = f"{below.global_batch_tokens:,} ({below.grad_accum_steps}), " if below else ""
        raise ValueError(
            f"{tokens:,} tokens are {tokens / one_pass:.2f} passes of {one_pass:,}; whole plans: "
            f"{known}{above.global_batch_tokens:,} ({above.grad_accum_steps} steps)"
        )
    if tokens // one_pass > MAX_GRAD_ACCUM_STEPS:
        raise ValueError(f"{tokens // one_pass} accumulation steps are more than {MAX_GRAD_ACCUM_STEPS}")
    return BatchPlan(**sizes, grad_accum_steps=tokens // one_pass)


def nearest_plans(tokens: int, **sizes: int) -> tuple[BatchPlan | None, BatchPlan]:
    """The largest plan of at most ``tokens`` (``None`` if one pass is more already) and the smallest of more."""
    one_pass = sizes["seq_len"] * sizes["micro_batch_size"] * sizes["dp_size"]
    steps = tokens // one_pass
    below = BatchPlan(**sizes, grad_accum_steps=steps) if steps else None
    return below, BatchPlan(**sizes, grad_accum_steps=steps + 1)


def planned_setup(setup: TrainingSetup, plan: BatchPlan) -> TrainingSetup:
    """``setup`` with the plan's sequence, micro-batch and accumulation steps: what one rank trains."""
    return replace(
        setup, seq_len=plan.seq_len, micro_batch_size=plan.micro_batch_size, grad_accum_steps=plan.grad_accum_steps
    )


def as_high(setup: TrainingSetup) -> TrainingSetup:
    """The setup with two micro-batches at most: a third is as high as the second."""
    return replace(setup, grad_accum_steps=min(setup.grad_accum_steps, 2))


def second_step(setup: TrainingSetup, layout: Layout | None = None) -> MemoryTimeline:
    """A second step by formula; of one rank of ``layout``, if given."""
    setup = as_high(setup)
    return (estimate_sharded(setup, layout) if layout else estimate_memory(setup)).for_step(2)


@lru_cache(maxsize=8192)
def peak_of(setup: TrainingSetup, layout: Layout | None = None) -> Instant:
    """The highest moment of a second step; remembered for more setups than one job has plans or a slider places."""
    return second_step(setup, layout).peak


def least_seconds(setup: TrainingSetup, card: Card) -> float:
    """Seconds of a step's forwards and backwards that no kernel goes below on ``card``, by its data sheet's rates.

    A pass does 6 FLOPs a parameter and token, and reads each weight three times: forward, and twice in the backward.
    The larger of the two times counts. So a micro-batch of too few tokens waits for the weights.
    """
    num_parameters, precision = count_parameters(setup.model), setup.precision
    rates = card.peak_tflops
    rate = rates.get(precision.compute_dtype, rates["float32"]) * 10**12
    arithmetic = 6 * num_parameters * setup.seq_len * setup.micro_batch_size / rate
    weights = 3 * num_parameters * dtype_bits(precision.compute_dtype) / 8 / card.memory_bandwidth
    return setup.grad_accum_steps * max(arithmetic, weights)


def micro_batch_choices(setup: TrainingSetup, plan: BatchPlan) -> list[TrainingSetup]:
    """The plan's window in micro-batches of 1, 2, 4, ... sequences and in one piece, its own among them."""
    num_sequences = plan.micro_batch_size * plan.grad_accum_steps
    sizes = {2**power for power in range(num_sequences.bit_length())} | {plan.micro_batch_size, num_sequences}
    whole = sorted(size for size in sizes if num_sequences % size == 0)
    return [
        planned_setup(setup, replace(plan, micro_batch_size=size, grad_accum_steps=num_sequences // size))
        for size in whole
        if num_sequences // size <= MAX_GRAD_ACCUM_STEPS
    ]
