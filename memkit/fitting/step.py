"""The second step of a setup, alone or as one rank of many: how high it is and how long it takes, by formula.

The first step makes the optimizer's states, and each step after the second is like it. Whoever compares setups asks
here: the adviser, the planner, the explorers.
"""

from dataclasses import replace
from functools import lru_cache

from memkit.formats.dtypes import dtype_bits
from memkit.formula.estimate import estimate_memory
from memkit.formula.offload import link_bytes
from memkit.formula.parameters import count_parameters
from memkit.formula.states import state_ledger
from memkit.hardware.cards import Card
from memkit.recomputation.costs import step_flops
from memkit.setup.layouts import Layout
from memkit.setup.recipes import ADAMW, PURE_BF16, PURE_FP16
from memkit.setup.strategies import NONE
from memkit.setup.training import TrainingSetup
from memkit.sharding.step import estimate_sharded
from memkit.sharding.traffic import step_traffic
from memkit.timeline import Instant, MemoryTimeline


def as_high(setup: TrainingSetup) -> TrainingSetup:
    """The setup with two micro-batches at most: a third is as high as the second."""
    return replace(setup, grad_accum_steps=min(setup.grad_accum_steps, 2))


@lru_cache(maxsize=8192)
def second_step(setup: TrainingSetup, layout: Layout | None = None) -> MemoryTimeline:
    """The second step, with two micro-batches at most; of one rank of ``layout``, if given.

    Remembered for more setups than one job has plans or a slider places.
    """
    setup = as_high(setup)
    return (estimate_sharded(setup, layout) if layout else estimate_memory(setup)).for_step(2)


def peak_of(setup: TrainingSetup, layout: Layout | None = None) -> Instant:
    """The highest moment of the second step."""
    return second_step(setup, layout).peak


def seconds_of(setup: TrainingSetup, card: Card, layout: Layout | None = None) -> float:
    """Seconds of a step on paper, nothing hidden behind anything.

    The passes, by the card's rates; 4-bit weights are made 16-bit ones for each. Then what is sent, by the rate of the
    links, or of PCIe where there are none, and what goes to the host and back.
    """
    inside = {"bfloat16": PURE_BF16, "float16": PURE_FP16}.get(layout and layout.param_dtype, setup.precision)
    computed = replace(setup, precision=inside)
    passes = passes_of(replace(computed, micro_batch_size=1, grad_accum_steps=1, optimizer=ADAMW))
    seconds = least_seconds(computed, card) * passes / 3
    num_parameters, weight_bits = count_parameters(setup.model), dtype_bits(setup.precision.weight_dtype)
    if setup.adapter and setup.adapter.base == "nf4":
        unpacked = num_parameters * (4 + weight_bits) // 8  # read, and written
        seconds += setup.grad_accum_steps * passes * unpacked / card.memory_bandwidth
    moved = sum(link_bytes(setup).values()) if setup.optimizer.is_on_host else 2 * paged_bytes(setup)
    seconds += moved / card.pcie_bytes_per_s
    if layout is None:
        return seconds
    seconds += step_traffic(setup, layout).seconds(card.link_bytes_per_s or card.pcie_bytes_per_s)
    if layout.offloads:
        share = num_parameters * weight_bits // 8 // layout.dp_size
        seconds += 3 * setup.grad_accum_steps * share / card.pcie_bytes_per_s
    return seconds


def least_seconds(setup: TrainingSetup, card: Card) -> float:
    """Seconds of a step's forwards and backwards that no kernel goes below on ``card``, by its data sheet's rates.

    A pass does 6 FLOPs a parameter and token, and reads each weight three times: forward, and twice in the backward.
    The larger of the two times counts. So a micro-batch of too few tokens waits for the weights.
    """
    num_parameters, precision = count_parameters(setup.model), setup.precision
    rates = card.peak_tflops
    rate = rates.get(precision.compute_dtype, rates["float32"]) * 10**12
    arithmetic = 6 * num_parameters * setup.tokens_per_micro_batch / rate
    weights = 3 * num_parameters * dtype_bits(precision.compute_dtype) / 8 / card.memory_bandwidth
    return setup.grad_accum_steps * max(arithmetic, weights)


@lru_cache(maxsize=1024)
def passes_of(setup: TrainingSetup) -> float:
    """Passes through the model by their FLOPs, three where all is trained and nothing runs again.

    The same for every optimizer, size and number of micro-batches. A frozen weight has no gradient to compute.

    >>> from memkit.setup.adapters import AdapterConfig
    >>> from memkit.setup.models import LLAMA_2_7B
    >>> setup = TrainingSetup(model=LLAMA_2_7B, seq_len=2048, precision=PURE_BF16, adapter=AdapterConfig(rank=16))
    >>> [round(passes_of(replace(setup, recomputation=strategy)), 2) for strategy in ("none", "full")]
    [2.09, 2.86]
    """
    plain = replace(setup, adapter=None, recomputation=NONE)
    return 3 * step_flops(setup).total / step_flops(plain).total


def paged_bytes(setup: TrainingSetup) -> int:
    """Bytes of paged states, which may stand on the host: at worst each comes to the card and goes in every step."""
    if not setup.optimizer.record.is_paged:
        return 0
    states = state_ledger(setup.model, setup.precision, setup.optimizer, setup.adapter)
    return sum(tensor.num_bytes for tensor in states if tensor.is_on_host)
