"""What an optimizer's step allocates: its states the first time, and temporaries every time.

The update of AdamW needs √v + ε for every parameter. PyTorch's implementations hold that at different widths:

- ``foreach`` works on lists: one temporary for every parameter, all at once, as large as the parameters together;
- ``for-loop`` takes one tensor at a time: √v and √v divided by a constant, while Python still holds the result of the
  tensor before;
- ``fused`` computes it in registers: nothing.

Muon has no such choice: five rounds of three products in bfloat16 for each matrix of the blocks, then AdamW's step
on the rest. An optimizer that steps in the backward does all this for one tensor at a time.

Source: ``_multi_tensor_adam`` and ``_single_tensor_adam`` of torch/optim/adam.py, and their like in sgd.py,
_adafactor.py and _muon.py (2.13).
"""

import math
from collections.abc import Callable, Iterable, Sequence

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.adapters import trained_parameters
from memkit.formula.kernels import sum_buffers
from memkit.formula.parameters import Parameter, parameter_ledger
from memkit.formula.shares import kept_parameters, stepped_parameters
from memkit.formula.states import (
    StateTensor,
    is_hidden_matrix,
    optimizer_tensors,
    precision_of,
    shared_tensors,
    weight_tensors,
)
from memkit.formula.tape import Storage, Tape
from memkit.setup.layouts import Layout
from memkit.setup.optimizers import OPTIMIZERS
from memkit.setup.recipes import MIN_OFFLOADED, Precision
from memkit.setup.training import TrainingSetup

NEWTON_SCHULZ_ROUNDS = 5


def write_init(setup: TrainingSetup, tape: Tape, layout: Layout | None = None) -> None:
    """What exists before the first step: weights, adapters, the master copy of recipes that have one, DDP's buckets."""
    if layout is not None and layout.offloads and setup.device == "cuda":
        return
    precision, trained = trained_precision(setup), kept_parameters(setup.model, layout)
    if setup.adapter is not None:
        trained = trained_parameters(setup.model, setup.adapter)
        for parameter in parameter_ledger(setup.model):
            _write(tape, "empty", weight_tensors(parameter, setup.precision, setup.adapter))
    for parameter in trained:
        states = optimizer_tensors(parameter, precision, setup.optimizer) if precision.master_dtype else ()
        masters = [tensor for tensor in states if tensor.role == "master weight"]
        _write(tape, "empty", [*weight_tensors(parameter, precision, setup.adapter), *masters])
    if layout is not None and not layout.is_fully_sharded:
        tape.where, tape.op = "DistributedDataParallel", "buckets"
        num_values = sum(parameter.count for parameter in kept_parameters(setup.model))
        tape.allocate(tensor_bytes(num_values, precision.weight_dtype)).part = "gradients"


def write_states(setup: TrainingSetup, tape: Tape, layout: Layout | None = None) -> None:
    """The states that the first step makes. What torch keeps on the host counts only where the host is the device."""
    if layout is not None and layout.offloads and setup.device == "cuda":
        return
    parameters = updated_parameters(setup, layout)
    for parameter in parameters:
        write_states_of(setup, tape, parameter)
    _write(tape, "create_dynamic_map", shared_tensors(parameters, setup.optimizer))


def write_states_of(setup: TrainingSetup, tape: Tape, parameter: Parameter) -> None:
    """The states of one parameter, but for a master copy, which was there before."""
    states = optimizer_tensors(parameter, trained_precision(setup), setup.optimizer)
    made = [tensor for tensor in states if tensor.role != "master weight"]
    _write(tape, "zeros_like", [t for t in made if not (t.is_on_host and setup.device == "cuda")])


def write_step(setup: TrainingSetup, tape: Tape, layout: Layout | None = None) -> None:
    """The temporaries of one step, in the order in which they come and go."""
    if layout is not None and layout.offloads and setup.device == "cuda":
        return
    parameters = updated_parameters(setup, layout)
    if setup.optimizer.is_on_host:
        parameters = tuple(parameter for parameter in parameters if parameter.count < MIN_OFFLOADED)
    tape.where = "optimizer"
    write_update(setup, tape, parameters)


