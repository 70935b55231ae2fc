"""Wrong answers to the judged exercise of chapter 12, each with a part of what its judge has to say."""

import torch


def _right(ema, model, decay, turned=False):
    share = decay if turned else 1 - decay
    with torch.no_grad():
        for mean, weight in zip(ema, model, strict=True):
            mean.lerp_(weight.to(mean), share)


def _broken(ema, model, decay):
    for place, weight in enumerate(model):
        ema[place] = decay * ema[place].to(weight.dtype) + (1 - decay) * weight


def _new_tensors(ema, model, decay):
    with torch.no_grad():
        for place, weight in enumerate(model):
            ema[place] = decay * ema[place] + (1 - decay) * weight.float()


def _recorded(ema, model, decay):
    for mean, weight in zip(ema, model, strict=True):
        mean.mul_(decay).add_(weight, alpha=1 - decay)


def _nothing(ema, model, decay):
    [decay * mean + (1 - decay) * weight for mean, weight in zip(ema, model, strict=True)]


def _turned(ema, model, decay):
    _right(ema, model, decay, turned=True)


def _rounded(ema, model, decay):
    for mean, weight in zip(ema, model, strict=True):
        narrow = (decay * mean.to(weight.dtype) + (1 - decay) * weight).detach()
        mean.copy_(narrow)


def _to_the_weights(ema, model, decay):
    with torch.no_grad():
        for mean, weight in zip(ema, model, strict=True):
            weight.mul_(1 - decay).add_(decay * mean)


def _copied(ema, model, decay):
    with torch.no_grad():
        for mean, weight in zip(ema, model, strict=True):
            mean.copy_(weight)


def _longer(ema, model, decay):
    _right(ema[:2], model, decay)
    ema.append(ema[0])


def _narrow_in_place(ema, model, decay):
    with torch.no_grad():
        for mean, weight in zip(ema, model, strict=True):
            mean.data = mean.to(weight.dtype)
            mean.lerp_(weight, 1 - decay)


def _new_memory(ema, model, decay):
    with torch.no_grad():
        for mean, weight in zip(ema, model, strict=True):
            mean.data = decay * mean + (1 - decay) * weight.float()


def _untrained(ema, model, decay):
    for weight in model:
        weight.requires_grad_(False)
    _right(ema, model, decay)


WRONG = {
    "12.1": (
        (3.5, "3.5 is a float; the answer is a function"),
        ({}, "{} is a dict; the answer is a function"),
        (_broken, "A mean requires a gradient now"),
        (_recorded, "A mean requires a gradient now"),
        (_new_tensors, "You put new tensors in the place of the means"),
        (_nothing, "The means are still 0"),
        (_turned, "The other way round"),
        (_rounded, "some of it is rounded to bfloat16"),
        (_to_the_weights, "The weights have changed"),
        (_copied, "a mean of a weight of 1 is 1.0000. It should be 0.1090"),
        (_longer, "has 4 now"),
        (_narrow_in_place, "A mean is not float32 any more"),
        (_new_memory, "A mean has new memory"),
        (_untrained, "A weight requires no gradient any more"),
    ),
}
ALSO_RIGHT = (
    _right,
    lambda ema, model, decay: [
        mean.mul_(decay).add_(weight.detach(), alpha=1 - decay)
        for mean, weight in zip(ema, model, strict=True)
    ],
)
"""Other right answers to 12.1."""
