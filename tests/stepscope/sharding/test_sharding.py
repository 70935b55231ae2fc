"""One rank of many by formula: against PyTorch's own step in a group that sends nothing, and the ZeRO paper."""

from dataclasses import replace

import pytest
import torch

from memkit import TrainingSetup, count_parameters, models, recipes
from memkit.formula.parameters import parameter_ledger
from memkit.strategies import every
from stepscope import trace_script
from stepscope.experts import experts_config
from stepscope.program.sharded import one_rank_of, sharded_build
from stepscope.setup import Layout
from stepscope.sharding import (
    Traffic,
    estimate_sharded,
    resting_bytes,
    shard,
    step_traffic,
    tokens_to_hide,
    zero_saving,
)

GB = 10**9
LLAMA = TrainingSetup(model=replace(models.TINY_LLAMA, num_layers=3), seq_len=64)
GPT = TrainingSetup(model=replace(models.TINY_GPT2, num_layers=3), seq_len=64)
ONE_BLOCK = replace(GPT, model=replace(GPT.model, num_layers=1, vocab_size=256))
EXPERTS = replace(
    LLAMA, model=experts_config(LLAMA.model, num_experts=6, experts_per_token=2, expert_size=64)
)
IN_BF16 = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}
CASES = [
    (LLAMA, Layout(stage=0)),
    (LLAMA, Layout(stage=0, gradient_as_bucket_view=True)),
    (LLAMA, Layout(stage=1)),
    (LLAMA, Layout(stage=2)),
    (LLAMA, Layout(stage=3)),
    (ONE_BLOCK, Layout(stage=2, dp_size=2, param_dtype="bfloat16")),  # highest while it is reduced
    (replace(ONE_BLOCK, grad_accum_steps=2), Layout(stage=2, dp_size=2, **IN_BF16)),
    (GPT, Layout(stage=3, dp_size=1)),
    (GPT, Layout(stage=3, dp_size=512)),
    (GPT, Layout(stage=3, **IN_BF16)),
    (LLAMA, Layout(stage=3, dp_size=4, num_replicas=2, param_dtype="bfloat16")),
    (LLAMA, Layout(stage=3, offloads=True)),
    (replace(LLAMA, recomputation="full"), Layout(stage=3)),
    (replace(LLAMA, precision=recipes.PURE_BF16), Layout(stage=3)),
    (replace(LLAMA, grad_accum_steps=2), Layout(stage=3)),
    (replace(LLAMA, grad_accum_steps=2), Layout(stage=3, dp_size=3, num_replicas=2, **IN_BF16)),
    (replace(LLAMA, precision=recipes.PURE_BF16), Layout(stage=3, num_replicas=4, offloads=True)),
    (replace(GPT, grad_accum_steps=2), Layout(stage=0, gradient_as_bucket_view=True)),
    (EXPERTS, Layout(stage=1)),
    (EXPERTS, Layout(stage=3, dp_size=4, **IN_BF16)),  # six experts on four ranks
]


def test_blocks_of_two_kinds_are_left_to_the_trace():
    mixed = replace(EXPERTS, model=replace(EXPERTS.model, name="a mixture", dense_layers=(0,)))
    with pytest.raises(
        ValueError,
        match="a mixture has blocks with and without experts, groups of two sizes; trace",
    ):
        estimate_sharded(mixed, Layout(stage=3))
    assert estimate_sharded(mixed, Layout(stage=1)).peak_bytes > 0


def traced(setup, layout):
    with one_rank_of(layout.world_size):
        return trace_script(sharded_build(setup, layout))


@pytest.mark.parametrize(
    "setup, layout", CASES, ids=lambda case: getattr(case, "name", "") or case.model.name
)
def test_the_formula_is_the_trace_at_every_instant(setup, layout):
    """The step of PyTorch's own classes, one rank of many, on tensors without bytes."""
    formula, trace = estimate_sharded(setup, layout), traced(setup, layout)
    for instant in formula.for_step(2).instants:  # DDP cuts its buckets anew in the first
        has_batches = instant.name.startswith(("forward", "backward"))
        seen = max(  # ZeroRedundancyOptimizer has another optimizer inside: two of each instant
            other.total_bytes
            for other in trace.instants
            if (other.name, other.step) == (instant.name, 2)
            and (not has_batches or other.micro_batch == instant.micro_batch)
        )
        assert instant.total_bytes == seen, instant
    assert formula.peak_bytes == trace.peak_bytes


