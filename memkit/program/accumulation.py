"""A training loop with gradient accumulation that is right in all of its corners, short enough to take away.

A *window* is the micro-batches between two optimizer steps. The loss of each is weighted by its share of the window's
target tokens, over all ranks, so that the gradient is that of one big batch, however long the sequences are. The last
window may be shorter and is trained on all the same. Ranks communicate once a window.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor, nn

IGNORED = -100
"""Targets of this value are padding: ``F.cross_entropy`` leaves them out of its mean."""


def windows(batches: Iterable, size: int) -> Iterator[list]:
    """Lists of ``size`` micro-batches in turn; the last may be shorter.

    >>> list(windows("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    batches = iter(batches)
    while window := list(islice(batches, size)):
        yield window


def train_window(
    model: nn.Module, optimizer: torch.optim.Optimizer, window: Sequence[tuple[Tensor, Tensor]],
    *, autocast_dtype: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None, max_norm: float = 1.0,
) -> float:
    """One optimizer step on a window of micro-batches; the mean loss over all its target tokens.

    ``model(inputs, targets)`` is a micro-batch's mean loss over its targets other than ``IGNORED``.

    Shapes: inputs and targets [batch, sequence] token ids, of any size in each micro-batch.
    """
    device = window[0][0].device
    scaler = scaler or torch.amp.GradScaler(enabled=False)
    counts = [(targets != IGNORED).sum() for _, targets in window]
    num_tokens, num_ranks, total = sum(counts), 1, 0.0
    if dist.is_initialized():  # DDP averages: ranks × loss · own ÷ all tokens is the right mean
        dist.all_reduce(num_tokens)
        num_ranks = dist.get_world_size()
    for number, ((inputs, targets), count) in enumerate(zip(window, counts, strict=True), start=1):
        is_waiting = number < len(window) and hasattr(model, "no_sync")
        with model.no_sync() if is_waiting else nullcontext():  # around the forward too
            with torch.autocast(device.type, autocast_dtype, enabled=autocast_dtype is not None):
                loss = model(inputs, targets) * count * num_ranks / num_tokens
            scaler.scale(loss).backward()
        total += loss.detach() / num_ranks
    scaler.unscale_(optimizer)  # clip true gradients, once a window
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if dist.is_initialized():
        dist.all_reduce(total)
    return total.item()