def updated_parameters(setup: TrainingSetup, layout: Layout | None = None) -> tuple[Parameter, ...]:
    """What a rank's optimizer updates: its share of the model's parameters, or the adapters."""
    if setup.adapter is None:
        return stepped_parameters(setup.model, layout)
    return trained_parameters(setup.model, setup.adapter)


def trained_precision(setup: TrainingSetup) -> Precision:
    """The dtypes of what is trained: the setup's, or the adapter's own."""
    return setup.precision if setup.adapter is None else precision_of(setup.adapter)


def write_update(setup: TrainingSetup, tape: Tape, parameters: Sequence[Parameter], name: str = "") -> None:
    """The temporaries of an update of these parameters; ``name``: of another optimizer than the setup's."""
    record, implementation = OPTIMIZERS[name or setup.optimizer.name], setup.optimizer.implementation
    tape.op = implementation
    temporaries = Temporaries(tape, trained_precision(setup).moment_dtype, setup.device == "cuda")
    mine = [p for p in parameters if not record.rest or is_hidden_matrix(p)]
    rule = record.temporaries[implementation]
    if rule not in RULES:
        raise ValueError(f"the temporaries of {record.name}'s step have no formula; trace it")
    RULES[rule](temporaries, mine)
    if record.rest:
        write_update(setup, tape, [p for p in parameters if not is_hidden_matrix(p)], record.rest)


class Temporaries:
    """Tensors of an update, computed in the dtype of the moments; a Python name holds one until it holds the next."""

    def __init__(self, tape: Tape, dtype: str, is_cuda: bool):
        self.tape, self.dtype, self.is_cuda = tape, dtype, is_cuda
        self.names: dict[str, Storage] = {}

    def one(self, count: int) -> Storage:
        """A new tensor."""
        return self.tape.allocate(tensor_bytes(count, self.dtype))

    def all(self, counts: Iterable[int]) -> list[Storage]:
        """A list of new tensors."""
        return [self.one(count) for count in counts]

    def reduced(self, shape: tuple[int, ...], axis: int | None = None) -> Storage:
        """A norm or a mean along one axis, or of the whole; its kernel's scratch comes and goes beside it."""
        walks = [(size, math.prod(shape[i + 1 :])) for i, size in enumerate(shape)]
        along = walks if axis is None else [walks.pop(axis)]
        kept = [] if axis is None else walks
        out = self.one(math.prod(size for size, _ in kept))
        for sizes in sum_buffers(along, kept) if self.is_cuda else ():
            self.free([self.tape.allocate(size) for size in sizes])
        return out

    def measure(self, shape: tuple[int, ...]) -> None:
        """The norm of a whole tensor, which Python reads and lets go."""
        self.free([self.reduced(shape)])

    def free(self, storages: Iterable[Storage]) -> None:
        """They go out of scope."""
        for storage in storages:
            self.tape.release(storage)

    def assign(self, name: str, new: Storage) -> None:
        """A new tensor under a name, whose old one is freed after it is made."""
        self.tape.release(self.names.get(name))
        self.names[name] = new


def _all_at_once(temporaries: Temporaries, parameters: Iterable[Parameter]) -> None:
    """One like every parameter, all there before the first is freed."""
    temporaries.free(temporaries.all(parameter.count for parameter in parameters))


def _one_at_a_time(temporaries: Temporaries, parameters: Iterable[Parameter]) -> None:
    """One like a parameter, freed before the next parameter's."""
    for parameter in parameters:
        temporaries.free([temporaries.one(parameter.count)])


def _adam_one_by_one(temporaries: Temporaries, parameters: Iterable[Parameter]) -> None:
    """√v is born, then √v / √(1 - β₂ᵗ); the first is freed; the second stays until the next one replaces it."""
    for parameter in parameters:
        root = temporaries.one(parameter.count)
        denominator = temporaries.one(parameter.count)
        temporaries.free([root])
        temporaries.assign("denominator", denominator)
    temporaries.free(temporaries.names.values())


