"""The program's own line, found among the frames; and what a trace cannot follow, refused with that line.

A refusal says what to write there instead: for the reader of chapter 07 whose own program has a branch on a value, a
sparse tensor or a transform of functions. A line is the program's own if its file is none of torch's, of another
library's, of Python's or of these two packages: where those lie is written here for all who ask.
"""

import inspect
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
import torch.utils._device
from torch import Tensor

import memkit
from memkit.program.hooks import is_wrapper, line_of, outside
from memkit.tracing import shapes

OWN_HOME, TORCH_HOME = str(Path(__file__).parents[1]), str(Path(torch.__file__).parent)
LIBRARY_HOME = str(Path(TORCH_HOME).parent)
aten = torch.ops.aten
STANDARD_HOME = sysconfig.get_path("stdlib")
KIT_HOME = str(Path(memkit.__file__).parent)
BETWEEN = (OWN_HOME, KIT_HOME, torch.utils._device.__file__, torch.overrides.__file__)
"""Files whose frames may stand between a call that asks for values and the code that made it: modes
of torch, as of ``with torch.device("cuda")``, hand a call on."""


class NeedsValues(shapes.NeedsValues):
    """An operation asked for the values of a tensor, and the trace has only shapes."""

    def __init__(self, operation: str, *, can_assume: bool = True):
        line, own = program_line(), own_line()
        where = line if line.startswith(own) else f"{own}: in {line}"
        words = (
            f"{where}: {operation} needs the values of a tensor, and a trace has only shapes and "
            "dtypes. Take it out of build and step, or write it with a fixed shape: torch.where or "
            "masked_fill in place of a mask as index, a constant in place of a branch. "
        )
        offer = (
            "Or say what comes out (how many rows, the longest target, a value, 1 or 0 for a "
            f"branch): trace_script(..., assume={{{own!r}: 128}}), or stepscope report --assume {own}=128"
        )
        if not can_assume:
            offer = "No one number says what comes out: use measure_memory"
        RuntimeError.__init__(self, words + offer)


def program_line() -> str:
    """The program's own line that runs now."""
    frame = outside(outside(calling_frame(), TORCH_HOME, "<"), TORCH_HOME, OWN_HOME, KIT_HOME)
    return line_of(frame) if frame else "the step"


def own_line() -> str:
    """``file:line`` of the nearest code that no installed library has; else the program's line."""
    frame = outside(
        calling_frame(), LIBRARY_HOME, TORCH_HOME, OWN_HOME, KIT_HOME, STANDARD_HOME, "<"
    )
    return (line_of(frame) if frame else program_line()).rpartition(" ")[0]


def calling_frame() -> FrameType | None:
    """The frame, torch's own or the program's, that called into this package."""
    return outside(sys._getframe(1), *BETWEEN)


def values_of(frame: FrameType) -> dict[str, object]:
    """The names of a function that runs, or of a module, and their values; the frame keeps no copy of them."""
    names = frame.f_locals
    values = dict(names)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13):
        names.clear()  # a copy, which would keep every value of the function
    return values


def not_followed(what: object, instead: str) -> NotImplementedError:
    """The refusal of what a trace cannot follow, with the program's line and what to write there."""
    return NotImplementedError(
        f"{program_line()}: a trace does not follow {what}; {instead}, or use measure_memory"
    )


def refusing(what: object, instead: str) -> Callable:
    """A function of torch's that says, in its place, what to do instead."""

    def refuse(*_, **__):
        raise not_followed(what, instead)

    return refuse


def refuse_unseen(tensors: list[Tensor]) -> None:
    """Raises: NotImplementedError: a sparse tensor or one inside ``torch.func``, whose storage is not seen."""
    for tensor in tensors:
        if is_wrapper(tensor):
            continue
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise not_followed("torch.func's transforms", "take gradients by torch.autograd.grad")
        if tensor.layout is not torch.strided:
            raise not_followed(
                "sparse tensors", "write it with dense ones (scatter_add_, sparse=False)"
            )


def refuse_dtypes(func, args: tuple) -> None:
    """Raises: RuntimeError: a product of two dtypes, as a forgotten autocast makes it, or targets of 32 bits.

    torch refuses both when it runs, and its kernels without values let them pass: the trace would give
    a number for a program that never ends a step.
    """
    if func is aten.mm.default and args[0].dtype is not args[1].dtype:
        raise RuntimeError(f"{program_line()}: a product of {args[0].dtype} and {args[1].dtype}")
    if func is aten.nll_loss_forward.default and args[1].dtype not in (torch.int64, torch.uint8):
        raise RuntimeError(
            f"{program_line()}: targets of {args[1].dtype}: expected scalar type Long"
        )
