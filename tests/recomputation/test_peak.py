"""The predicted peak of every strategy against the trace of the real step, replayed through the same allocator."""

from collections import Counter
from dataclasses import replace

import pytest

from memkit.allocator.caching import CachingAllocator
from memkit.allocator.config import AllocatorConfig
from memkit.allocator.heap import Driver
from memkit.allocator.replays import Player, Replay
from memkit.allocator.trace_replay import replay_trace
from memkit.allocator.workspaces import workspace_bytes
from memkit.formula.estimate import estimate_memory
from memkit.program.transformer import strategy_build
from memkit.setup.models import GPT2_LARGE, LLAMA_3_8B
from memkit.setup.recipes import AUTOCAST_BF16, PURE_BF16, OptimizerConfig
from memkit.setup.strategies import (
    CORE,
    FULL,
    FULL_NO_STOP,
    FULL_REENTRANT,
    HOST,
    NONE,
    SAVE_ATTENTION,
    SAVE_EVERY_SECOND,
    SAVE_PRODUCTS,
    every,
    groups,
    policy,
    sequential,
)
from memkit.setup.training import TrainingSetup
from memkit.timeline import MemoryTimeline
from memkit.tracing.trace import trace_memory

EXPANDABLE = AllocatorConfig(expandable_segments=True)
LLAMA = TrainingSetup(
    model=replace(
        LLAMA_3_8B, num_layers=3, hidden_size=1024, num_heads=8, num_kv_heads=2, head_dim=128, intermediate_size=2816
    ),
    precision=PURE_BF16, micro_batch_size=8, seq_len=1024, optimizer=OptimizerConfig(implementation="fused"),
)
GPT2 = TrainingSetup(
    model=replace(GPT2_LARGE, num_layers=4), precision=AUTOCAST_BF16, micro_batch_size=8, attention="stored",
    dropout=0.1,
)
STRATEGIES = (
    NONE, CORE, SAVE_PRODUCTS, SAVE_EVERY_SECOND, SAVE_ATTENTION, FULL, FULL_NO_STOP, every(2), groups(2),
    sequential(2), policy("own list", "gelu", "silu", "bmm"),
)


def on_a100(timeline: MemoryTimeline) -> Replay:
    return replay_trace(timeline, EXPANDABLE, compute_capability=(8, 0))


@pytest.mark.parametrize("setup", [LLAMA, GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_the_peak_is_the_traces(setup, strategy):
    predicted = on_a100(estimate_memory(setup.under(strategy)))  # reserved hangs on the order of small requests
    replayed = on_a100(trace_memory(strategy_build(setup, strategy)))
    assert predicted.peak_allocated_bytes == pytest.approx(replayed.peak_allocated_bytes, rel=0.003)
    assert predicted.peak_reserved_bytes == pytest.approx(replayed.peak_reserved_bytes, rel=0.03)


@pytest.mark.parametrize("name, strategy", [("none", NONE), ("selective", CORE), ("full", FULL)])
def test_the_spines_recomputations_are_the_estimates(name, strategy):
    estimated = estimate_memory(replace(GPT2, recomputation=name)).peak_bytes
    beyond = on_a100(estimate_memory(GPT2.under(strategy))).peak_allocated_bytes - estimated
    assert workspace_bytes((8, 0)) <= beyond <= 2 * workspace_bytes((8, 0)) + 0.003 * estimated  # and unsplit blocks


def test_what_has_no_formula_says_so():
    for strategy in (FULL_REENTRANT, HOST):
        with pytest.raises(ValueError, match="trace it"):
            estimate_memory(LLAMA.under(strategy))
    with pytest.raises(ValueError, match="recomputation='full' of the setup and strategy='none'"):
        replace(LLAMA, recomputation="full").under(NONE)


@pytest.mark.parametrize("changes", [{}, {"grad_accum_steps": 3, "sets_grads_to_none": False}], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_the_events_of_an_estimate_are_its_instants(strategy, changes):
    """Layers written once and multiplied, against every block written out, freed and counted one by one."""
    model = replace(LLAMA.model, num_layers=9)
    timeline = estimate_memory(replace(LLAMA, model=model, recomputation=strategy, **changes))
    replayed = replay_trace(timeline, EXPANDABLE).timeline
    assert [i.name for i in replayed.instants] == [i.name for i in timeline.instants]
    for instant, again in zip(timeline.instants, replayed.instants, strict=True):
        assert again.total_bytes == pytest.approx(instant.total_bytes, rel=0.003)  # the allocator's unsplit rests
    live = {}
    for event in timeline.events:
        assert live.pop(event.block, event.num_bytes) == abs(event.num_bytes)
        if event.num_bytes > 0:
            live[event.block] = event.num_bytes
    assert sum(-(-size // 512) * 512 for size in live.values()) == timeline.instants[-1].total_bytes


def test_what_chapter_04_leaves_between_formula_and_trace_is_unsplit_rests_of_optimizer_states():
    setup = TrainingSetup(
        model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8, optimizer=OptimizerConfig(implementation="fused")
    )
    traced = trace_memory(strategy_build(setup, FULL), steps=2)
    requested, rests, allocated = at_peak(traced)
    by_formula, more_rests, more_allocated = at_peak(estimate_memory(setup.under(FULL), 2))
    assert by_formula == requested  # the same tensors
    assert not rests - more_rests
    more = list((more_rests - rests).elements())
    assert [part for part, _ in more] == ["optimizer_states"] * 2
    assert sum(rest for _, rest in more) == more_allocated - allocated == 841_216


def at_peak(timeline) -> tuple[Counter, Counter, int]:
    """The tensors at the peak on an A100, what their blocks are too large by, and all allocated bytes."""
    peak_event = replay_trace(timeline, compute_capability=(8, 0)).peak_event
    player = Player(CachingAllocator(None, Driver(None, 0)), workspace_bytes((8, 0)))
    for event in timeline.events[: peak_event + 1]:
        player.play(event)
    requested, rests = Counter(), Counter()
    for address, event in player.live.values():
        requested[event.part, event.num_bytes] += 1
        rest = player.allocator.blocks[address].size + -event.num_bytes // 512 * 512
        if rest:
            rests[event.part, rest] += 1
    return requested, rests, player.allocator.allocated_bytes
