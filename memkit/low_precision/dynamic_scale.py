"""torch's own GradScaler, played on the CPU: the scale at each step when gradients overflow at a known scale."""

from collections.abc import Callable

import torch


def play_scaler(
    num_steps: int, overflows: Callable[[int, float], bool], **choices
) -> tuple[list[float], list[int]]:
    """The scale before each of ``num_steps`` steps, and the numbers of the steps that the scaler skipped.

    ``overflows(step, scale)`` says whether the gradients of that step are infinite at that scale; ``choices``
    are those of ``torch.amp.GradScaler``.

    >>> scales, skipped = play_scaler(4, lambda step, scale: scale > 1000, init_scale=4096.0)
    >>> scales, skipped
    ([4096.0, 2048.0, 1024.0, 512.0], [0, 1, 2])
    """
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", **choices)
    scaler.scale(weight)  # makes the scale
    scales, skipped = [], []
    for step in range(num_steps):
        scales.append(scaler.get_scale())
        weight.grad = torch.full((), float("inf") if overflows(step, scales[-1]) else 1.0)
        before = weight.item()
        scaler.step(optimizer)
        scaler.update()
        if weight.item() == before:
            skipped.append(step)
    return scales, skipped
