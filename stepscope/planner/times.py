"""The second step of a setup, alone or as one rank of many: how high it is and how long it takes, by formula.

The first step makes the optimizer's states, and each step after the second is like it. Whoever compares setups asks
here: the adviser, the planner, the explorers.
"""

import math
from dataclasses import replace
from functools import lru_cache

from memkit import batch_plan
from memkit.cards import Card
from memkit.formats.records import dtype_bits
from memkit.formula.estimate import second_step
from memkit.formula.parameters import count_by_kind, count_parameters
from memkit.models import ModelConfig
from memkit.recipes import Precision
from memkit.recomputation import step_flops
from memkit.setup import TrainingSetup
from memkit.strategies import FULL, FULL_NO_STOP, NONE, Strategy
from memkit.timeline import Instant, MemoryTimeline
from stepscope.experts import num_experts_of
from stepscope.formula import (
    host_bytes,
    job_state_bytes,
    job_state_ledger,
)
from stepscope.optimizers import is_paged
from stepscope.setup import Job, Layout, as_job
from stepscope.sharding import estimate_sharded, step_traffic

HOST_BYTES_PER_S = 2 * 8 * 5_600 * 10**6
"""What a desktop's memory moves: two channels of 8 bytes at 5,600 million transfers a second (DDR5-5600)."""


@lru_cache(maxsize=8192)
def second_step_of_rank(setup: TrainingSetup, layout: Layout) -> MemoryTimeline:
    """``second_step`` of one rank of ``layout``."""
    return estimate_sharded(as_high(setup), layout).for_step(2)


def as_high(setup: TrainingSetup) -> TrainingSetup:
    """The setup with two micro-batches at most: a third is as high as the second."""
    return replace(setup, grad_accum_steps=min(setup.grad_accum_steps, 2))


def peak_of(setup: TrainingSetup, layout: Layout | None = None) -> Instant:
    """The highest moment of the second step."""
    return (second_step_of_rank(setup, layout) if layout else second_step(setup)).peak


def seconds_of(setup: TrainingSetup, card: Card, layout: Layout | None = None) -> float:
    """Seconds of a step on paper, nothing hidden behind anything: the sum of ``seconds_by_term``."""
    return sum(seconds_by_term(setup, card, layout).values())


def seconds_by_term(
    setup: TrainingSetup, card: Card, layout: Layout | None = None
) -> dict[str, float]:
    """What a step's time on paper is made of, by the rates of the card and of a host.

    The passes through the model; 4-bit weights are made 16-bit ones for each. What an optimizer on the host, or its
    paged states, send over PCIe, and the step that the host's memory makes. What the ranks send each other, by the rate
    of the links, or of PCIe where these do not join all, and the shards that come from the host. An optimizer's pass
    over weights and states on the card is left out: every plan has one, and its bytes cross at the card's own rate.
    """
    setup = as_job(setup)
    dtype, passes, pcie = setup.precision.compute_dtype, passes_of(setup), card.pcie_bytes_per_s
    terms = {
        "passes": least_seconds(setup, card, (layout and layout.param_dtype) or dtype) * passes / 3
    }
    weight_bits = dtype_bits(setup.precision.weight_dtype)
    if setup.adapter and setup.adapter.base == "nf4":
        # bitsandbytes leaves experts as they are
        num_packed = parameters_of(setup.model) - experts_of(setup.model)
        unpacked = num_packed * (4 + weight_bits) // 8  # read, and written
        terms["unpacking"] = setup.grad_accum_steps * passes * unpacked / card.memory_bandwidth
    if setup.place.is_on_host:
        kept = kept_on_host(at_rest(setup))
        moved = setup.grad_accum_steps * kept["gradients"] + kept["weights"]
        terms["host"] = moved / pcie
        terms["host step"] = stepped_bytes(kept) / HOST_BYTES_PER_S
    elif is_paged(setup.optimizer.record):
        terms["paged"] = 2 * paged_bytes(at_rest(setup)) / pcie
    if layout is None:
        return terms
    terms["links"] = step_traffic(setup, layout).sent_bytes / card.bytes_per_s_among(
        layout.world_size
    )
    if layout.offloads:
        share = parameters_of(setup.model) * weight_bits // 8 // layout.dp_size
        gathers = 2 if layout.stage == 3 else 1
        # gathered, and gradients sent
        terms["shards"] = setup.grad_accum_steps * (gathers + 1) * share / pcie
        whole = stepped_bytes(resting_bytes(at_rest(setup)))
        terms["host step"] = whole / HOST_BYTES_PER_S  # all ranks' shares are in one host
    return terms


