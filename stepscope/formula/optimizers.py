"""The temporaries of the steps of ``stepscope.setup.optimizers``."""

import math
from collections.abc import Iterable

from memkit.formula.kernels import sum_buffers
from memkit.formula.optimizer import RULES, Temporaries
from memkit.formula.paper import Storage
from memkit.formula.parameters import Parameter


def reduced(new: Temporaries, shape: tuple[int, ...], axis: int | None = None) -> Storage:
    """A norm or a mean along one axis, or of the whole; its kernel's scratch comes and goes beside it."""
    walks = [(size, math.prod(shape[i + 1 :])) for i, size in enumerate(shape)]
    along = walks if axis is None else [walks.pop(axis)]
    kept = [] if axis is None else walks
    out = new.one(math.prod(size for size, _ in kept))
    for sizes in sum_buffers(along, kept) if new.is_cuda else ():
        [new.paper.allocate(size) for size in sizes]
    return out


def _one_at_a_time(new: Temporaries, parameters: Iterable[Parameter]) -> None:
    """One like a parameter, freed before the next parameter's."""
    for parameter in parameters:
        new.one(parameter.count)


def _adafactor_one_by_one(new: Temporaries, parameters: Iterable[Parameter]) -> None:
    """One tensor at a time; what is made of a matrix stays until the next matrix has its own."""
    _row_mean = _column_mean = _square = _update = None
    for p in parameters:
        reduced(new, p.shape)
        if len(p.shape) > 1:
            _row_mean = reduced(new, p.shape, -1)
            _column_mean = reduced(new, p.shape, -2)
        else:
            _square = new.one(p.count)
        estimate = new.one(p.count)
        if len(p.shape) > 1:
            reduced(new, p.shape[:-1], -1)
        _update = estimate
        reduced(new, p.shape)


RULES["one at a time"] = _one_at_a_time
RULES["factored, one by one"] = _adafactor_one_by_one
