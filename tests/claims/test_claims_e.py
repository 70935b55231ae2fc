"""Proofs of group E, mixed precision: torch itself on the CPU, CUDA's autocast played, ml_dtypes, data sheets."""

import inspect
import math
import warnings
from functools import cache
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from book.claims import rounds_to
from book.loss_scales import play_scaler
from book.small_gpt import make_small_gpt, text_batches, train
from memkit.formula.activations import block_ledger
from memkit.formula.states import bytes_per_parameter
from memkit.low_precision import SixteenBitAdamW
from memkit.models import GPT2_LARGE
from memkit.recipes import (
    ADAMW,
    AUTOCAST_BF16,
    BF16_MASTER,
    BF16_TWO_GRADIENTS,
    FP32,
    MEGATRON,
    PURE_BF16,
)
from memkit.setup import TrainingSetup
from memkit.tracing.cuda import pretend_cuda

BF16, FP16 = torch.bfloat16, torch.float16
APEX_MAXIMUM = 2**24
"""Source: NVIDIA/apex@03b0eeb, apex/amp/scaler.py, ``max_loss_scale``."""


def sbh(precision, dropout=0.1) -> float:
    """Bytes per token and hidden unit of a block of GPT-2 large: flash attention, CUDA's rules."""
    return block_ledger(
        TrainingSetup(model=GPT2_LARGE, precision=precision, micro_batch_size=8, dropout=dropout)
    ).per_sbh


def smaller(precision) -> float:
    """Percent by which the block keeps less than in FP32."""
    return 100 * (1 - sbh(precision) / sbh(FP32))


def addends(precision) -> dict[str, float]:
    return bytes_per_parameter(precision, ADAMW)


def total(precision) -> float:
    return sum(addends(precision).values())


@cache
def autocast_step() -> dict[str, torch.dtype]:
    """What a real step under autocast has: dtypes of weight, gradient, saved cast and loss."""
    layer, saved = nn.Linear(64, 64), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        x = torch.ones(2, 64, requires_grad=True)
        with torch.autocast("cpu", BF16):
            hidden = layer(x)
            loss = F.cross_entropy(hidden, torch.zeros(2, dtype=torch.long))
    loss.backward()
    casts = [t.dtype for t in saved if t.shape == (64, 64)]
    return {
        "weight": layer.weight.dtype,
        "gradient": layer.weight.grad.dtype,
        "cast": casts[0],
        "loss": loss.dtype,
        "output": hidden.dtype,
    }


class ByChance(SixteenBitAdamW):
    """Rounds each weight up or down by chance, as chapter 03 does."""

    def add(self, weight, state, old, update):
        bits = (old + update).view(torch.int32)
        chance = torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32)
        weight.copy_(((bits + chance) & -(1 << 16)).view(torch.float32))


@cache
def walked(write: str, lr: float = 1e-4, num_steps: int = 100) -> float:
    """Where a weight of 1 ends on average after steps of ``lr`` with a gradient of 1."""
    weight = nn.Parameter(torch.ones(4000, dtype=BF16))
    kind, chosen = (ByChance, {}) if write == "stochastic" else (SixteenBitAdamW, {"write": write})
    optimizer = kind([weight], lr=lr, weight_decay=0.0, **chosen)
    for _ in range(num_steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return weight.detach().double().mean().item()


def follows(write: str) -> bool:
    return abs(walked(write) - 0.99) < 2e-3


def step_with_scaler(scale: float, *, unscales: bool, max_norm: float = 1.0) -> float:
    """How far a weight goes against a gradient of norm 5 that is clipped to ``max_norm``, learning rate 1."""
    weight = nn.Parameter(torch.zeros(2))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), torch.amp.GradScaler("cpu", scale)
    scaler.scale((weight * torch.tensor([3.0, 4.0])).sum()).backward()
    if unscales:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_([weight], max_norm)
    scaler.step(optimizer)
    return weight.detach().norm().item()


def warns(make) -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    return any(issubclass(w.category, FutureWarning) for w in caught)


def result(device: str, call) -> torch.dtype:
    x = torch.ones(8, 8, device=device, dtype=BF16)
    with torch.autocast(device, BF16):
        return call(x).dtype


def on_cuda(call) -> torch.dtype:
    with pretend_cuda():
        return result("cuda", call)


@cache
def losses(autocast: bool, num_steps: int = 10) -> list[float]:
    model = make_small_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return train(
        model, optimizer, text_batches(num_steps), autocast_dtype=BF16 if autocast else None
    )


def test_C127(figures):
    summed = torch.zeros((), dtype=BF16)
    for _ in range(figures["exact"]):
        summed += 1
    assert summed.item() == figures["ones"]
    assert torch.ones(figures["exact"]).cumsum(0)[-1] == figures["exact"] == 1000
    few = sum(torch.ones((), dtype=BF16) for _ in range(10)).item()
    figures.settle(many=summed.item() < 0.9 * 1000, few=few != 10)


def test_C134(figures):
    with pytest.raises(TypeError):
        torch.cuda.amp.autocast(device_type="cuda")
    figures.settle(old="device_type" in inspect.signature(torch.cuda.amp.autocast).parameters)


