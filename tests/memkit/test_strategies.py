"""Stored bytes and FLOPs of every strategy against the papers, against PyTorch's own cuts, and against hand counts."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from block_products import block_products, saved_products
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from book.korthikanti import MODEL_175B, model_flops, paper_setup, recomputed_flops
from memkit.formula.activations import activation_bytes, block_ledger
from memkit.models import GPT2_LARGE, LLAMA_2_7B, LLAMA_3_8B
from memkit.recipes import PURE_BF16
from memkit.recomputation import blocks_ledger, step_flops
from memkit.setup import TrainingSetup
from memkit.strategies import (
    CORE,
    FULL,
    FULL_NO_STOP,
    FULL_REENTRANT,
    HOST,
    NONE,
    SAVE_ATTENTION,
    SAVE_EVERY_SECOND,
    SAVE_PRODUCTS,
    Strategy,
    all_strategies,
    groups,
    policy,
    sequential,
    square_root_groups,
)

GPT2 = TrainingSetup(model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8)
LLAMA = TrainingSetup(model=LLAMA_3_8B, precision=PURE_BF16, seq_len=4096)


def blocks_alone(setup, strategy) -> tuple[int, int]:
    """FLOPs run again and FLOPs of a forward, without the head and without the attention's products."""
    products = [p for p in block_products(setup) if p.kind in ("mm", "addmm")]
    forward = setup.model.num_layers * sum(p.flops for p in products)
    core = setup.model.num_layers * sum(
        p.flops for p in block_products(setup) if p.kind == "attention"
    )
    return step_flops(setup, strategy).recomputed - core, forward


@pytest.mark.parametrize("num_layers, segments", [(24, 4), (7, 2), (12, 5), (4, 4), (5, 3)])
def test_sequential_cuts_where_pytorch_cuts(num_layers, segments):
    calls = [0] * num_layers

    def counted(number, x):
        calls[number] += 1
        return x * 1.5

    functions = [lambda x, number=number: counted(number, x) for number in range(num_layers)]
    x = torch.ones(2, requires_grad=True)
    checkpoint_sequential(functions, segments, x, use_reentrant=True).sum().backward()
    cuts = sequential(segments).regions(num_layers)
    assert calls == [1 + again for blocks, again in cuts for _ in blocks]


@pytest.mark.parametrize("num_layers", [1, 3, 4, 12])
def test_regions_hold_every_block_once(num_layers):
    for strategy in all_strategies(num_layers):
        assert [number for blocks, _ in strategy.regions(num_layers) for number in blocks] == list(
            range(num_layers)
        )


def test_one_block_is_a_full_step_with_the_head_apart():
    """Facts read off PyTorch's counter: two thirds of a GPT-2 forward run again, five sixths or so of a Llama's."""
    again, forward = blocks_alone(GPT2, FULL)
    assert again / forward == pytest.approx(16 / 24)
    assert blocks_alone(GPT2, FULL_NO_STOP)[0] == blocks_alone(GPT2, FULL_REENTRANT)[0] == forward
    again, forward = blocks_alone(replace(LLAMA, model=LLAMA_2_7B), FULL)
    assert again / forward / 3 == pytest.approx(0.259, abs=1e-3)


def test_dropout_after_the_last_product_takes_the_early_stop_away():
    again, forward = blocks_alone(replace(GPT2, dropout=0.1), FULL)
    assert again == forward


def test_selective_recomputation_is_a_third_of_what_the_paper_prints():
    setup = paper_setup(MODEL_175B)
    flops, batches = step_flops(setup, CORE), MODEL_175B.global_batch_size
    assert batches * (flops.forward + flops.backward) == model_flops(MODEL_175B)
    # stops before the weighted sum
    assert 2 * batches * flops.recomputed == recomputed_flops(MODEL_175B)
    no_stop = step_flops(setup, replace(CORE, stops_early=False))
    assert batches * no_stop.recomputed == recomputed_flops(MODEL_175B)


