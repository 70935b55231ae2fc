"""Proofs of group J, many GPUs: what a rank keeps, from PyTorch's own step; what it sends, from real ranks."""

import warnings
from dataclasses import replace
from functools import cache

import torch
import torch.distributed as dist
from claims.test_claims_a import parameters_of
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from book.ranks import run_on_ranks
from book.training_ranks import steps
from memkit.models import LLAMA_2_7B, TINY_LLAMA
from memkit.program.transformer import Transformer
from memkit.setup import TrainingSetup
from stepscope.program.sharded import one_rank_of, sharded_build
from stepscope.setup import Layout
from stepscope.sharding import estimate_sharded
from stepscope.tracing.trace import trace_script

SETUP = TrainingSetup(model=replace(TINY_LLAMA, num_layers=3), seq_len=64)
WEIGHT, GRADIENT, STATES = 2, 2, 12
"""Bytes a parameter in the recipe of the ZeRO paper."""


def at_rest(stage: int, ranks: int) -> float:
    """Bytes a parameter on one of so many ranks, from the paper's three terms."""
    shares = (WEIGHT, 3), (GRADIENT, 2), (STATES, 1)
    return sum(size / ranks if stage >= first else size for size, first in shares)


@cache
def kept(stage: int, ranks: int) -> dict[str, float]:
    """Bytes a parameter of weights, gradients and states after PyTorch's own step, on one traced rank in fp32."""
    with one_rank_of(ranks):
        # no second copy to send from
        layout = Layout(stage=stage, dp_size=ranks, gradient_as_bucket_view=stage == 0)
        timeline = trace_script(sharded_build(SETUP, layout))
    parts = timeline.at("optimizer", step=2).parts
    return {
        name: parts[name] / parameters_of(SETUP.model)
        for name in ("weights", "gradients", "optimizer_states")
    }


@cache
def two_ranks() -> dict:
    """Real processes: P bytes of float32 parameters, and what each way sends a step in units of P."""
    told = run_on_ranks("book.training_ranks", 2, list(steps(2)))
    whole = 4 * parameters_of(SETUP.model)
    return {
        name: {kind: count / whole for kind, count in row["sent"].items()}
        | {"losses": row["losses"]}
        for name, row in told["ways"].items()
    }


def moved_by(way: str) -> float:
    """As the paper counts: an all-reduce moves its bytes twice."""
    sent = two_ranks()[way]
    return sum(
        (2 if kind == "allreduce" else 1) * size for kind, size in sent.items() if kind != "losses"
    )


def test_C316(figures):
    policy = Layout(stage=3, param_dtype="bfloat16", reduce_dtype="bfloat16")
    with one_rank_of(8):
        trained = trace_script(sharded_build(SETUP, policy)).at("optimizer", step=2)
    assert trained.weights and hasattr(ShardedGradScaler, "step")
    gradients = torch.full((figures["ranks"],), 1.0, dtype=torch.bfloat16)
    gradients[0] = 256.0
    total = gradients[0]
    for gradient in gradients[1:]:
        total = total + gradient
    assert int(total) == figures["sum"] and int(gradients.double().sum()) == figures["exact"]
    figures.settle(it_runs=trained.gradients > 0, sums_are_right=int(total) == figures["exact"])


def test_C317(figures):
    few, many = (
        estimate_sharded(
            replace(SETUP, model=replace(SETUP.model, num_layers=layers)), Layout(dp_size=512)
        ).peak
        for layers in (4, 8)
    )
    with one_rank_of(8):
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        for layer in model:
            fully_shard(layer, mesh=dist.device_mesh.init_device_mesh("cpu", (8,)))
        groups = [layer._get_fsdp_state()._fsdp_param_group for layer in model]
    block = sum(p.numel() for p in Transformer(SETUP, device="meta").blocks[0].parameters()) * 4
    figures.settle(
        one_group_each=len({id(group) for group in groups}) == 4,
        one_whole_at_a_time=many.temporary - few.temporary < block,
    )


def test_C320(figures):
    assert figures["name"] in ShardingStrategy.__members__
    with one_rank_of(2), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        FullyShardedDataParallel(
            nn.Linear(2, 2),
            sharding_strategy=ShardingStrategy[figures["name"]],
            device_id=torch.device("cpu"),
        )
    deprecated = any(
        figures["name"] in str(w.message) and "deprecated" in str(w.message) for w in told
    )
    figures.settle(once=True, now=not deprecated)


@cache
def peak_in_gb(ranks: int, recomputation: str) -> float:
    """GB on a rank of ZeRO-3, 7B in bf16 on fp32 weights, four sequences of 2,048 tokens."""
    setup = TrainingSetup(
        model=LLAMA_2_7B, seq_len=2048, micro_batch_size=4, recomputation=recomputation
    )
    layout = Layout(stage=3, dp_size=ranks, param_dtype="bfloat16", reduce_dtype="float32")
    return estimate_sharded(setup, layout).for_step(2).peak_bytes / 1e9
