"""Small programs whose memory is measured on a card: one attention kernel, one stack of layers under autocast.

Each function returns a ``build`` as ``trace_memory`` and ``measure_memory`` take it: ``build()`` makes the tensors
and returns the step.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
"""The kernels that ``scaled_dot_product_attention`` chooses from; a CPU has the first two."""


def attention_build(
    kernel: str,
    device: str,
    *,
    seq_len: int,
    num_heads: int = 16,
    head_dim: int = 64,
    dtype: str = "bfloat16",
) -> Callable[[], Callable[[], None]]:
    """Causal attention of one sequence by one kernel, forward and backward.

    Shapes: query, key and value [1, num_heads, seq_len, head_dim]; the stored scores would be
    [num_heads, seq_len, seq_len].

    Raises: ValueError: an unknown kernel.
    """
    if kernel not in KERNELS:
        raise ValueError(f"kernel={kernel!r} is not one of {', '.join(KERNELS)}")
    shape = (1, num_heads, seq_len, head_dim)

    def build():
        parameters = [
            nn.Parameter(torch.ones(shape, device=device, dtype=getattr(torch, dtype))) for _ in range(3)
        ]

        def step():
            with sdpa_kernel(KERNELS[kernel]):
                output = F.scaled_dot_product_attention(*parameters, is_causal=True)
            output.sum().backward()
            for parameter in parameters:
                parameter.grad = None

        return step

    return build


def autocast_build(
    device: str, *, hidden_size: int, num_layers: int = 4, trains: bool = True, caches_casts: bool = True
) -> Callable[[], Callable[[], None]]:
    """Linear layers with float32 weights under bfloat16 autocast: a training step, or a forward alone.

    ``caches_casts=False`` makes autocast drop the bfloat16 copy of a weight when nobody else keeps it. In training
    autograd keeps every copy for the backward, so that the cache costs nothing; in inference it costs them all.
    """

    def build():
        layers = nn.Sequential(
            *(nn.Linear(hidden_size, hidden_size, bias=False, device=device) for _ in range(num_layers))
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