def test_a_policy_keeps_what_it_names():
    names = [p.name for p in saved_products(LLAMA, SAVE_EVERY_SECOND)]
    assert names == ["query", "value", "attention output", "gate", "down"]
    # linear layers with a bias are addmm
    assert [p.name for p in saved_products(GPT2, policy("mm alone", "mm"))] == []
    assert [p.kind for p in saved_products(GPT2, SAVE_PRODUCTS)] == [
        "addmm",
        "attention",
        "addmm",
        "addmm",
        "addmm",
    ]
    assert step_flops(GPT2, policy("mm alone", "mm")) == step_flops(GPT2, FULL)
    assert step_flops(LLAMA, SAVE_PRODUCTS).recomputed == 0


def test_a_policy_pays_for_what_it_does_not_save():
    core = sum(p.flops for p in block_products(LLAMA) if p.kind == "attention")
    less = step_flops(LLAMA, FULL).recomputed - step_flops(LLAMA, SAVE_ATTENTION).recomputed
    assert less == LLAMA.model.num_layers * core
    added = blocks_ledger(LLAMA, SAVE_ATTENTION).num_bytes - blocks_ledger(LLAMA, FULL).num_bytes
    tokens, model = LLAMA.tokens_per_micro_batch, LLAMA.model
    # output, log-sum-exp, seeds
    per_layer = 2 * tokens * model.query_size + 4 * tokens * model.num_heads + 3 * 8
    assert added == model.num_layers * per_layer


def test_offload_leaves_nothing_of_the_blocks_on_the_device():
    assert blocks_ledger(LLAMA, HOST).num_bytes == 0
    on_host, full = (activation_bytes(LLAMA.under(way)) for way in (HOST, FULL))
    assert on_host < full


def test_the_square_root_is_too_large_a_group():
    """Chen et al. 2016 count a block as large as its checkpoint; here one block is 16 checkpoints."""
    assert [square_root_groups(num).group_size for num in (1, 2, 4, 7, 36)] == [1, 1, 2, 3, 6]
    block = block_ledger(GPT2).num_bytes
    assert block > 16 * blocks_ledger(GPT2, FULL).num_bytes / 36
    live = {
        size: blocks_ledger(GPT2, groups(size)).num_bytes + size * block for size in (1, 2, 6, 12)
    }
    assert sorted(live, key=live.get) == [2, 1, 6, 12]
    assert live[2] / live[1] > 0.95 and live[6] / live[1] > 1.9


def shown_code_on(strategy, x, model, block):
    """What the strategy's printed code makes of ``x``, with the names that the code takes for granted."""
    names = {
        "torch": torch,
        "nn": torch.nn,
        "partial": partial,
        "model": model,
        "number": 0,
        "block": block,
        "x": x,
        "checkpoint": checkpoint,
        "checkpoint_sequential": checkpoint_sequential,
        "CheckpointPolicy": CheckpointPolicy,
        "create_selective_checkpoint_contexts": create_selective_checkpoint_contexts,
    }
    exec(strategy.code, names)
    return names["x"]


@pytest.mark.parametrize(
    "strategy", [s for s in all_strategies(4) if s.scope == "blocks"], ids=lambda s: s.name
)
def test_the_code_that_is_shown_runs_and_gives_the_same_gradient(strategy):
    """The region's linear layers run in the forward and in the backward; a sum gives each weight its gradient."""
    model = torch.nn.Module()
    model.blocks = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()) for _ in range(4)
    )
    inputs = torch.linspace(0, 1, 6).reshape(2, 3).requires_grad_()
    shown = shown_code_on(strategy, inputs, model, model.blocks[0])
    blocks = model.blocks if "model.blocks" in strategy.code else model.blocks[:1]
    weight, plain = blocks[0][0].weight, torch.nn.Sequential(*blocks)(inputs)
    (again,) = torch.autograd.grad(plain.sum(), weight)
    shown.sum().backward()
    assert torch.equal(shown, plain)
    assert torch.equal(weight.grad, again)


