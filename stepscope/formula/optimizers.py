"""The temporaries of the steps of ``stepscope.setup.optimizers``."""

import math
from collections.abc import Sequence

from memkit.formula.kernels import sum_buffers
from memkit.formula.liveness import Block
from memkit.formula.parameters import Parameter
from memkit.formula.update import RULES, Temporaries


def reduced(new: Temporaries, shape: tuple[int, ...], axis: int | None = None) -> Block:
    """A norm or a mean along one axis, or of the whole; its kernel's scratch comes and goes beside it."""
    walks = [(size, math.prod(shape[i + 1 :])) for i, size in enumerate(shape)]
    along = walks if axis is None else [walks.pop(axis)]
    kept = [] if axis is None else walks
    out = new.one(math.prod(size for size, _ in kept))
    for sizes in sum_buffers(along, kept) if new.is_cuda else ():
        new.drop(*[new.record.new(num_bytes, new.op, new.where) for num_bytes in sizes])
    return out


def _one_at_a_time(new: Temporaries, parameters: Sequence[Parameter]) -> None:
    """One like a parameter, freed before the next parameter's."""
    for parameter in parameters:
        new.drop(new.one(parameter.count))


def _adafactor_one_by_one(new: Temporaries, parameters: Sequence[Parameter]) -> None:
    """One tensor at a time; what is made of a matrix stays until the next matrix has its own."""
    row_mean = column_mean = square = update = None
    for p in parameters:
        new.drop(reduced(new, p.shape))
        if len(p.shape) > 1:
            before, row_mean = row_mean, reduced(new, p.shape, -1)
            new.drop(before)
            before, column_mean = column_mean, reduced(new, p.shape, -2)
            new.drop(before)
        else:
            before, square = square, new.one(p.count)
            new.drop(before)
        estimate = new.one(p.count)
        if len(p.shape) > 1:
            new.drop(reduced(new, p.shape[:-1], -1))
        new.drop(update)
        update = estimate
        new.drop(reduced(new, p.shape))
    new.drop(row_mean, column_mean, square, update)


RULES["one at a time"] = _one_at_a_time
RULES["factored, one by one"] = _adafactor_one_by_one
