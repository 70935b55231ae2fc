"""What an optimizer's step allocates: its states the first time, and temporaries every time.

The update of AdamW needs √v + ε for every parameter. PyTorch's implementations hold that at different widths:

- ``foreach`` works on lists: one temporary for every parameter, all at once, as large as the parameters together;
- ``for-loop`` takes one tensor at a time: √v and √v divided by a constant, while Python still holds the result of the
  tensor before;
- ``fused`` computes it in registers: nothing.

Source: ``_multi_tensor_adam`` and ``_single_tensor_adam`` of torch/optim/adam.py, and their like in sgd.py
and _adafactor.py (2.13).
"""

from collections.abc import Iterable

from memkit.formats.dtypes import tensor_bytes
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
    temporaries = Temporaries(tape, setup.precision.moment_dtype)
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

    def __init__(self, tape: Tape, dtype: str):
        self.tape, self.dtype = tape, dtype
        self.names: dict[str, Storage] = {}

    def one(self, count: int) -> Storage:
        """A new tensor."""
        return self.tape.allocate(tensor_bytes(count, self.dtype))

    def all(self, counts: Iterable[int]) -> list[Storage]:
        """A list of new tensors."""
        return [self.one(count) for count in counts]

    def free(self, storages: Iterable[Storage]) -> None:
        """They go out of scope."""
        for storage in storages:
            self.tape.release(storage)

    def assign(self, name: str, count: int) -> None:
        """A new tensor under a name, whose old one is freed after it is made."""
        before = self.names.get(name)
        self.names[name] = self.one(count)
        self.tape.release(before)


def _adam_one_by_one(temporaries: Temporaries, parameters: Iterable[Parameter]) -> None:
    """√v is born, then √v / √(1 - β₂ᵗ); the first is freed; the second stays until the next one replaces it."""
    for parameter in parameters:
        root = temporaries.one(parameter.count)
        before = temporaries.names.get("denominator")
        temporaries.names["denominator"] = temporaries.one(parameter.count)
        temporaries.free([root, before])
    temporaries.free(temporaries.names.values())


def _adafactor_lists(temporaries: Temporaries, parameters: Iterable[Parameter]) -> None:
    """All matrices, then all vectors. The second moment of a matrix is multiplied out: row · column."""
    matrices = [p for p in parameters if len(p.shape) > 1]
    vectors = [p.count for p in parameters if len(p.shape) == 1]
    for axis in (0, 1):
        temporaries.free(temporaries.all(p.shape[axis] for p in matrices))
    estimates = temporaries.all(p.count for p in matrices)
    temporaries.free(temporaries.all(1 for _ in matrices))  # means of the row factors
    temporaries.free(temporaries.all(vectors))  # squared gradients; Python still holds the estimates
    updates = temporaries.all(vectors)
    temporaries.free([*estimates, *updates])


def _adafactor_one_by_one(temporaries: Temporaries, parameters: Iterable[Parameter]) -> None:
    """One tensor at a time."""
    for parameter in parameters:
        if len(parameter.shape) > 1:
            temporaries.assign("row mean", parameter.shape[0])
            temporaries.assign("column mean", parameter.shape[1])
            estimate, mean = temporaries.one(parameter.count), temporaries.one(1)
            temporaries.free([mean, estimate])
        else:
            temporaries.assign("squared gradient", parameter.count)
        temporaries.assign("update", parameter.count)
    temporaries.free(temporaries.names.values())


def _write(tape: Tape, op: str, tensors: Iterable[StateTensor]) -> None:
    tape.op = op
    for tensor in tensors:
        tape.where = tensor.parameter
        tape.allocate(tensor.num_bytes).part = tensor.part
