"""A network of two layers and its training step: small enough for any experiment with memory."""

from collections.abc import Callable

import torch
from torch import nn

WIDTH, WIDE = 512, 2048


def small_net(device: str) -> nn.Sequential:
    """Linear, GELU, linear: 512 to 2,048 and back, 8 MiB of float32 weights."""
    return nn.Sequential(nn.Linear(WIDTH, WIDE), nn.GELU(), nn.Linear(WIDE, WIDTH)).to(device)


def small_step(device: str, model: nn.Module | None = None) -> Callable[[int], None]:
    """A function that trains the net (a new one, if none is given) by AdamW on ``batch`` random rows.

    Shapes: the input is [batch, 512].
    """
    model = small_net(device) if model is None else model
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch: int) -> None:
        model(torch.randn(batch, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
