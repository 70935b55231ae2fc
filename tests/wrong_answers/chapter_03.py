"""Wrong answers to the judged exercises of chapter 03, each with a part of what its judge has to say."""

import copy

import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from book.exercises.training_loops import around_all, bf16_region, no_zero_grad, per_step, step_of


def round_by_chance(x):
    chance = torch.randint(0, 1 << 16, x.shape, dtype=torch.int32)
    return ((x.view(torch.int32) + chance) & -(1 << 16)).view(torch.float32).bfloat16()


def _stepping(update, weight=torch.Tensor.bfloat16):
    def step(master, gradient, scale, lr):
        update(master, gradient, scale, lr)
        return weight(master)

    return step


def _through_bfloat16(master, gradient, scale, lr):
    master.copy_((master - lr * gradient.float() / scale).bfloat16())


def _out_of_place(master, gradient, scale, lr):
    return (master - lr * gradient.float() / scale).bfloat16()


def _around_disabled(model, optimizer, batches):
    with bf16_region(enabled=False):
        return per_step(model, optimizer, batches)


def _zeroed_before_the_step(model, optimizer, batches):
    losses = []
    for inputs, targets in batches:
        with bf16_region():
            loss = F.mse_loss(model(inputs).float(), targets)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _without_autocast(model, optimizer, batches):
    return per_step(model, optimizer, batches, lambda: bf16_region(enabled=False))


def _sixteen_bit_weights(model, optimizer, batches):
    model.bfloat16()
    return _without_autocast(model, optimizer, [(x.bfloat16(), y.float()) for x, y in batches])


def _losses_of_nothing(model, optimizer, batches):
    with bf16_region(), torch.no_grad():
        return [F.mse_loss(model(inputs).float(), targets).item() for inputs, targets in batches]


def _clipping(
    unscale=lambda scaler, optimizer: scaler.unscale_(optimizer),
    clip=clip_grad_norm_,
    updates_first=False,
):
    def step(model, optimizer, scaler, loss, max_norm):
        scaler.scale(loss).backward()
        unscale(scaler, optimizer)
        clip(model.parameters(), max_norm)
        if updates_first:
            scaler.update()
        scaler.step(optimizer)
        if not updates_first:
            scaler.update()
        optimizer.zero_grad()
        return True

    return step


def _divides(scaler, optimizer):
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad /= scaler.get_scale()


def _up_where(is_up):
    """Up where ``is_up`` of the share of the gap says so."""

    def rounded(x):
        bits = x.view(torch.int32)
        up = is_up((bits & 0xFFFF) / 65_536)
        return ((bits & -(1 << 16)) + (up.int() << 16)).view(torch.float32).bfloat16()

    return rounded


def _chance_below(limit, shape=None, dtype=torch.int32, mask=-(1 << 16), seed=None, least=0):
    def rounded(x):
        size = x.shape if shape is None else shape
        chance = None if seed is None else torch.Generator().manual_seed(seed)
        bits = x.view(torch.int32) + torch.randint(
            least, limit, size, dtype=dtype, generator=chance
        )
        return (bits & mask).view(torch.float32).bfloat16()

    return rounded


def _converted(x):
    bits = x.to(torch.int32) + torch.randint(0, 1 << 16, x.shape, dtype=torch.int32)
    return (bits & -(1 << 16)).float().bfloat16()


def _in_place(x):
    bits = x.view(torch.int32)
    bits += torch.randint(0, 1 << 16, x.shape, dtype=torch.int32)
    return (bits & -(1 << 16)).view(torch.float32).bfloat16()


def _moves_the_weights(master, gradient, scale, lr):
    weights = master.bfloat16()
    weights -= lr * gradient / scale
    master.copy_(weights.float())
    return weights


