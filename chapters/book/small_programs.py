"""Small training programs to measure and trace: two layers, and batches of uneven length."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from memkit.program.transformer import training_build
from memkit.setup import TrainingSetup
from memkit.units import as_whole_number

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


def ragged_build(setup: TrainingSetup, lengths: Sequence[int]) -> Callable:
    """The ``build`` of ``setup`` whose step number i trains on sequences of ``lengths[i]`` tokens, then of the first
    again; for ``trace_memory`` and ``measure_memory``.

    Raises: ValueError: no lengths, or one that is not a whole number above 0.
    """
    lengths = [as_whole_number("length", length, minimum=1) for length in lengths]
    if not lengths:
        raise ValueError("lengths is empty; one length per step is needed")

    def build():
        taken = 0

        def next_batch():
            nonlocal taken
            shape = (
                setup.micro_batch_size,
                lengths[taken // setup.grad_accum_steps % len(lengths)],
            )
            taken += 1
            return tuple(
                torch.randint(setup.model.vocab_size, shape, device=setup.device) for _ in range(2)
            )

        return training_build(setup, next_batch)()

    return build
