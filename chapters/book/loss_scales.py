"""Chapter 03: torch's own GradScaler, played on the CPU, and a scale that never moves."""

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


class FixedScale:
    """A loss scale with a GradScaler's four methods that never moves and never looks: infinities go through."""

    def __init__(self, scale: float):
        self.factor, self.is_unscaled = scale, False

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss times the scale."""
        return loss * self.factor

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide every gradient by the scale, in place."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(self.factor)
        self.is_unscaled = True

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer's step, whatever the gradients are."""
        if not self.is_unscaled:
            self.unscale_(optimizer)
        optimizer.step()

    def update(self) -> None:
        """Ready for the next step; the scale stays."""
        self.is_unscaled = False