WRONG = {
    "3.3": (
        (_stepping(lambda m, g, s, lr: m.add_(lr * g.float() / s)), "wrong sign"),
        (_stepping(lambda m, g, s, lr: m.sub_(lr * g.float())), "still multiplied by the scale"),
        (_stepping(lambda m, g, s, lr: m.sub_(lr * g.float() * s)), "by the scale twice"),
        (_stepping(lambda m, g, s, lr: m.sub_(g.float() / s)), "The learning rate is missing"),
        (_stepping(_through_bfloat16), "a small update is lost there"),
        (_stepping(lambda m, g, s, lr: m.sub_(lr * g / s)), "update itself was computed in BF16"),
        (
            _stepping(lambda m, g, s, lr: m.add_(lr * g.float())),
            "Still uphill, and the gradient is still multiplied",
        ),
        (_stepping(lambda m, g, s, lr: m.sub_(g.float())), "both missing"),
        (_out_of_place, "master did not move"),
        (_moves_the_weights, "a small update is lost there"),
        (
            _stepping(lambda m, g, s, lr: m.sub_(lr * g.float() / s), torch.clone),
            "the model needs BF16",
        ),
        (_stepping(lambda m, g, s, lr: m.mul_(0.5)), "I cannot tell which mistake"),
        (lambda m, g, s, lr: 1.0, "returns the new BF16 weights"),
    ),
    "3.4": (
        (around_all, "Still stale"),
        (_around_disabled, "be it a disabled one"),
        (_without_autocast, "autocast is gone"),
        (_sixteen_bit_weights, "You made the weights BF16"),
        (no_zero_grad, "optimizer.zero_grad() is missing"),
        (_losses_of_nothing, "nothing learns"),
        (
            lambda m, o, b: [torch.tensor(loss, requires_grad=True) for loss in per_step(m, o, b)],
            "append loss.item()",
        ),
        (_zeroed_before_the_step, "zero_grad there, in this order?"),
        (
            lambda m, o, b: per_step(m, o, b, lambda: torch.autocast("cpu", dtype=torch.float16)),
            "That is FP16",
        ),
        (lambda m, o, b: per_step(copy.deepcopy(m), o, b), "nothing learns"),
        (lambda m, o, b: per_step(m, o, b)[-1], "Return the list of losses"),
        (lambda m, o, b: per_step(m, o, b[:1]) * len(b), "I cannot tell which mistake"),
    ),
    "3.5": (
        (step_of(), "unscale_ is missing before it"),
        (step_of(unscales="after"), "unscale_ is missing before it"),
        (step_of(unscales="before", clips=False), "Nothing is clipped"),
        (_clipping(clip=clip_grad_value_), "You clipped each value by itself"),
        (step_of(steps="plain", clips=False, updates=False), "scaled gradients as they are"),
        (step_of(steps="plain"), "No inf checks were recorded"),
        (step_of(unscales="before", steps="plain"), "An infinite gradient went into the weights"),
        (step_of(unscales="before", updates=False), "scaler.update() is missing"),
        (step_of(unscales="before", zeroes=False), "optimizer.zero_grad() is missing"),
        (_clipping(updates_first=True), "divided by the scale twice"),
        (_clipping(_divides), "divided by the scale twice"),
        (step_of(unscales="before", times=-1.0), "I cannot tell which mistake"),
    ),
    "3.8": (
        (torch.Tensor.bfloat16, "rounding without any chance"),
        (_up_where(torch.zeros_like), "rounding without any chance"),
        (_chance_below(1 << 16, ()), "One chance decides for all values"),
        (_up_where(lambda share: torch.rand(share.shape) < 0.5), "a fair coin forgets"),
        (_chance_below(1 << 15), "too little chance is added"),
        (_chance_below(1 << 16, dtype=torch.int64), "give it dtype=torch.int32"),
        (_chance_below(1 << 16, mask=-1), "rounded once more"),
        (_chance_below(1 << 16, seed=0), "The same values go up in each call"),
        (_up_where(lambda share: torch.rand(share.shape) > share), "Upside down"),
        (_converted, "converts the number"),
        (_chance_below(1 << 15, least=-(1 << 15), mask=-1), "must stay as it is"),
        (_chance_below(1 << 17), "up by two steps"),
        (_in_place, "You changed x itself"),
        (_up_where(lambda share: torch.rand(share.shape) < share), "Right, but by floating point"),
        (lambda x: round_by_chance(x).float(), "to be a BF16 tensor"),
        (lambda x: round_by_chance(x)[:1], "the shape"),
    ),
}