def _adafactor_lists(temporaries: Temporaries, parameters: Iterable[Parameter]) -> None:
    """All matrices, then all vectors. The second moment of a matrix is multiplied out: row · column."""
    matrices = [p for p in parameters if len(p.shape) > 1]
    vectors = [p for p in parameters if len(p.shape) == 1]
    for p in matrices:
        temporaries.measure(p.shape)
    for axis in (-1, -2):
        temporaries.free([temporaries.reduced(p.shape, axis) for p in matrices])
    estimates = temporaries.all(p.count for p in matrices)
    temporaries.free([temporaries.reduced((p.shape[0],)) for p in matrices])  # means of the row factors
    for p in (*matrices, *vectors):  # updates of the matrices, and weights of the vectors
        temporaries.measure(p.shape)
    temporaries.free(temporaries.all(p.count for p in vectors))  # squared gradients; Python still holds the estimates
    updates = temporaries.all(p.count for p in vectors)
    temporaries.free(estimates)
    for p in vectors:
        temporaries.measure(p.shape)
    temporaries.free(updates)


def _adafactor_one_by_one(temporaries: Temporaries, parameters: Iterable[Parameter]) -> None:
    """One tensor at a time."""
    for p in parameters:
        temporaries.measure(p.shape)
        if len(p.shape) > 1:
            temporaries.assign("row mean", temporaries.reduced(p.shape, -1))
            temporaries.assign("column mean", temporaries.reduced(p.shape, -2))
            update = temporaries.one(p.count)
            temporaries.free([temporaries.reduced(p.shape[:1])])
        else:
            temporaries.assign("squared gradient", temporaries.one(p.count))
            update = temporaries.one(p.count)
        temporaries.assign("update", update)
        temporaries.measure(p.shape)
    temporaries.free(temporaries.names.values())


def _muon(temporaries: Temporaries, parameters: Iterable[Parameter]) -> None:
    """The update, its copy in bfloat16, and Newton-Schulz: two square matrices and one like the parameter a round."""
    tape, names, narrow = temporaries.tape, temporaries.names, "bfloat16"
    for parameter in parameters:
        temporaries.assign("update", temporaries.one(parameter.count))
        is_narrow = temporaries.dtype == narrow
        copy_bytes = tensor_bytes(parameter.count, narrow)
        names["ortho"] = tape.hold(names["update"]) if is_narrow else tape.allocate(copy_bytes)
        norm = [tape.allocate(tensor_bytes(1, narrow)) for _ in range(2)]  # the norm, and not less than ε
        temporaries.free(norm)
        for _ in range(NEWTON_SCHULZ_ROUNDS):
            square = min(parameter.shape) ** 2
            for name, count in (("gram", square), ("polynomial", square), ("ortho", parameter.count)):
                temporaries.assign(name, tape.allocate(tensor_bytes(count, narrow)))
        temporaries.free([names.pop("gram"), names.pop("polynomial"), names["update"]])
        names["update"] = names.pop("ortho")
    temporaries.free(names.values())


RULES: dict[str, Callable[[Temporaries, Iterable[Parameter]], None]] = {
    "none": lambda temporaries, parameters: None, "all at once": _all_at_once, "one at a time": _one_at_a_time,
    "root and denominator": _adam_one_by_one, "factored, all at once": _adafactor_lists,
    "factored, one by one": _adafactor_one_by_one, "Newton-Schulz": _muon,
}  # fmt: skip
"""What an optimizer's record calls its temporaries, and the function that plays them."""


def _write(tape: Tape, op: str, tensors: Iterable[StateTensor]) -> None:
    tape.op = op
    for tensor in tensors:
        tape.where = tensor.parameter
        tape.allocate(tensor.num_bytes).part = tensor.part
