"""Proofs of group G, gradient accumulation: what equals the big batch, what it keeps, and how printed loops behave."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from book.claims import rounds_to
from book.ranks import run_on_ranks
from book.small_gpt import SMALL_GPT, make_small_gpt, text_batches
from memkit.by_hand import GPT
from memkit.measure import measure_memory
from memkit.program.transformer import Transformer, training_build
from memkit.recipes import OptimizerConfig
from memkit.setup import TrainingSetup
from memkit.timeline import Instant

OLMO_7B_SEQUENCES, OLMO_7B_TOKENS = 2048, 2048
"""Sequences of a step, and tokens of each.

Source: https://github.com/allenai/OLMo, configs/official/OLMo-7B.yaml at 0bb7f7db.
"""

SETUP = TrainingSetup(
    model=replace(SMALL_GPT, num_layers=4),
    seq_len=64,
    micro_batch_size=4,
    device="cpu",
    optimizer=OptimizerConfig(implementation="fused"),
)


@cache
def measured_peak(setup: TrainingSetup) -> Instant:
    """The second step's highest moment as torch's profiler saw it."""
    return measure_memory(training_build(setup), device="cpu").for_step(2).peak


def weights_of(setup: TrainingSetup) -> int:
    """Bytes of the real model's float32 parameters."""
    return 4 * sum(p.numel() for p in Transformer(setup).parameters())


def gradient(model: nn.Module, micro_batches, factors) -> torch.Tensor:
    model.zero_grad()
    for (inputs, targets), factor in zip(micro_batches, factors, strict=True):
        (model(inputs, targets) * factor).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def off(one: torch.Tensor, other: torch.Tensor) -> float:
    return ((one - other).norm() / other.norm()).item()


@cache
def weighting(lengths: tuple[int, ...]) -> tuple[float, float]:
    """How far the mean of means and the token-weighted sum are from the gradient of all tokens' mean."""
    torch.manual_seed(0)  # the model of the lesson's example
    model = GPT(h=128, L=2, heads=4, v=128, positions=128).double()
    batches = [next(text_batches(1, batch_size=1, seq_len=n, seed=n)) for n in lengths]
    sums = sum(model(inputs, targets) * targets.numel() for inputs, targets in batches) / sum(
        lengths
    )
    sums.backward()
    right = torch.cat([p.grad.flatten() for p in model.parameters()])
    of_means = gradient(model, batches, [1 / len(lengths)] * len(lengths))
    return off(of_means, right), off(
        gradient(model, batches, [n / sum(lengths) for n in lengths]), right
    )


UNEVEN, EVEN = (3, 17, 40, 8), (16, 16, 16, 16)


def test_C219(figures):
    assert UNEVEN == tuple(figures[f"tokens_{n}"] for n in range(1, 5))
    means, weighted = weighting(UNEVEN)
    assert rounds_to(100 * means, figures["off_percent"]) and weighted < 1e-12
    figures.settle(
        summed_over_tokens=weighted < 1e-12,
        means_of_even=weighting(EVEN)[0] < 1e-12,
        means=means < 1e-12,
    )


