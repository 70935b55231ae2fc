"""A reader's training loop, run on a small model, and which call of it is missing or misplaced (exercises 3.4, 3.5)."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn


def near(given: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-3) -> bool:
    return bool((given - wanted).norm() <= tolerance * wanted.norm())


# 3.4: a loop and its cache


def _regression():
    chance = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    inputs = torch.randn(32, 8, generator=chance)
    return model, [(inputs, inputs.sum(1, keepdim=True))] * 12


def _trained(answer, model=None):
    start, batches = _regression()
    model = model or start
    seen = []
    hooks = [
        layer.register_forward_hook(lambda m, x, y: seen.append(y.dtype)) for layer in model[::2]
    ]
    losses = answer(model, torch.optim.SGD(model.parameters(), lr=0.05), batches)
    for hook in hooks:
        hook.remove()
    return losses, seen, model


def bf16_region(**settings):
    return torch.autocast("cpu", dtype=torch.bfloat16, **settings)


def per_step(model, optimizer, batches, region=bf16_region, zeroes=True):
    """The loop of exercise 3.4 with a region for each step."""
    losses = []
    for inputs, targets in batches:
        with region():
            loss = F.mse_loss(model(inputs).float(), targets)
        loss.backward()
        optimizer.step()
        if zeroes:
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def around_all(model, optimizer, batches):
    with bf16_region():
        return per_step(model, optimizer, batches)


def no_zero_grad(model, optimizer, batches):
    return per_step(model, optimizer, batches, zeroes=False)


def without_cache(model, optimizer, batches):
    with bf16_region(cache_enabled=False):
        return per_step(model, optimizer, batches, nullcontext)


def judge_loop(answer) -> str | None:
    given, seen, model = _trained(answer)
    wanted, _, reference = _trained(per_step)
    if not isinstance(given, list | tuple) or len(given) != len(wanted):
        return f"Return the list of losses, one for each of the {len(wanted)} batches."
    if any(getattr(loss, "requires_grad", False) for loss in given):
        return "Each loss that you return holds its graph: append loss.item()."
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        return "You made the weights BF16. Under autocast they stay float32; only the products are 16-bit."
    if torch.float16 in seen:
        return "That is FP16, which needs a GradScaler. Keep bfloat16."
    if torch.float32 in seen:
        return "Nothing is stale now, and nothing is BF16 either: autocast is gone. Keep it around the forward."
    if _same_weights(model, _regression()[0]):
        return (
            "The weights are those of the start: nothing learns. "
            "Are backward, step and zero_grad there, in this order?"
        )
    stale, _, stale_model = _trained(around_all)
    if _alike(given, wanted) and _same_weights(model, reference):
        return None
    if _alike(given, stale) and _same_weights(model, stale_model):
        return (
            "Still stale: the casts are kept until the outermost autocast context is left, be it a disabled one. "
            "Leave it in every step, or pass cache_enabled=False."
        )
    if _alike(given, _trained(no_zero_grad)[0]):
        return "The casts are fresh, but gradients add up from step to step: optimizer.zero_grad() is missing."
    return f"The losses end at {given[-1]:.4f} and not at {wanted[-1]:.4f}; I cannot tell which mistake this is."


def _same_weights(model, other) -> bool:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)


def _alike(given, wanted) -> bool:
    return all(abs(a - b) <= 2e-3 * max(abs(b), 1e-3) for a, b in zip(given, wanted, strict=True))


# 3.5: clipping


def clipped_step(model, optimizer, scaler, loss, max_norm):
    """The FP16 step of exercise 3.5, mended."""
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return True


def step_of(
    *, unscales: str = "", clips=True, steps="scaler", updates=True, zeroes=True, times=1.0
):
    """A step with calls left out or moved."""

    def step(model, optimizer, scaler, loss, max_norm):
        (scaler.scale(loss) * times).backward()
        if unscales == "before":
            scaler.unscale_(optimizer)
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if unscales == "after":
            scaler.unscale_(optimizer)
        scaler.step(optimizer) if steps == "scaler" else optimizer.step()
        if updates:
            scaler.update()
        if zeroes:
            optimizer.zero_grad()
        return True

    return step


def zeroed_first(model, optimizer, scaler, loss, max_norm):
    optimizer.zero_grad()
    return step_of(unscales="before", zeroes=False)(model, optimizer, scaler, loss, max_norm)


def _stepped(answer, max_norm=1.0, has_inf=False, old_gradient=None):
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", 4096.0)
    start = model.weight.detach().clone()
    loss = model(torch.tensor([[3.0, 4.0, 0.0, 0.0]])).sum() * (float("inf") if has_inf else 1.0)
    if old_gradient is not None:
        model.weight.grad = torch.full_like(model.weight, old_gradient)
    said = answer(model, optimizer, scaler, loss, max_norm)
    return said, model.weight.detach() - start, scaler.get_scale(), model.weight.grad


def judge_clipping(answer) -> str | None:
    said, moved, _, left = _stepped(answer)
    if near(_stepped(answer, max_norm=100.0)[1] * 4096, _stepped(clipped_step, max_norm=100.0)[1]):
        return (
            "The gradients are divided by the scale twice. scaler.step leaves the division out only if unscale_ "
            "was called since the last scaler.update()."
        )
    for wrong, words in (
        (
            step_of(),
            "The step is 4,096 times too small: the scaled norm was clipped. unscale_ is missing before it.",
        ),
        (step_of(clips=False), "Nothing is clipped: the step has the full norm of 5."),
        (
            step_of(steps="plain", clips=False, updates=False),
            "optimizer.step() took the scaled gradients as they are.",
        ),
    ):
        if near(moved, _stepped(wrong)[1]):
            return words
    if near(moved, torch.tensor([[-0.5, -0.5, 0.0, 0.0]])):
        return "You clipped each value by itself, and the direction is lost. Clip the norm: clip_grad_norm_."
    if not near(moved, _stepped(clipped_step)[1]):
        return "The step is neither the clipped one nor one that I know; I cannot tell which mistake this is."
    if not near(_stepped(answer, max_norm=100.0)[1], _stepped(clipped_step, max_norm=100.0)[1]):
        return (
            "Right where the norm is above max_norm, wrong below: there nothing is to be clipped."
        )
    _, after_inf, scale, _ = _stepped(answer, has_inf=True)
    if not torch.equal(after_inf, torch.zeros_like(after_inf)):
        return "An infinite gradient went into the weights. scaler.step(optimizer) leaves such a step out."
    if scale != 2048.0:
        return "After an overflow the scale stays: scaler.update() is missing."
    freed_first = near(_stepped(answer, old_gradient=1e5)[1], moved)
    if left is not None and bool(left.any()) and not freed_first:
        return "The gradients stay and add to the next step's: optimizer.zero_grad() is missing."
    return None if said is True else "Return True at the end, so that the check knows you are done."
