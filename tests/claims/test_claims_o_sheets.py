"""Proofs of group O, cheat sheets: each line held against a traced step of a small model, torch's own counters, tables.

The step is PyTorch's, run on shapes by ``trace_script``; a rule that a sheet prints for every job must hold for it.
"""

import inspect
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from claims.test_claims_a import BILLION, real_master_step, real_step  # noqa: F401  the ledger names BILLION
from claims.test_claims_g import SETUP as MEASURED
from claims.test_claims_g import measured_peak, weights_of
from claims.test_claims_i import gradient_bytes_after_zero_grad
from claims.test_claims_k import PUBLISHED
from claims.test_claims_m import SEVEN, bytes_each
from claims.test_claims_n import bytes_a_score, saved_by_sdpa
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from book.claims import rounds_to
from memkit.cards import CARDS
from memkit.formula.estimate import estimate_memory
from memkit.measure import saved_bytes
from memkit.models import GPT2_LARGE, LLAMA_2_7B, TINY_LLAMA, ModelConfig, gpt2_config
from memkit.program.transformer import Transformer, training_build
from memkit.recipes import AUTOCAST_BF16, FP32, PURE_BF16, OptimizerConfig
from memkit.recomputation import step_flops
from memkit.setup import TrainingSetup
from memkit.timeline import MemoryTimeline
from memkit.units import GIB, MIB
from stepscope.allocator.caching import CachingAllocator
from stepscope.planner.plan import plan_of
from stepscope.program.sharded import one_rank_of, sharded_build
from stepscope.setup import AdapterConfig, Job, Layout
from stepscope.tracing.trace import trace_script

SMALL = TrainingSetup(
    model=replace(gpt2_config("small", num_layers=4, num_heads=4, hidden_size=256), vocab_size=512),
    seq_len=256,
    micro_batch_size=8,
    dropout=0.1,
    optimizer=OptimizerConfig(implementation="fused"),
)
PAPER_VOLUMES = {0: 2, 2: 2, 3: 3}
"""Models sent a step and rank under plain data parallelism, ZeRO-2 and ZeRO-3: Rajbhandari et al. 2020, section 7."""


@cache
def step(**changes) -> MemoryTimeline:
    """The traced second step of the small model, or of one with changes."""
    return trace_script(training_build(replace(SMALL, **changes))).for_step(2)


def peak_of(**changes) -> int:
    return step(**changes).peak_bytes


def kept(**changes) -> int:
    """Bytes of activations when the forward ends."""
    return step(**changes).at("forward", step=2).parts["activations"]


def gradient_bytes() -> int:
    return step().at("backward", step=2).parts["gradients"]


def less(after: int, before: int) -> float:
    """How much less, in percent."""
    return 100 * (1 - after / before)


