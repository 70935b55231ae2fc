"""A small GPT that learns to spell: 0.4 million weights, one long poem, a step in a few hundredths of a second.

It is ``memkit.program``'s ``Transformer`` over the 128 ASCII codes, so a token is a character. The text, Milton's
"Paradise Lost", lies beside this file with its source and licence; its last tenth is held out.

    >>> model = make_small_gpt(seed=0)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    >>> losses = train(model, optimizer, text_batches(20))
    >>> 4.9 > losses[0] > 4.7, 3.6 > losses[-1]
    (True, True)
"""

import copy
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from book.loss_scales import FixedScale
from memkit.models import gpt2_config
from memkit.program.transformer import Transformer
from memkit.setup import TrainingSetup
from memkit.units import as_one_of

TEXT_FILE = Path(__file__).with_name("paradise_lost.txt")
SMALL_GPT = replace(
    gpt2_config("small GPT", num_layers=2, hidden_size=128, num_heads=4),
    vocab_size=128,
    max_seq_len=128,
)
"""Every width is a multiple of 16, as FP8 matrix products want it."""

PARTS = ("train", "held out")


@functools.cache
def text_tokens() -> Tensor:
    """The whole text, one token a character: [454,471] ASCII codes."""
    return torch.tensor(list(TEXT_FILE.read_bytes()))


def text_batches(
    num_batches: int,
    *,
    batch_size: int = 8,
    seq_len: int = 64,
    seed: int = 0,
    part: str = "train",
    device: str = "cpu",
) -> Iterator[tuple[Tensor, Tensor]]:
    """``num_batches`` times (inputs, targets) from random places of the text; the same ``seed``, the same batches.

    Shapes: inputs and targets [batch_size, seq_len]; a target is the character after its input.

    Raises: ValueError: a part that is neither "train" nor "held out".
    """
    as_one_of("part", part, PARTS)
    tokens = text_tokens()
    boundary = len(tokens) * 9 // 10
    tokens = tokens[:boundary] if part == "train" else tokens[boundary:]
    chance = torch.Generator().manual_seed(seed)
    # a bar where it takes longer than 10 s, and not among the errors
    for _ in tqdm(range(num_batches), "batches", leave=False, delay=10, file=sys.stdout):
        starts = torch.randint(len(tokens) - seq_len, (batch_size, 1), generator=chance)
        windows = tokens[starts + torch.arange(seq_len + 1)].to(device)
        yield windows[:, :-1], windows[:, 1:]


def make_small_gpt(
    seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Transformer:
    """The model with the weights that ``seed`` gives, drawn in float32 and then rounded to ``dtype``."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Transformer(TrainingSetup(model=SMALL_GPT, seq_len=64, device=device), device="cpu")
    return model.to(device, dtype)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    autocast_dtype: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | FixedScale | None = None,
    max_norm: float | None = None,
) -> list[float]:
    """The loss of each step, one step a batch; with autocast, loss scaling and clipping where asked for."""
    scaler = scaler or torch.amp.GradScaler(enabled=False)
    losses = []
    for inputs, targets in batches:
        with torch.autocast(inputs.device.type, autocast_dtype, enabled=autocast_dtype is not None):
            loss = model(inputs, targets)
        scaler.scale(loss).backward()
        if max_norm is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def held_out_loss(model: nn.Module, num_batches: int = 20) -> float:
    """Mean loss in nats per character over batches of the text's last tenth, always the same ones."""
    batches = text_batches(
        num_batches, seed=1, part="held out", device=next(model.parameters()).device.type
    )
    return sum(model(inputs, targets).item() for inputs, targets in batches) / num_batches


def fine_tune(
    base: nn.Module,
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    dtype: torch.dtype,
    num_rounds: int = 5,
) -> list[float]:
    """The held-out loss of a copy of ``base`` in ``dtype``, at its start and after each round of ten steps.

    The weights are scored in float32, so that what they learned shows and not how a 16-bit loss rounds.
    """
    model = copy.deepcopy(base).to(dtype)
    optimizer, held_out = make_optimizer(model.parameters()), []
    for number in range(num_rounds):
        held_out.append(held_out_loss(copy.deepcopy(model).float()))
        train(model, optimizer, text_batches(10, seed=100 + number))
    return [*held_out, held_out_loss(copy.deepcopy(model).float())]
