"""What an optimizer's step allocates: its states the first time, and temporaries every time.

The update of AdamW needs √v + ε for every parameter. PyTorch's implementations hold that at different widths:

- ``foreach`` works on lists: one temporary for every parameter, all at once, as large as the parameters together;
- ``for-loop`` takes one tensor at a time: √v and √v divided by a constant, while Python still holds the result of the
  tensor before;
- ``fused`` computes it in registers: nothing.

An optimizer that steps in the backward does this for one tensor at a time. A step that no chapter draws (Muon's, and
Adafactor's on lists) is left to the trace.

As in the model's forward, Python's reference counts say when a temporary dies: a name holds its tensor until it is
bound anew, which is after the next tensor is made.

Source: ``_multi_tensor_adam`` and ``_single_tensor_adam`` of torch/optim/adam.py, and their like in sgd.py
and _adafactor.py (2.13).
"""

import math
from collections.abc import Callable, Iterable, Sequence

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.kernels import sum_buffers
from memkit.formula.paper import Paper, Storage
from memkit.formula.parameters import (
    Parameter,
    kept_parameters,
    parameter_ledger,
    stepped_parameters,
    trained_parameters,
)
from memkit.formula.states import (
    StateTensor,
    optimizer_tensors,
    shared_maps,
    shared_tensors,
    trained_precision,
    weight_tensors,
)
from memkit.setup.layouts import Layout
from memkit.setup.optimizers import MIN_OFFLOADED, TRACE_IT
from memkit.setup.training import TrainingSetup


def write_init(setup: TrainingSetup, paper: Paper, layout: Layout | None = None) -> None:
    """What exists before the first step: weights, adapters, the master copy of recipes that have one, DDP's buckets."""
    precision, trained = trained_precision(setup.precision, setup.adapter), kept_parameters(setup.model, layout)
    if setup.adapter is not None:
        trained = trained_parameters(setup.model, setup.adapter)
        for parameter in parameter_ledger(setup.model):
            _write(paper, "empty", weight_tensors(parameter, setup.precision, setup.adapter))
        _write(paper, "create_dynamic_map", shared_maps(setup.adapter))
    for parameter in trained:
        states = optimizer_tensors(parameter, precision, setup.optimizer) if precision.master_dtype else ()
        masters = [tensor for tensor in states if tensor.role == "master weight"]
        _write(paper, "empty", [*weight_tensors(parameter, precision, setup.adapter), *masters])
    if layout is not None and not layout.is_fully_sharded:
        paper.where, paper.op = "DistributedDataParallel", "buckets"
        num_values = sum(parameter.count for parameter in kept_parameters(setup.model))
        paper.place(tensor_bytes(num_values, precision.weight_dtype), "gradients")


def write_states(setup: TrainingSetup, paper: Paper, layout: Layout | None = None) -> None:
    """The states that the first step makes. What torch keeps on the host counts only where the host is the device."""
    parameters = updated_parameters(setup, layout)
    for parameter in parameters:
        write_states_of(setup, paper, parameter)
    _write(paper, "create_dynamic_map", shared_tensors(parameters, setup.optimizer))


def write_states_of(setup: TrainingSetup, paper: Paper, parameter: Parameter) -> None:
    """The states of one parameter, but for a master copy, which was there before."""
    states = optimizer_tensors(parameter, trained_precision(setup.precision, setup.adapter), setup.optimizer)
    made = [tensor for tensor in states if tensor.role != "master weight"]
    _write(paper, "zeros_like", [t for t in made if not (t.is_on_host and setup.device == "cuda")])


def write_step(setup: TrainingSetup, paper: Paper, layout: Layout | None = None) -> None:
    """The temporaries of one step, in the order in which they come and go."""
    parameters = updated_parameters(setup, layout)
    if setup.optimizer.is_on_host:
        parameters = tuple(parameter for parameter in parameters if parameter.count < MIN_OFFLOADED)
    paper.where = "optimizer"
    write_update(setup, paper, parameters)


