"""Small training programs to measure and trace: two layers, batches of uneven length, one attention kernel, autocast.

A function that ends in ``_build`` returns a ``build`` as ``trace_memory`` and ``measure_memory`` take it:
``build()`` makes the tensors and returns the step.
"""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from memkit.program.transformer import training_build
from memkit.setup.training import TrainingSetup
from memkit.units import as_one_of, as_whole_number

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
            shape = (setup.micro_batch_size, lengths[taken // setup.grad_accum_steps % len(lengths)])
            taken += 1
            return tuple(torch.randint(setup.model.vocab_size, shape, device=setup.device) for _ in range(2))

        return training_build(setup, next_batch)()

    return build


KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
"""The kernels that ``scaled_dot_product_attention`` chooses from; a CPU has the first two."""


def attention_build(kernel: str, device: str, *, seq_len: int) -> Callable[[], Callable[[], None]]:
    """Causal attention of one sequence by one kernel, forward and backward, in bfloat16.

    Shapes: query, key and value [1, 16, seq_len, 64]; the stored scores would be [16, seq_len, seq_len].

    Raises: ValueError: an unknown kernel.
    """
    as_one_of("kernel", kernel, KERNELS)

    def build():
        ones = functools.partial(torch.ones, 1, 16, seq_len, 64, device=device, dtype=torch.bfloat16)
        parameters = [nn.Parameter(ones()) for _ in range(3)]

        def step():
            with sdpa_kernel(KERNELS[kernel]):
                output = F.scaled_dot_product_attention(*parameters, is_causal=True)
            output.sum().backward()
            for parameter in parameters:
                parameter.grad = None

        return step

    return build


def autocast_build(
    device: str, *, hidden_size: int, trains: bool = True, caches_casts: bool = True
) -> Callable[[], Callable[[], None]]:
    """Four linear layers with float32 weights under bfloat16 autocast: a training step, or a forward alone.

    ``caches_casts=False`` makes autocast drop the bfloat16 copy of a weight when nobody else keeps it. In
    training autograd keeps every copy for the backward, so that the cache costs nothing; in inference it
    costs them all.
    """

    def build():
        layers = nn.Sequential(
            *(nn.Linear(hidden_size, hidden_size, bias=False, device=device) for _ in range(4))
        )

        def step():
            x_BD = torch.ones(1, hidden_size, device=device)
            autocast = torch.autocast(device, torch.bfloat16, cache_enabled=caches_casts)
            with torch.set_grad_enabled(trains), autocast:
                loss = layers(x_BD).sum()
            if trains:
                loss.backward()
                layers.zero_grad()

        return step

    return build