def stepped_bytes(kept: dict[str, int]) -> int:
    """What a step on the host moves in its memory: gradients are read, weights and states read and written."""
    return kept["gradients"] + 2 * kept["weights"] + 2 * kept["optimizer_states"]


def at_rest(setup: Job) -> Job:
    """The job by what it keeps between steps alone: the key under which those bytes are remembered."""
    return Job(
        model=setup.model,
        precision=setup.precision,
        optimizer=setup.optimizer,
        adapter=setup.adapter,
        place=setup.place,
        seq_len=1,
        attention="stored",
    )


resting_bytes = lru_cache(maxsize=512)(job_state_bytes)


kept_on_host = lru_cache(maxsize=256)(host_bytes)


@lru_cache(maxsize=256)
def paged_bytes(resting: Job) -> int:
    """Bytes of paged states, which may stand on the host: at worst each comes to the card and goes in every step."""
    tensors = job_state_ledger(resting) if is_paged(resting.optimizer.record) else ()
    return sum(tensor.num_bytes for tensor in tensors if tensor.is_in_host)


parameters_of = lru_cache(maxsize=64)(count_parameters)


@lru_cache(maxsize=64)
def experts_of(model: ModelConfig) -> int:
    """Parameters of all experts, of which a token uses a few."""
    return count_by_kind(model).get("experts", 0)


def least_seconds(setup: TrainingSetup, card: Card, dtype: str = "") -> float:
    """``memkit.batch_plan.least_seconds``, which reads all experts and computes with a few of them."""
    model = setup.model
    num_experts = num_experts_of(model)
    unused = (
        experts_of(model) * (num_experts - model.experts_per_token) // num_experts
        if num_experts
        else 0
    )
    return batch_plan.least_seconds(setup, card, dtype, parameters_of(model) - unused)


def one_sequence(setup: Job, weight_dtype: str, compute_dtype: str, base: str = "") -> Job:
    """The job by what one sequence alone depends on, in these dtypes and with nothing run again: a key too."""
    return Job(
        model=setup.model,
        precision=Precision(name="", weight_dtype=weight_dtype, compute_dtype=compute_dtype),
        seq_len=setup.seq_len,
        attention=setup.attention,
        dropout=setup.dropout,
        uses_fused_norm=setup.uses_fused_norm,
        upcasts_logits=setup.upcasts_logits,
        device=setup.device,
        adapter=replace(setup.adapter, base=base) if setup.adapter and base else setup.adapter,
        loss_pieces=math.gcd(setup.loss_pieces, setup.seq_len),
    )


def passes_of(setup: Job) -> float:
    """Passes through the model by their FLOPs, three where all is trained and nothing runs again.

    The same for every precision, optimizer, size and number of micro-batches. A frozen weight has no gradient to
    compute.

    >>> from memkit.models import LLAMA_2_7B
    >>> from memkit.recipes import PURE_BF16
    >>> from stepscope import AdapterConfig
    >>> setup = Job(model=LLAMA_2_7B, seq_len=2048, precision=PURE_BF16, adapter=AdapterConfig(rank=16))
    >>> [round(passes_of(replace(setup, recomputation=strategy)), 2) for strategy in ("none", "full")]
    [2.09, 2.86]
    """
    strategy, model = setup.recomputation, setup.model
    one = one_sequence(setup, "bfloat16", "bfloat16", "as loaded")
    is_plain = strategy.scope == "blocks" and strategy.stops_early and not strategy.saved_ops
    if not is_plain or len(model.blocks_by_kind) > 1:
        return passes_by(one, strategy)
    none, full, whole = (passes_by(one, way) for way in (NONE, FULL, FULL_NO_STOP))
    num_regions, num_blocks = run_again(strategy, model.num_layers)
    stopped = (whole - full) * num_regions  # the end of each region's last block
    return none + ((whole - none) * num_blocks - stopped) / model.num_layers


@lru_cache(maxsize=1024)
def run_again(strategy: Strategy, num_layers: int) -> tuple[int, int]:
    """How many regions run again, and how many blocks are in them."""
    sizes = [len(blocks) for blocks, is_again in strategy.regions(num_layers) if is_again]
    return len(sizes), sum(sizes)


@lru_cache(maxsize=1024)
def passes_by(one: Job, strategy: Strategy) -> float:
    """Passes through the model by their FLOPs."""
    flops = step_flops(replace(one, recomputation=strategy))
    return 3 * flops.total / flops_of(replace(one, adapter=None, loss_pieces=1))


@lru_cache(maxsize=64)
def flops_of(setup: Job) -> int:
    """FLOPs of its step."""
    return step_flops(setup).total
