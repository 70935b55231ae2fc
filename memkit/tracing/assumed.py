"""What only values could say and a program says instead: how many rows a mask keeps, which way a branch goes.

``trace_memory(build, assume={"train.py:41": 128})`` answers whatever asks for values on that line, or below it in a
library that the line calls.
"""

import sys
from collections.abc import Mapping

import torch
from torch import Tensor

from memkit.program.doors import source_name

INDEX_BYTES = 8
UNIQUE = ("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive")
ASSUMED = {"_local_scalar_dense", "allclose", "equal", "nonzero", "masked_select", "index", *UNIQUE}
"""Operations for which one number says what they return."""


class Assumptions:
    """Numbers by ``file:line``.

    Raises: ValueError: a key that is no line, or a value that is no number of zero or more.
    """

    def __init__(self, numbers: Mapping[str, float]):
        for line, number in numbers.items():
            file, _, place = line.rpartition(":") if isinstance(line, str) else ("", "", "")
            if not file or not place.isdigit():
                raise ValueError(f"assume={{{line!r}: ...}} is no line such as 'train.py:41'")
            if not isinstance(number, (int, float)) or number < 0:
                raise ValueError(f"assume={{{line!r}: {number!r}}} is not a number of zero or more")
        self.numbers = dict(numbers)
        self.unused = set(numbers)

    def here(self) -> float | None:
        """The number for the innermost line of the call stack that has one."""
        frame = sys._getframe(1) if self.numbers else None
        while frame is not None:
            line = f"{source_name(frame.f_code.co_filename)}:{frame.f_lineno}"
            if line in self.numbers:
                self.unused.discard(line)
                return self.numbers[line]
            frame = frame.f_back
        return None

    def refuse_unused(self) -> None:
        """Raises: ValueError: a line asked for no values, so that its number may be meant for another."""
        if self.unused:
            raise ValueError(f"assume: nothing on {', '.join(sorted(self.unused))} asked for values in this trace")


def result_of_size(func, args: tuple, kwargs: dict, number: float) -> tuple[object, int]:
    """The result of an operation that keeps ``number`` rows, and the bytes of scratch beside it.

    Raises: NotImplementedError: an operation whose result a number does not determine.
    """
    tensor, name, size = args[0], func._opname, int(number)
    if name == "_local_scalar_dense":
        return number if tensor.is_floating_point() else bool(number) if tensor.dtype is torch.bool else size, 0
    if name in ("allclose", "equal"):
        return bool(number), 0
    if name == "nonzero":
        return tensor.new_empty((size, tensor.dim()), dtype=torch.int64), 0
    if name == "masked_select":
        return tensor.new_empty((size,)), INDEX_BYTES * size * tensor.dim()
    if name in UNIQUE:
        places = tensor.new_empty(tensor.shape, dtype=torch.int64)
        return (tensor.new_empty((size,)), places, tensor.new_empty((size,), dtype=torch.int64)), 0
    if name == "index":
        indices, scratch = [], 0
        for index in args[1]:
            if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                indices += [index.new_empty((size,), dtype=torch.int64) for _ in range(index.dim())]
                scratch += INDEX_BYTES * size * index.dim()
            else:
                indices.append(index)
        return func(tensor, indices, *args[2:], **kwargs), scratch
    raise NotImplementedError(f"{func}: how many rows it keeps does not say what it returns; use measure_memory")