@cache
def flops(model: ModelConfig, **changes) -> int:
    """FLOPs of a forward and backward as torch counts them on its meta device, without dropout."""
    setup = replace(
        SMALL, model=model, dropout=0.0, attention="stored", precision=PURE_BF16, **changes
    )
    module = Transformer(setup, device="meta")
    tokens = torch.zeros(1, setup.seq_len, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        module(tokens, tokens).backward()
    return counter.get_total_flops()


@cache
def again_on(model: ModelConfig, seq_len: int = 1024) -> float:
    """What full recomputation adds to the FLOPs, in percent; on a small model torch counts as many."""
    setup = replace(
        SMALL, dropout=0.0, recomputation="full", attention="stored", precision=PURE_BF16
    )
    counted = flops(SMALL.model, recomputation="full") / flops(SMALL.model) - 1
    assert is_about(counted, step_flops(setup).overhead, 0.02)
    return 100 * step_flops(replace(setup, model=model, seq_len=seq_len)).overhead


def is_about(value: float, printed: float, share: float = 0.1) -> bool:
    """Whether a printed round figure is near enough."""
    return abs(value - printed) <= share * printed


def as_printed(figures, **numbers) -> None:
    """What a sheet prints, and the setup that the answer names."""
    assert {name: figures[name] for name in numbers} == numbers


def parameter_bytes(weight: torch.dtype, master: bool) -> float:
    """Bytes a parameter after a real step: weight, its gradient, AdamW's pair, and the FP32 copy that is stepped."""
    step = real_master_step("copied") if master else real_step(torch.optim.AdamW, weight)
    return sum(step.values())


def test_C386(figures):
    whole, pieces = peak_of(), peak_of(micro_batch_size=1, grad_accum_steps=8)
    assert rounds_to(whole / MIB, figures["whole"]) and rounds_to(pieces / MIB, figures["pieces"])
    more = peak_of(micro_batch_size=4, grad_accum_steps=2) - peak_of(micro_batch_size=4)
    assert rounds_to(more / MIB, figures["more"]) and figures["sequences"] == SMALL.micro_batch_size
    figures.settle(same_window=pieces >= whole)


PRODUCT_PAGES_GB = {"RTX 3090": 24, "RTX 4090": 24, "RTX 5090": 32}
"""Source: https://www.nvidia.com/en-us/geforce/graphics-cards/, the page of each card, "Standard Memory Config"."""


def test_C387(figures):
    is_default = (
        inspect.signature(torch.optim.Optimizer.zero_grad).parameters["set_to_none"].default
    )
    assert is_default == figures["is_default"]
    figures.settle(once=True, beside_the_default=gradient_bytes_after_zero_grad() > 0)


def test_C388(figures):
    """What stands on one of four traced ranks after a step, in units of what stands without sharding."""
    setup, found = TrainingSetup(model=replace(TINY_LLAMA, num_layers=12), seq_len=64), {}
    for stage in (0, 1, 3):
        with one_rank_of(figures["ranks"]):
            # DDP's buckets, which count as gradients, hold no second copy of them
            layout = Layout(
                stage=stage, dp_size=figures["ranks"], gradient_as_bucket_view=stage < 2
            )
            built = sharded_build(setup, layout)
            found[stage] = trace_script(built).at("optimizer", step=2).parts
    share = lambda stage, part: found[stage][part] / found[0][part]
    assert figures["ranks"] == 4 and all(
        is_about(share(3, part), 1 / 4) for part in ("weights", "gradients")
    )
    figures.settle(
        **{f"stage {stage}": is_about(share(stage, "optimizer_states"), 1 / 4) for stage in (1, 3)}
    )


def test_C398(figures):
    card, adapter = CARDS["RTX 4090"], AdapterConfig(rank=16)
    as_printed(figures, printed=33, tokens=2048, card_gb=card.label_gb)
    setup = Job(
        model=LLAMA_2_7B,
        precision=PURE_BF16,
        seq_len=2048,
        adapter=adapter,
        optimizer=SMALL.optimizer,
    )
    assert rounds_to(again_on(LLAMA_2_7B, 2048), figures["seven"]) and rounds_to(
        again_on(GPT2_LARGE), figures["large"]
    )
    plans = [plan_of(replace(setup, recomputation=way), card) for way in ("none", "full")]
    assert all(
        rounds_to(plan.peak_bytes / GIB, figures[name])
        for plan, name in zip(plans, ("kept", "again"))
    )
    needed = {"seven": plans[1].fits and not plans[0].fits, "small": not plan_of(SMALL, card).fits}
    figures.settle(**needed, cost=is_about(figures["seven"], 33) and is_about(figures["large"], 33))


def test_C399(figures):
    """By torch's profiler, on the CPU."""
    one, two, four = (
        measured_peak(replace(MEASURED, grad_accum_steps=n)).total_bytes for n in (1, 2, 4)
    )
    assert rounds_to((two - one) / weights_of(MEASURED), figures["gradients"])
    figures.settle(from_two_on=is_about(four, two, 0.001), beside_one=is_about(four, one, 0.001))


def test_C403(figures):
    as_printed(figures, tokens=512)
    plans = [
        plan_of(
            TrainingSetup(model=LLAMA_2_7B, precision=precision, seq_len=512), CARDS["RTX 4090"]
        )
        for precision in (FP32, AUTOCAST_BF16)
    ]
    assert (
        rounds_to(plans[0].peak_bytes / GIB, figures["gib"])
        and CARDS["RTX 4090"].label_gb == figures["card_gb"]
    )
    assert rounds_to(parameter_bytes(torch.float32, False) * SEVEN, figures["states_gb"])
    figures.settle(fp32=not plans[0].fits, autocast=not plans[1].fits)


def test_C405(figures):
    """A sequence of twice the length: torch's own kernels, then whole forwards."""
    as_printed(figures, short=512, long=1024)
    scores = bytes_a_score(saved_by_sdpa(SDPBackend.MATH, torch.float32), 64)
    # so twice the tokens are 4 times the bytes
    assert scores == bytes_a_score(saved_by_sdpa(SDPBackend.MATH, torch.float32, seq=128), 128) > 0
    flash, stored = (
        kept(attention=way, micro_batch_size=2, seq_len=1024)
        / kept(attention=way, micro_batch_size=2, seq_len=512)
        for way in ("flash", "stored")
    )
    assert (
        rounds_to(flash, figures["flash"])
        and rounds_to(stored, figures["stored"])
        and figures["scores"] == 2**2
    )
    figures.settle(scores=scores > 0, flash=is_about(flash, 4), stored=is_about(stored, 4))


def test_C406(figures):
    as_printed(figures, printed=50)
    autocast = less(peak_of(precision=AUTOCAST_BF16), peak_of())
    model, x = nn.Linear(8, 8), torch.ones(1, 8)
    assert rounds_to(autocast, figures["autocast"])
    assert rounds_to(less(peak_of(precision=PURE_BF16), peak_of()), figures["pure"])
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16 and model.weight.dtype == torch.float32
    figures.settle(autocast=is_about(autocast, 50), no_line_changed=model(x).dtype != torch.float32)


def test_C407(figures):
    """On CUDA's allocator, which ``tests/allocator`` holds to recordings of cards."""
    plain, emptied = CachingAllocator(), CachingAllocator()
    for allocator in (plain, emptied):
        allocator.free(allocator.malloc(figures["mib"] * MIB))
        if allocator is emptied:
            before = allocator.allocated_bytes
            allocator.empty_cache()
            assert allocator.allocated_bytes == before
        allocator.malloc(figures["mib"] * MIB)
    asked = [[e.action for e in a.trace].count("segment_alloc") for a in (plain, emptied)]
    assert (
        asked == [figures["kept"], figures["emptied"]]
        and plain.reserved_bytes == emptied.reserved_bytes
    )
    assert figures["mib"] == 64
    figures.settle(
        saves=plain.reserved_bytes > emptied.reserved_bytes, costs_nothing=asked[0] == asked[1]
    )


def test_C408(figures):
    as_printed(figures, low=60, high=70, slower=30, sequences=8)
    large = TrainingSetup(
        model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8, attention="flash", dropout=0.1
    )
    ways = [replace(large, recomputation=way) for way in ("none", "full")]
    wide, again = (estimate_memory(way).for_step(2).peak_bytes for way in ways)
    found = {
        "large": less(again, wide),
        "small": less(peak_of(recomputation="full"), peak_of()),
        "activations": less(kept(recomputation="full"), kept()),
    }
    assert all(rounds_to(found[name], figures[name]) for name in found)
    assert rounds_to(again_on(GPT2_LARGE), figures["flops"])
    figures.settle(
        slower=is_about(figures["flops"], 30),
        **{name: 59.5 < cut <= 70 for name, cut in found.items()},
    )


def test_C411(figures):
    as_printed(figures, least=2, most=5, tokens=2048)
    on_host = parameter_bytes(torch.bfloat16, True) - 2 * torch.bfloat16.itemsize
    assert rounds_to(SEVEN * on_host, figures["host_gb"])
    setup = Job(
        model=LLAMA_2_7B,
        precision=PURE_BF16,
        seq_len=2048,
        recomputation="full",
        place="on the host, gradients too",
    )
    left = estimate_memory(setup).for_step(2).peak_bytes
    slower = PUBLISHED["host_s"] / PUBLISHED["card_s"]
    assert rounds_to(left / GIB, figures["card_gib"]) and rounds_to(slower, figures["slower"])
    figures.settle(no_limit=left == 0, slowdown=2 <= slower <= 5)


@cache
def core_times(seq: int) -> float:
    """What torch's kernel that stores scores saves for its backward, by what the flash kernel saves; heads of 64."""
    q, k, v = (torch.randn(1, 1, seq, 64, requires_grad=True) for _ in range(3))
    with sdpa_kernel(SDPBackend.MATH):
        stored = saved_bytes(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return stored / saved_bytes(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_C419(figures):
    as_printed(figures, low=5, high=20, slow=2, fast=4, saved=75)
    lengths = figures["short"], figures["long"]
    times = [core_times(length) for length in lengths]
    assert lengths == (256, 4096) and rounds_to(times[0], figures["short_times"])
    assert rounds_to(times[1], figures["long_times"])
    eight = less(bytes_each("AdamW8bit"), bytes_each("AdamW"))
    assert rounds_to(eight, figures["eight"])
    figures.settle(long=5 <= times[1] <= 20 and is_about(eight, 75), short=5 <= times[0] <= 20)
