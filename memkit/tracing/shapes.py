"""Tensors that have a shape and no values: what a program may ask of them, and what it may not."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from memkit.program.hooks import line_of, outside


class NeedsValues(RuntimeError):
    """An operation asked for the values of a tensor, and the trace has only shapes."""

    def __init__(self, operation: str):
        super().__init__(
            f"{program_line()}: {operation} needs the values of a tensor, and a trace has only shapes and dtypes. Take "
            "it out of build and step, or write it with a fixed shape: torch.where or masked_fill in place of a mask "
            "as index, a constant in place of a branch. Or use measure_memory"
        )


def program_line() -> str:
    """The program's own line that runs now."""
    own = str(__file__).rpartition("tracing")[0]
    frame = outside(sys._getframe(1), own, *torch.__path__, "<")
    return line_of(frame) if frame else "the step"


class ShapesOnly(TorchFunctionMode):
    """Sees each call before torch does. ``rules``: what is done in the place of a function."""

    def __init__(self):
        super().__init__()
        self.rules: dict[Callable, Callable] = {}
        self.rules |= dict.fromkeys(
            (Tensor.item, Tensor.__float__, Tensor.tolist, Tensor.__format__), read
        )
        self.rules |= dict.fromkeys((Tensor.__bool__, Tensor.__int__, Tensor.__index__), refuse)
        self.rules[Tensor.__deepcopy__] = deepcopied

    def __torch_function__(self, func, types, args=(), kwargs=None):
        rule = self.rules.get(func)
        return rule(self, func, args, kwargs or {}) if rule else func(*args, **(kwargs or {}))

    def also_in(self, callback: Callable) -> Callable:
        """``callback`` under these rules also where torch calls it from inside an operation: a checkpoint's hooks."""

        @functools.wraps(callback)
        def with_rules(*args):
            if torch._C._len_torch_function_stack():
                return callback(*args)
            with self:
                return callback(*args)

        return with_rules


def has_values(tensor: Tensor) -> bool:
    """Whether it is a real tensor, of the host."""
    return not tensor.is_meta and not isinstance(tensor, torch._subclasses.FakeTensor)


def read(mode: ShapesOnly, func: Callable, args: tuple, kwargs: dict):
    """1.0 for the value that a program reads and prints, 0 where it is a whole number."""
    tensor = args[0]
    with torch._C.DisableTorchFunction():
        if has_values(tensor):
            return func(*args, **kwargs)
        value = 1.0 if tensor.is_floating_point() else 0
        if func is Tensor.tolist:
            return torch.full(tensor.shape, value, device="cpu").tolist()
    return format(value, *args[1:]) if func is Tensor.__format__ else value


def refuse(mode: ShapesOnly, func: Callable, args: tuple, kwargs: dict):
    """No answer: what the program does next depends on it."""
    with torch._C.DisableTorchFunction():
        if has_values(args[0]):
            return func(*args, **kwargs)
    raise NeedsValues(f"Tensor.{func.__name__}")


def deepcopied(mode: ShapesOnly, func: Callable, args: tuple, kwargs: dict):
    """``copy.deepcopy`` of a tensor; torch's own copies a fake one's inside, and crashes."""
    tensor, memo = args
    if not isinstance(tensor, torch._subclasses.FakeTensor) or not tensor.is_leaf:
        return func(tensor, memo)
    if id(tensor) not in memo:
        memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


@contextmanager
def shapes_only(mode: ShapesOnly) -> Iterator[ShapesOnly]:
    """Run under ``mode``, in autograd's callbacks too; a gradient scaler finds all finite."""
    make_hooks = torch.autograd.graph.saved_tensors_hooks.__init__

    def init_hooks(hooks, pack, unpack):
        make_hooks(hooks, mode.also_in(pack), mode.also_in(unpack))

    def step_always(scaler, optimizer, optimizer_state, *args, **kwargs):
        return optimizer.step(*args, **kwargs)

    with (
        patch.object(torch.autograd.graph.saved_tensors_hooks, "__init__", init_hooks),
        patch.object(torch.amp.grad_scaler.GradScaler, "_maybe_opt_step", step_always),
        mode,
    ):
        yield mode