def updated_parameters(setup: TrainingSetup, layout: Layout | None = None) -> tuple[Parameter, ...]:
    """What a rank's optimizer updates: its share of the model's parameters, or the adapters."""
    if setup.adapter is None:
        return stepped_parameters(setup.model, layout)
    return trained_parameters(setup.model, setup.adapter)


def write_update(setup: TrainingSetup, paper: Paper, parameters: Sequence[Parameter]) -> None:
    """The temporaries of an update of these parameters."""
    paper.op = setup.optimizer.implementation
    dtype = trained_precision(setup.precision, setup.adapter).moment_dtype
    rule = setup.optimizer.record.temporaries[paper.op]
    if rule == TRACE_IT:
        raise ValueError(
            f"the step of {setup.optimizer.name} ({paper.op}) has no formula; trace it: "
            "trace_memory(training_build(setup))"
        )
    RULES[rule](Temporaries(paper, dtype, setup.device == "cuda"), parameters)


class Temporaries:
    """Makes the tensors of an update, in the dtype of the moments where no other is named."""

    def __init__(self, paper: Paper, dtype: str, is_cuda: bool):
        self.paper, self.dtype, self.is_cuda = paper, dtype, is_cuda

    def one(self, count: int, dtype: str = "") -> Storage:
        """A new tensor."""
        return self.paper.allocate(tensor_bytes(count, dtype or self.dtype))

    def like(self, parameters: Iterable[Parameter]) -> list[Storage]:
        """A list of new tensors, one like every parameter, all there before the first is freed."""
        return [self.one(parameter.count) for parameter in parameters]

    def reduced(self, shape: tuple[int, ...], axis: int | None = None) -> Storage:
        """A norm or a mean along one axis, or of the whole; its kernel's scratch comes and goes beside it."""
        walks = [(size, math.prod(shape[i + 1 :])) for i, size in enumerate(shape)]
        along = walks if axis is None else [walks.pop(axis)]
        kept = [] if axis is None else walks
        out = self.one(math.prod(size for size, _ in kept))
        for sizes in sum_buffers(along, kept) if self.is_cuda else ():
            [self.paper.allocate(size) for size in sizes]
        return out


def _one_at_a_time(new: Temporaries, parameters: Iterable[Parameter]) -> None:
    """One like a parameter, freed before the next parameter's."""
    for parameter in parameters:
        new.one(parameter.count)


def _adam_one_by_one(new: Temporaries, parameters: Iterable[Parameter]) -> None:
    """√v is born, then √v / √(1 - β₂ᵗ); the first is freed; the second stays until the next one replaces it."""
    _denominator = None
    for parameter in parameters:
        root = new.one(parameter.count)
        _denominator = new.one(parameter.count)
        del root  # an argument of the division, without a name


def _adafactor_one_by_one(new: Temporaries, parameters: Iterable[Parameter]) -> None:
    """One tensor at a time; what is made of a matrix stays until the next matrix has its own."""
    _row_mean = _column_mean = _square = _update = None
    for p in parameters:
        new.reduced(p.shape)
        if len(p.shape) > 1:
            _row_mean = new.reduced(p.shape, -1)
            _column_mean = new.reduced(p.shape, -2)
        else:
            _square = new.one(p.count)
        estimate = new.one(p.count)
        if len(p.shape) > 1:
            new.reduced(p.shape[:-1], -1)
        _update = estimate
        new.reduced(p.shape)


RULES: dict[str, Callable[[Temporaries, Iterable[Parameter]], None]] = {
    "none": lambda new, parameters: None, "all at once": Temporaries.like, "one at a time": _one_at_a_time,
    "root and denominator": _adam_one_by_one, "factored, one by one": _adafactor_one_by_one,
}
"""What an optimizer's record calls its temporaries, and the function that plays them."""


def _write(paper: Paper, op: str, tensors: Iterable[StateTensor]) -> None:
    """Tensors that stay to the end of the run."""
    paper.op = op
    for tensor in tensors:
        paper.where = tensor.parameter
        paper.place(tensor.num_bytes, tensor.part)
