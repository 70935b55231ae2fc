"""What an optimizer's step allocates: its states the first time, and temporaries every time.

The update of AdamW needs √v + ε for every parameter. PyTorch's implementations hold that at different widths:

- ``foreach`` works on lists: one temporary for every parameter, all at once, as large as the parameters together;
- ``for-loop`` takes one tensor at a time: √v and √v divided by a constant, while Python still holds the result of the
  tensor before;
- ``fused`` computes it in registers: nothing.

Source: ``_multi_tensor_adam`` and ``_single_tensor_adam`` of torch/optim/adam.py, and their like in sgd.py
and _adafactor.py (2.13).
"""

import math
from collections.abc import Iterable

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.kernels import sum_buffers
from memkit.formula.parameters import Parameter
from memkit.formula.shares import kept_parameters, stepped_parameters
from memkit.formula.states import StateTensor, optimizer_tensors, weight_tensors
from memkit.formula.tape import Storage, Tape
from memkit.setup.layouts import Layout
from memkit.setup.training import TrainingSetup

WITHOUT_TEMPORARIES = ("SGD", "SGD momentum", "8-bit AdamW")
"""SGD updates in place; bitsandbytes' 8-bit AdamW is one kernel a tensor, whatever the implementation is called."""


def write_init(setup: TrainingSetup, tape: Tape, layout: Layout | None = None) -> None:
    """What exists before the first step: the weights, the master copy of recipes that have one, DDP's buckets."""
    precision = setup.precision
    if layout is not None and layout.offloads and setup.device == "cuda":
        return
    for parameter in kept_parameters(setup.model, layout):
        states = optimizer_tensors(parameter, precision, setup.optimizer) if precision.master_dtype else ()
        masters = [tensor for tensor in states if tensor.role == "master weight"]
        _write(tape, "empty", [*weight_tensors(parameter, precision), *masters])
    if layout is not None and not layout.is_fully_sharded:
        tape.where, tape.op = "DistributedDataParallel", "buckets"
        num_values = sum(parameter.count for parameter in kept_parameters(setup.model))
        tape.allocate(tensor_bytes(num_values, precision.weight_dtype)).part = "gradients"


def write_states(setup: TrainingSetup, tape: Tape, layout: Layout | None = None) -> None:
    """The states that the first step makes. What torch keeps on the host counts only where the host is the device."""
    if layout is not None and layout.offloads and setup.device == "cuda":
        return
    for parameter in stepped_parameters(setup.model, layout):
        states = optimizer_tensors(parameter, setup.precision, setup.optimizer)
        made = [tensor for tensor in states if tensor.role != "master weight"]
        _write(tape, "zeros_like", [t for t in made if not (t.is_on_host and setup.device == "cuda")])


def write_step(setup: TrainingSetup, tape: Tape, layout: Layout | None = None) -> None:
    """The temporaries of one step, in the order in which they come and go."""
    name, implementation = setup.optimizer.name, setup.optimizer.implementation
    tape.where, tape.op = "optimizer", implementation
    is_on_host = layout is not None and layout.offloads and setup.device == "cuda"
    if is_on_host or implementation == "fused" or name in WITHOUT_TEMPORARIES:
        return
    temporaries = Temporaries(tape, setup.precision.moment_dtype, setup.device == "cuda")
    parameters = stepped_parameters(setup.model, layout)
    if name == "Adafactor":
        write = _adafactor_lists if implementation == "foreach" else _adafactor_one_by_one
        write(temporaries, parameters)
    elif implementation == "foreach":
        temporaries.free(temporaries.all(parameter.count for parameter in parameters))
    else:
        _adam_one_by_one(temporaries, parameters)


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


def _write(tape: Tape, op: str, tensors: Iterable[StateTensor]) -> None:
    tape.op = op
    for tensor in tensors:
        tape.where = tensor.parameter
        tape.allocate(tensor.num_bytes).part = tensor.part
