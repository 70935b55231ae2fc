"""A program with one change made to it from outside, so that it can be traced or measured a second time.

``changed_build(build, name)`` runs the same code: an optimizer is told to step otherwise, the blocks of a module
list run in a checkpoint, gradients are off. What cannot be done from outside (a smaller batch, other states) has
no name here.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial, partialmethod
from unittest.mock import patch

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

from memkit.tool.script import Script, nothing_to_do
from memkit.units import as_one_of


def changed_build(build: Callable[[], Callable[[], object]], name: str) -> Callable[[], Callable[[], object]]:
    """``build`` whose model or step is changed; ``name`` is one of ``PROGRAM_CHANGES``.

    Raises: ValueError: an unknown name; from the changed build, nothing to which the change applies.
    """
    as_one_of("name", name, PROGRAM_CHANGES)
    during_build, during_step = PROGRAM_CHANGES[name]
    if isinstance(build, Script):
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
def _gradients_to_none() -> Iterator[None]:
    with ExitStack() as stack:
        for kind in (nn.Module, torch.optim.Optimizer):
            to_none = partialmethod(lambda self, plain, *_, **__: plain(self), kind.zero_grad)
            stack.enter_context(patch.object(kind, "zero_grad", to_none))
        yield


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
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
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
    "set_to_none": (nothing_to_do, _gradients_to_none),
    "no_grad": (nothing_to_do, torch.no_grad),
    "checkpointed": (_blocks_checkpointed, nullcontext),
}
"""By name: what is around ``build()``, and what is around each step."""