def test_C221(figures):
    """FLOPs counted by torch; collectives by the ranks themselves."""
    inputs, targets = next(text_batches(1, batch_size=8))
    counts = []
    for size in (8, 2):
        with FlopCounterMode(display=False) as counter:
            parts = list(zip(inputs.split(size), targets.split(size), strict=True))
            gradient(make_small_gpt(), parts, [1] * (8 // size))
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1]
    sent = {way: sum(row["sent"].values()) for way, row in two_ranks()["ways"].items()}
    assert figures["times_less"] * sent["DDP, no_sync"] == sent["DDP"]
    more_passes = 8 // 2 > 1
    figures.settle(one_rank=more_passes, ranks_that_send_once=sent["DDP, no_sync"] > sent["DDP"])


@cache
def two_ranks() -> dict:
    return run_on_ranks("book.accumulation_ranks", 2)


def same_gradient_as_one_batch(size: int, num_steps: int) -> bool:
    """Whether so many micro-batches of the small GPT give the gradient of one batch of all their sequences."""
    inputs, targets = next(text_batches(1, batch_size=size * num_steps))
    model = make_small_gpt(dtype=torch.float64)
    whole = gradient(model, [(inputs, targets)], [1])
    parts = list(zip(inputs.split(size), targets.split(size), strict=True))
    return (
        len(parts) == num_steps
        and off(gradient(model, parts, [1 / num_steps] * num_steps), whole) < 1e-12
    )


def printed_loop(num_batches: int, N: int) -> tuple[int, bool]:
    """Steps of the loop as it is printed, and whether a gradient is left when it ends."""
    weight = nn.Parameter(torch.ones(1))
    optimizer, steps = torch.optim.SGD([weight], lr=0.1), 0
    for i in range(num_batches):
        (weight / N).sum().backward()
        if (i + 1) % N == 0:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    return steps, weight.grad is not None


def test_C225(figures):
    steps, is_left = printed_loop(figures["batches"], figures["window"])
    assert steps == figures["steps"] and is_left and figures["batches"] == 10
    # the rest is a window too
    assert -(-figures["batches"] // figures["window"]) == figures["steps"] + 1
    figures.settle(whole_windows=not printed_loop(8, 4)[1], a_rest=not is_left)


def clipped(factors, where: str) -> torch.Tensor:
    """The gradient of four micro-batches clipped to a norm of 0.1, once at the end or after each."""
    model = make_small_gpt(dtype=torch.float64)
    for (inputs, targets), factor in zip(text_batches(4, batch_size=2), factors, strict=True):
        (model(inputs, targets) * factor).backward()
        if where == "each":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_C226(figures):
    once, each = clipped([1 / 4] * 4, "end"), clipped([1 / 4] * 4, "each")
    batches = list(text_batches(4, batch_size=2))
    model = make_small_gpt(dtype=torch.float64)
    inputs, targets = (torch.cat(column) for column in zip(*batches, strict=True))
    model(inputs, targets).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    whole = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert off(each, whole) > 0.01
    figures.settle(clipped_once=off(once, whole) < 1e-12)


def test_C229(figures):
    weight = nn.Parameter(torch.ones(3))
    seen = []
    for _ in range(figures["calls"]):
        (weight * 2).sum().backward()
        seen.append(weight.grad.clone())
    address = weight.grad.data_ptr()
    (weight * 2).sum().backward()
    assert figures["calls"] == 2 and weight.grad.data_ptr() == address
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.zero_grad()
    figures.settle(adds=torch.equal(seen[1], 2 * seen[0]), until_zero_grad=weight.grad is None)


def moved(make_optimizer, factor: float) -> float:
    model = make_small_gpt()
    before = [p.detach().clone() for p in model.parameters()]
    inputs, targets = next(text_batches(1))
    (model(inputs, targets) * factor).backward()
    make_optimizer(model.parameters()).step()
    return (
        sum((p.detach() - b).norm() ** 2 for p, b in zip(model.parameters(), before, strict=True))
        .sqrt()
        .item()
    )


def test_C232(figures):
    x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    changes = {}
    for name, norm in (
        ("batch", nn.BatchNorm1d(4)),
        ("layer", nn.LayerNorm(4)),
        ("group", nn.GroupNorm(2, 4)),
    ):
        norm = norm.double()
        changes[name] = not torch.allclose(norm(x), torch.cat([norm(part) for part in x.split(2)]))
    figures.settle(
        batch_norm=changes["batch"], others_do_not=not (changes["layer"] or changes["group"])
    )


def test_C233(figures):
    rates = []
    for per_step in (1, figures["window"]):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=40)
        for _ in range(10 * per_step):
            optimizer.step()
            schedule.step()
        rates.append(schedule.get_last_lr()[0])
    assert (
        rates == pytest.approx([figures["right_rate"], figures["wrong_rate"]])
        and figures["window"] == 4
    )
    figures.settle(matters=rates[0] != rates[1])


def test_C235(figures):
    """With unscale_ before the clipping the norm is the wanted one; without it the clip cuts the scaled gradient."""
    norms = {}
    for unscales in (True, False):
        model = make_small_gpt()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=float(figures["scale"]))
        for inputs, targets in text_batches(4, batch_size=2):
            scaler.scale(model(inputs, targets) / 4).backward()
        if unscales:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
        norms[unscales] = norm if unscales else norm / figures["scale"]
    assert figures["scale"] == 1024 and norms[True] == pytest.approx(0.1, rel=1e-3)
    figures.settle(with_unscale=norms[True] > 0.09, as_printed=norms[False] > 0.09)