@pytest.mark.parametrize(
    "layout", [Layout(dp_size=4), Layout(dp_size=2, num_replicas=2)], ids=["ZeRO-3", "HSDP"]
)
def test_gradients_held_back_stay_whole(layout):
    """PyTorch's own: without a sync FSDP2 keeps each whole gradient until the last micro-batch."""
    window = replace(LLAMA, grad_accum_steps=2)
    kept, peaks = [], []
    for syncs_each in (True, False):
        with one_rank_of(layout.world_size):
            step = trace_script(sharded_build(window, layout, syncs_each=syncs_each)).for_step(2)
        kept.append([i.gradients for i in step.instants if i.name == "backward"])
        peaks.append(step.peak_bytes)
    whole = 4 * count_parameters(LLAMA.model)
    assert kept[0] == pytest.approx([whole / layout.dp_size] * 2, rel=0.01)
    assert (
        kept[1] == pytest.approx([whole, whole / layout.dp_size], rel=0.01) and peaks[1] > peaks[0]
    )


@pytest.mark.parametrize(
    "layout", [Layout(stage=stage) for stage in range(4)], ids=lambda layout: layout.name
)
def test_the_events_are_the_instants(layout):
    """Every block that is born dies once, and written out whole the step is the one with layers multiplied."""
    setup = replace(LLAMA, model=replace(LLAMA.model, num_layers=6))
    timeline, now, alive = estimate_sharded(setup, layout), 0, {}
    highest = 0
    for event in timeline.events:
        if event.num_bytes > 0:
            assert event.block not in alive
            alive[event.block] = event.num_bytes
        else:
            assert alive.pop(event.block) == -event.num_bytes
        now += -(-abs(event.num_bytes) // 512) * 512 * (1 if event.num_bytes > 0 else -1)
        highest = max(highest, now)
    assert highest == timeline.peak_bytes


@pytest.mark.parametrize(
    "billions, num_ranks, printed",
    [
        (7.5, 1, (120, 120, 120)),
        (7.5, 4, (52.5, 41.3, 30)),
        (7.5, 16, (35.6, 21.6, 7.5)),
        (7.5, 64, (31.4, 16.6, 1.88)),
        (7.5, 256, (30.4, 15.4, 0.47)),
        (7.5, 1024, (30.1, 15.1, 0.12)),
        (128, 4, (896, 704, 512)),
        (128, 16, (608, 368, 128)),
        (128, 64, (536, 284, 32)),
        (128, 1024, (513, 257, 2)),
        (1000, 16, (4750, 2875, 1000)),
        (1000, 64, (4187, 2218, 250)),
        (1000, 1024, (4011, 2013, 15.6)),
    ],
)
def test_the_zero_paper_s_own_table(billions, num_ranks, printed):
    """Table 1 of arXiv:1910.02054, GB per device."""
    for stage, gigabytes in enumerate(printed, start=1):
        ours = sum(resting_bytes(int(billions * GB), stage, num_ranks).values()) / GB
        assert ours == pytest.approx(gigabytes, rel=0.005, abs=0.005)


@pytest.mark.parametrize(
    "num_parameters, stage, num_ranks",
    [(GB, 4, 8), (GB, -1, 8), (GB, 1, 0), (0, 1, 8), (GB, 1, 2.5)],
)
def test_what_is_no_stage_and_no_number_of_ranks_is_refused(num_parameters, stage, num_ranks):
    with pytest.raises(ValueError, match=r"(stage|num_ranks|num_parameters)=(4|-1|0|2\.5) "):
        resting_bytes(num_parameters, stage, num_ranks)


@pytest.mark.parametrize("num_ranks", [1, 2, 8, 512])
def test_all_ranks_together_keep_what_one_keeps_alone(num_ranks):
    whole, share = (sum(resting_bytes(7 * GB, stage, num_ranks).values()) for stage in (0, 3))
    assert share * num_ranks == pytest.approx(whole, rel=1e-6)
    assert zero_saving(3, num_ranks) == pytest.approx(num_ranks)
    if num_ranks == 1:
        assert share == whole


def test_a_share_is_a_chunk_of_torch():
    """``fully_shard`` cuts along the first axis as ``torch.chunk`` does, and pads; rank 0 has the first."""
    for size in (3, 8, 64):
        for whole in parameter_ledger(LLAMA.model):
            assert (
                torch.chunk(torch.empty(whole.shape, device="meta"), size)[0].shape
                == shard(whole, size).shape
            )


@pytest.mark.parametrize("ranks, replicas", [(2, 8), (8, 2), (4, 1)])
def test_a_ring_sends_what_nccls_own_tests_count(ranks, replicas):
    """nccl-tests, doc/PERFORMANCE.md: 2 (n - 1) / n of an all-reduce's bytes, (n - 1) / n of a gather's."""
    traffic = Traffic(
        num_ranks=ranks,
        all_reduce_ranks=replicas,
        all_gathered=800,
        reduce_scattered=80,
        all_reduced=8,
    )
    gathered, reduced = 880 * (ranks - 1) / ranks, 8 * 2 * (replicas - 1) / replicas
    assert traffic.sent_bytes == gathered + reduced


def test_traffic_in_the_paper_s_unit():
    """Section 7: DDP 2 P, stages 1 and 2 as much, stage 3 3 P; torch's own ZeRO-1 sends 3 P."""
    setup = TrainingSetup(model=models.LLAMA_2_7B)
    whole = 4 * count_parameters(setup.model)
    moved = [step_traffic(setup, Layout(stage=stage)).moved_bytes / whole for stage in range(4)]
    assert moved[:3] == [2, 3, 2] and 2.9 < moved[3] < 3
    many = replace(setup, grad_accum_steps=4)
    assert step_traffic(many, Layout(stage=0)).moved_bytes == 8 * whole
    assert step_traffic(many, Layout(stage=0), syncs_each=False).moved_bytes == 2 * whole
    hybrid = step_traffic(setup, Layout(stage=3, dp_size=8, num_replicas=4))
    assert hybrid.all_reduced * 8 == whole and hybrid.all_reduce_ranks == 4


@pytest.mark.parametrize(
    "choices, words",
    [
        ({"stage": 4}, "stage=4"),
        ({"stage": -1}, "stage=-1"),
        ({"dp_size": 0}, "dp_size=0"),
        ({"param_dtype": "int5"}, "param_dtype='int5'"),
        ({"stage": 0, "offloads": True}, "offloads=True"),
        ({"stage": 1, "num_replicas": 2}, "num_replicas=2"),
        ({"stage": 3, "gradient_as_bucket_view": True}, "gradient_as_bucket_view"),
        ({"dp_size": 1 << 20, "num_replicas": 2}, "ranks"),
    ],
)
def test_a_layout_that_torch_does_not_have_is_refused(choices, words):
    with pytest.raises(ValueError, match=words):
        Layout(**choices)


def test_what_the_formula_cannot_say_is_refused():
    with pytest.raises(ValueError, match="trace it"):
        estimate_sharded(replace(LLAMA, recomputation=every(2)), Layout())


OFTEN = {(models.LLAMA_2_7B, 2), (models.LLAMA_2_7B, 512)}
"""What every run of the tests traces; the rest takes minutes."""


@pytest.mark.parametrize(
    "model, size",
    [
        pytest.param(model, size, marks=() if (model, size) in OFTEN else pytest.mark.exhaustive)
        for model in (models.LLAMA_2_7B, models.LLAMA_3_70B)
        for size in (2, 8, 64, 512)
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_one_rank_of_many_of_a_large_model(model, size):
    setup = TrainingSetup(model=model, seq_len=512)
    layout = Layout(stage=3, dp_size=size, **IN_BF16)
    peaks = [
        timeline.for_step(2).peak_bytes
        for timeline in (estimate_sharded(setup, layout), traced(setup, layout))
    ]
    assert peaks[0] == pytest.approx(peaks[1], rel=1e-4)


@pytest.mark.parametrize(
    "num_layers, size, printed_gb",
    [
        (1, 2, None),
        pytest.param(32, 8, 2.96, marks=pytest.mark.exhaustive),
        pytest.param(32, 512, None, marks=pytest.mark.exhaustive),
    ],
)
def test_offload_of_a_large_model(num_layers, size, printed_gb):
    """Shards on the host above and below what a trace makes of real tensors; GB is what chapter 11 prints."""
    model = replace(models.LLAMA_2_7B, num_layers=num_layers)
    setup = TrainingSetup(model=model, seq_len=512, recomputation="full")
    layout = Layout(stage=3, dp_size=size, offloads=True, **IN_BF16)
    peaks = [
        timeline.for_step(2).peak_bytes
        for timeline in (estimate_sharded(setup, layout), traced(setup, layout))
    ]
    assert peaks[0] == pytest.approx(peaks[1], rel=1e-4)
    if printed_gb:
        assert peaks[1] == pytest.approx(printed_gb * GB, rel=0.002)


def test_the_scaling_book_s_2475_tokens_hide_a_gather_between_nodes_of_eight_h100():
    """jax-ml.github.io/scaling-book/gpus: 990e12 FLOPs per second over 400e9 bytes per second into a node."""
    in_bf16 = Layout(param_dtype="bfloat16", reduce_dtype="bfloat16")
    assert tokens_to_hide(LLAMA, in_bf16, 990e12, 400e9) == 2475
    # 2 + 4 bytes beside 4 FLOPs
    assert tokens_to_hide(LLAMA, Layout(**IN_BF16), 990e12, 400e9) == 1.5 * 2475
    assert (
        tokens_to_hide(replace(LLAMA, recomputation="full"), Layout(**IN_BF16), 990e12, 400e9)
        == 2475
    )
    # float32, gathered once
    assert tokens_to_hide(LLAMA, Layout(stage=2), 990e12, 400e9) == 2 * 2475
    # all-reduced, behind the backward
    assert tokens_to_hide(LLAMA, Layout(stage=0), 990e12, 400e9) == 2 * 2475