aten = torch.ops.aten
KERNELS = {
    "flash": lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False)[0],
    "efficient": lambda q, k, v: aten._scaled_dot_product_efficient_attention(
        q, k, v, None, True, 0.0, True
    )[0],
    "cudnn": lambda q, k, v: aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, True, False
    )[0],
    "flash on the CPU": lambda q, k, v: sdpa_by(SDPBackend.FLASH_ATTENTION, q, k, v),
    "math": lambda q, k, v: sdpa_by(SDPBackend.MATH, q, k, v),
}
"""CUDA's three kernels run on ``meta``: shapes alone; PyTorch's dispatcher names them as on a card."""


def sdpa_by(backend, q, k, v):
    with sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class OpCounts(TorchDispatchMode):
    """How often each operation is dispatched."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.counts[op] += 1
        return op(*args, **(kwargs or {}))


class AttentionBlock(torch.nn.Module):
    """Query, key and value; a kernel; output; an MLP; a norm at the end, so that every product is wanted again."""

    def __init__(self, kernel, bias, device):
        super().__init__()
        linear = partial(torch.nn.Linear, bias=bias, device=device, dtype=torch.bfloat16)
        self.kernel, self.qkv, self.out = kernel, linear(64, 192), linear(64, 64)
        self.mlp = torch.nn.Sequential(linear(64, 256), torch.nn.GELU(), linear(256, 64))
        self.norm = torch.nn.LayerNorm(64, device=device, dtype=torch.bfloat16)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 16, 3, 4, 16).permute(2, 0, 3, 1, 4)
        y = self.out(self.kernel(q, k, v).transpose(1, 2).reshape(2, 16, 64))
        return self.norm(self.mlp(y))


def run_again(strategy, kernel, bias) -> Counter:
    """Operations that a step by the strategy's printed code dispatches more often than a plain step."""
    device = "cpu" if kernel in ("flash on the CPU", "math") else "meta"
    block, counts = AttentionBlock(KERNELS[kernel], bias, device), []
    for run in (block, lambda x: shown_code_on(strategy, x, None, block)):
        x = torch.ones(2, 16, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
        with OpCounts() as step:
            run(x).sum().backward()
        counts.append(step.counts)
    return counts[1] - counts[0]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_code_that_is_shown_saves_what_it_says_under_every_kernel(kernel, bias):
    """The judge is PyTorch's dispatcher: what a policy saves is not dispatched a second time."""
    linear = aten.addmm.default if bias else aten.mm.default
    attention = {op for op in run_again(FULL, kernel, bias) if "scaled_dot_product" in str(op)}
    assert len(attention) == (kernel != "math")
    for strategy, linears_again in (
        (SAVE_ATTENTION, 4),
        (SAVE_PRODUCTS, 0),
        (SAVE_EVERY_SECOND, 2),
    ):
        again = run_again(strategy, kernel, bias)
        assert not attention & again.keys(), f"{strategy.name} runs {attention} a second time"
        assert again[linear] == linears_again
    assert run_again(FULL, kernel, bias)[linear] == 4
    products = run_again(SAVE_PRODUCTS, kernel, bias)[aten.bmm.default]
    # scores and weighted sum: no policy of the book saves them
    assert products == (2 if kernel == "math" else 0)


def test_bad_strategies_say_what_is_allowed():
    with pytest.raises(ValueError, match="scope='some' is not one of nothing, blocks"):
        Strategy(name="x", code="", scope="some")
    with pytest.raises(ValueError, match="saved_ops='conv' is not one of mm"):
        policy("x", "attention").__class__(name="x", code="", saved_ops=("conv",))
    with pytest.raises(ValueError, match="group_size=0"):
        groups(0)
    with pytest.raises(ValueError, match="needs the non-reentrant"):
        replace(SAVE_ATTENTION, is_reentrant=True)
    with pytest.raises(ValueError, match="recomputation='full'"):
        step_flops(replace(GPT2, recomputation="full"), NONE)