def test_C140(figures):
    weight, gradient = nn.Parameter(torch.zeros(1, dtype=torch.float64)), figures["gradient"]
    assert gradient == 0.5
    weight.grad = torch.full_like(weight, gradient)
    torch.optim.Adam([weight], lr=1.0).step()
    assert weight.item() == pytest.approx(-1.0)
    without = 0.1 * gradient / (math.sqrt(0.001 * gradient**2) + 1e-8)
    assert rounds_to(without, figures["times"])
    figures.settle(against=weight.item() * gradient < 0)


def test_C144(figures):
    assert figures["total"] == total(AUTOCAST_BF16) == total(BF16_MASTER)
    assert figures["fp32_gradients"] == total(MEGATRON)
    assert figures["two"] == total(BF16_TWO_GRADIENTS) and figures["pure"] == total(PURE_BF16)
    figures.settle(
        **{
            p.name: total(p) == 16
            for p in (AUTOCAST_BF16, BF16_MASTER, MEGATRON, BF16_TWO_GRADIENTS)
        }
    )


def test_C151(figures):
    weight = torch.tensor(1.0, requires_grad=True)
    (weight**2).backward()
    up = weight.detach() + 0.1 * weight.grad
    figures.settle(falls=bool(up**2 < weight**2))


def test_C152(figures):
    limit, model, flowing = figures["limit"], make_small_gpt(), []
    for layer in (m for m in model.modules() if isinstance(m, nn.Linear | nn.LayerNorm)):
        layer.register_forward_hook(
            lambda m, x, y: y.register_hook(lambda g: flowing.append(g.flatten())) and None
        )
    train(model, torch.optim.AdamW(model.parameters(), lr=3e-3), text_batches(60, seed=4))
    flowing.clear()
    model(*next(text_batches(1, batch_size=16, seq_len=128, seed=3))).backward()
    of_activations = (torch.cat(flowing).abs() < limit).float().mean().item()
    weights = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert limit == 1e-10 and 1e-4 < of_activations < 0.2
    figures.settle(
        activations=of_activations > 0.001,
        weights=(weights.abs() < limit).float().mean().item() > 0.01,
    )


def test_C153(figures):
    def gradient(scale):
        weight = torch.tensor([0.5, -2.0], requires_grad=True)
        (scale * (weight**3).sum()).backward()
        return weight.grad

    ratio = gradient(figures["scale"]) / gradient(1)
    assert torch.equal(ratio, torch.full((2,), 1024.0)) and figures["scale"] == 1024
    figures.settle(chain_rule=torch.equal(gradient(1024.0) / 1024.0, gradient(1.0)))


def test_C154(figures):
    assert (
        figures["torch"] == inspect.signature(torch.amp.GradScaler).parameters["init_scale"].default
    )
    assert figures["printed"] == APEX_MAXIMUM
    figures.settle(
        as_an_example=APEX_MAXIMUM == figures["printed"],
        torch=figures["torch"] == figures["printed"],
    )


def test_C155(figures):
    defaults = inspect.signature(torch.amp.GradScaler).parameters
    assert figures["interval"] == defaults["growth_interval"].default
    scales, _ = play_scaler(figures["interval"] + 1, lambda step, scale: False)
    halved, skipped = play_scaler(2, lambda step, scale: step == 0)
    figures.settle(
        doubles=scales[-1] == 2 * scales[-2], halves=halved[1] == halved[0] / 2 and skipped == [0]
    )


def test_C156(figures):
    times = figures["times"]

    def overflows(step, scale):
        return scale > (2**12 if step < 200 else 2**12 * 16)

    scales, _ = play_scaler(600, overflows, growth_interval=10, init_scale=2.0**12)
    assert max(scales[400:]) / max(scales[100:200]) == times
    figures.settle(rises=max(scales[400:]) > max(scales[:200]))


def test_C166(figures):
    model = make_small_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = train(
        model, optimizer, text_batches(10), autocast_dtype=FP16, scaler=torch.amp.GradScaler("cpu")
    )
    with pretend_cuda():
        default = torch.get_autocast_dtype("cuda")
    figures.settle(trains=found[-1] < found[0] - 0.5, default=default == FP16)


WMMA_SINCE = {"float16": (7, 0), "bfloat16": (8, 0)}
"""Compute capability from which a warp multiplies matrices of the dtype.

Source: NVIDIA, Parallel Thread Execution ISA 8.5, wmma.mma, "Target ISA Notes": sm_70, and sm_80 for .bf16.
"""


def multiplies_bf16(major: int) -> bool:
    """Torch's own answer on a card of this generation."""
    card = SimpleNamespace(major=major)
    with patch.multiple(
        torch.cuda,
        is_available=lambda: True,
        current_device=lambda: 0,
        get_device_properties=lambda _=None: card,
    ):
        return torch.cuda.is_bf16_supported(including_emulation=False)


def test_C177(figures):
    layer = nn.Linear(8, 8)
    with torch.autocast("cpu", BF16):
        loss = layer(torch.ones(2, 8)).sum()
    loss.backward()
    figures.settle(
        outside=layer.weight.grad.dtype == torch.float32 and bool(layer.weight.grad.abs().sum() > 0)
    )
