"""From a batch in tokens to micro-batches, for chapter 05: how many forwards, on how many ranks, before one step.

A global batch is ``seq_len`` · ``micro_batch_size`` · ``grad_accum_steps`` · ``dp_size`` tokens. Three of the five
numbers are usually given: the batch (by the recipe), the sequence (by the data) and the ranks (by the budget). The
micro-batch is then bounded by memory, and the accumulation steps follow, if they are a whole number.
"""

import math
from dataclasses import dataclass

from memkit.cards import Card
from memkit.formats.records import dtype_bits
from memkit.formula.parameters import count_parameters
from memkit.setup import MAX_GRAD_ACCUM_STEPS, TrainingSetup
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
        names = {"micro_batch_size": "sequence", "grad_accum_steps": "accumulation step"}
        text = f"{self.seq_len:,} tokens"
        for field, name in (names | {"dp_size": "rank"}).items():
            count = getattr(self, field)
            text += f" × {count} {name}{'' if count == 1 else 's'}"
        return f"{text} = {format_count(self.global_batch_tokens)} tokens"


def nearest_plans(
    tokens: int, *, seq_len: int, micro_batch_size: int, dp_size: int = 1
) -> tuple[BatchPlan, ...]:
    """The largest plan of at most ``tokens``, if one pass is not more already, and the smallest of more.

    Raises: ValueError: a size below 1.

    >>> [plan.grad_accum_steps for plan in nearest_plans(4_000_000, seq_len=8192, micro_batch_size=1)]
    [488, 489]
    """
    given = {"seq_len": seq_len, "micro_batch_size": micro_batch_size, "dp_size": dp_size}
    sizes = {name: as_whole_number(name, value, 1) for name, value in given.items()}
    steps = as_whole_number("tokens", tokens, 1) // math.prod(sizes.values())
    return tuple(
        BatchPlan(**sizes, grad_accum_steps=number) for number in (steps, steps + 1) if number
    )


def cuts_of(num_sequences: int) -> list[tuple[int, int]]:
    """Every way to see so many sequences between two steps: (sequences in a micro-batch, micro-batches).

    >>> cuts_of(4)
    [(1, 4), (2, 2), (4, 1)]
    """
    counts = range(min(num_sequences, MAX_GRAD_ACCUM_STEPS), 0, -1)
    return [(num_sequences // count, count) for count in counts if num_sequences % count == 0]


def least_seconds(
    setup: TrainingSetup, card: Card, dtype: str = "", num_used: int | None = None
) -> float:
    """Seconds of a step's forwards and backwards that no kernel goes below on ``card``, by its data sheet's rates.

    ``dtype`` is that of the products, if it is not the precision's; ``num_used`` are the parameters that a token uses,
    if not all. A pass does 6 FLOPs a token and parameter that it uses, and reads each weight three times: forward, and
    twice in the backward. The larger of the two times counts. So a micro-batch of too few tokens waits for the weights.
    """
    dtype, count = dtype or setup.precision.compute_dtype, count_parameters(setup.model)
    rate = card.peak_tflops.get(dtype, card.peak_tflops["float32"]) * 10**12
    arithmetic = 6 * (count if num_used is None else num_used) * setup.tokens_per_micro_batch / rate
    weights = 3 * count * dtype_bits(dtype) / 8 / card.memory_bandwidth
    return setup.grad_accum_steps * max(arithmetic, weights)
