"""A program with one change made to it from outside, so that it can be traced or measured a second time.

``changed_build(build, name)`` runs the same code: an optimizer is told to step otherwise, the blocks of a module
list run in a checkpoint, gradients are off, a script's batches are half as large. What cannot be done from outside
(other states) has no name here.
"""

import re
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from unittest.mock import patch

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from memkit.program.transformer import class_of
from memkit.units import as_one_of
from stepscope.optimizers import OPTIMIZERS
from stepscope.tool.script import Script, nothing_to_do

BATCH_OPTION = re.compile(r"-b|(?!.*(?:eval|test|val))-*[\w.-]*batch[-_]?size")
"""What scripts call the size of a training batch on their command lines."""


def changed_build(
    build: Callable[[], Callable[[], object]], name: str
) -> Callable[[], Callable[[], object]]:
    """``build`` whose model or step is changed; ``name`` is one of ``PROGRAM_CHANGES``.

    Raises: ValueError: an unknown name; from the changed build, nothing to which the change applies.
    """
    as_one_of("name", name, PROGRAM_CHANGES)
    during_build, during_step = PROGRAM_CHANGES[name]
    if isinstance(build, Script):
        if name == "half_batch" and (words := half_batch_option(build)):
            build, during_build = with_option(build, words), nothing_to_do
        return build.also(during_build, during_step)

    def built():
        with during_build() as made:
            step = build()
            made()

        def changed_step():
            with during_step():
                step()

        return changed_step

    return built


def half_batch_option(script: Script) -> tuple[str, ...]:
    """The script's own option for the size of a training batch, with half its number; nothing where there is none."""
    for word, following in pairwise((*script.arguments, "")):
        option, equals, number = word.partition("=")
        number = number if equals else following
        if BATCH_OPTION.fullmatch(option) and number.isdecimal() and int(number) % 2 == 0:
            half = str(int(number) // 2)
            return (f"{option}={half}",) if equals else (option, half)
    return ()


def with_option(script: Script, words: tuple[str, ...]) -> Script:
    """The script with these words in the place of those of the same option."""
    arguments = list(script.arguments)
    place = next(
        n
        for n, word in enumerate(arguments)
        if word.partition("=")[0] == words[0].partition("=")[0]
    )
    arguments[place : place + len(words)] = words
    return replace(script, arguments=tuple(arguments))


@contextmanager
def _half_batches() -> Iterator[Callable[[], None]]:
    """Every DataLoader makes batches of half the size."""
    plain, halved = DataLoader.__init__, []

    def init(loader, dataset, batch_size=1, *args, **kwargs):
        if batch_size and batch_size % 2 == 0:
            halved.append(batch_size)
            batch_size //= 2
        plain(loader, dataset, batch_size, *args, **kwargs)

    def made():
        if not halved:
            raise ValueError("no option and no DataLoader of an even batch size to halve")

    with patch.object(DataLoader, "__init__", init):
        yield made


@contextmanager
def _zero_grad_as(changed: Callable[[Callable], Callable]) -> Iterator[None]:
    """Modules and optimizers have the ``zero_grad`` that ``changed`` makes of theirs."""
    with ExitStack() as stack:
        for kind in (nn.Module, torch.optim.Optimizer):
            stack.enter_context(patch.object(kind, "zero_grad", changed(kind.zero_grad)))
        yield


@contextmanager
def _optimizers_step(**choices: bool) -> Iterator[None]:
    def choose(optimizer, *_):
        for group in optimizer.param_groups:
            if not choices.keys() <= group.keys():
                raise ValueError(f"{type(optimizer).__name__} has no {' or '.join(choices)}")
            group.update(choices)

    handle = register_optimizer_step_pre_hook(choose)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _eight_bit_adam() -> Iterator[Callable[[], None]]:
    """Every Adam and AdamW that is made is bitsandbytes' in 8 bits; a ``Trainer`` makes its own, by its own option.

    That one keeps the states of embeddings in 32 bits.
    """
    kind = class_of(OPTIMIZERS["8-bit AdamW"])
    arguments = getattr(sys.modules.get("transformers.training_args"), "TrainingArguments", None)

    def init(optimizer, params, lr=1e-3, *_, **__):
        optimizer.__class__ = kind
        kind.__init__(optimizer, params, lr=lr)

    def after_init(options):
        plain(options)
        options.optim = "adamw_bnb_8bit"

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.optim.Adam, "__init__", init))  # AdamW's calls it
        if arguments:
            plain = arguments.__post_init__
            stack.enter_context(patch.object(arguments, "__post_init__", after_init))
        yield lambda: None


@contextmanager
def _blocks_checkpointed() -> Iterator[Callable[[], None]]:
    """The blocks that repeat run again in the backward; a Hugging Face model is asked to do so itself."""
    seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    handle = nn.modules.module.register_module_module_registration_hook(
        lambda parent, name, child: seen.update(m for m in (parent, child) if m is not None)
    )
    try:
        yield lambda: _checkpoint(list(seen))
    finally:
        handle.remove()


def _checkpoint(modules: list[nn.Module]) -> None:
    own = [m for m in modules if getattr(m, "supports_gradient_checkpointing", False)]
    inner = {id(part) for module in own for part in module.modules() if part is not module}
    for module in own:
        if id(module) not in inner:
            module.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
    if own:
        return
    lists = [m for m in modules if isinstance(m, (nn.ModuleList, nn.Sequential)) and _repeats(m)]
    if not lists:
        raise ValueError("no list of equal blocks to run again was found in the model")
    done: set[int] = set()
    for blocks in sorted(lists, key=lambda m: -sum(p.numel() for p in m.parameters())):
        if id(blocks) not in done:
            done |= {id(part) for block in blocks for part in block.modules()}
            for block in blocks:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _repeats(blocks: nn.Module) -> bool:
    kinds = [type(block) for block in blocks]
    return len(kinds) > 1 and len(set(kinds)) == 1 and any(True for _ in blocks[0].parameters())


PROGRAM_CHANGES = {
    "for_loop": (nothing_to_do, partial(_optimizers_step, foreach=False)),
    "fused": (nothing_to_do, partial(_optimizers_step, foreach=False, fused=True)),
    "set_to_none": (
        nothing_to_do,
        partial(_zero_grad_as, lambda plain: lambda owner, *_, **__: plain(owner)),
    ),
    "no_grad": (nothing_to_do, torch.no_grad),
    "checkpointed": (_blocks_checkpointed, nullcontext),
    "eight_bit": (_eight_bit_adam, nullcontext),
    # As in the second of two micro-batches, whose gradients are added to those of the first.
    "half_batch": (_half_batches, partial(_zero_grad_as, lambda plain: lambda *_, **__: None)),
}
"""By name: what is around ``build()``, and what is around each step."""
