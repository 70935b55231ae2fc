"""What torch refuses because of dtypes, which tensors without values let pass: torch is asked by one tiny call.

A kernel checks its dtypes when it runs: a product of float32 and bfloat16 (a forgotten autocast) or targets of 32 bits
end a real program, and ``meta`` and fake kernels do not look. Where an operation is given more than one dtype it is
made once on zeros, two along each dimension. It counts as refused if the same call passes with dtypes that agree.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from memkit.tracing.refusals import program_line

WHOLE_NUMBERS = (torch.int8, torch.int16, torch.int32)
REFUSALS: dict[tuple, str | None] = {}
"""Torch's own words by operation and arguments; None where it takes them."""


def refuse_dtypes(func, args: tuple, kwargs: dict) -> None:
    """Raises: RuntimeError: torch refuses the call for its dtypes; in torch's words, with the program's line.

    ``func`` is an operation or one of torch's Python functions. Of a backward's own operations nothing is asked: what
    their kernels hand to each other differs by device.
    """
    dtypes = {value.dtype for value in (*args, *kwargs.values()) if isinstance(value, Tensor)}
    if len(dtypes) < 2 or torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
        return
    key = (func, repr(tree_map(described, (args, kwargs))))
    if key not in REFUSALS:
        with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
            REFUSALS[key] = words_of(func, args, kwargs)
    if REFUSALS[key]:
        raise RuntimeError(f"{program_line()}: {REFUSALS[key]}")


def described(value: object) -> object:
    """What of an argument a check of dtypes may look at."""
    return (value.dtype, min(value.dim(), 9)) if isinstance(value, Tensor) else value


def words_of(func, args: tuple, kwargs: dict) -> str | None:
    """Torch's words where the call fails on tiny zeros and passes on zeros of dtypes that agree, else None."""
    first = next(value.dtype for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    words = [""]
    for dtype in (None, first):
        given, by_name = tree_map(lambda value, dtype=dtype: tiny(value, dtype), (args, kwargs))
        try:
            func(*given, **by_name)
        except (RuntimeError, IndexError, TypeError) as error:
            words.append(" ".join(str(error).split()))
        else:
            return words[-1] or None
    return None


def tiny(value: object, first: torch.dtype | None = None) -> object:
    """Zeros of at most two along each dimension on the CPU; with ``first`` in dtypes that agree with it."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if type(value) is int:
        return min(value, 2)  # a size among the arguments, as LayerNorm has it
    if not isinstance(value, Tensor):
        return value
    dtype = value.dtype
    if first is not None and dtype in WHOLE_NUMBERS:
        dtype = torch.int64
    elif first is not None and first.is_floating_point and dtype.is_floating_point:
        dtype = first
    return torch.zeros([min(size, 2) for size in value.shape], dtype=dtype, device="cpu")
