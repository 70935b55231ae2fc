"""What an optimizer's step allocates: its states the first time, and temporaries every time.

The update of AdamW needs √v + ε for every parameter. PyTorch's implementations hold that at different widths:

- ``foreach`` works on lists: one temporary for every parameter, all at once, as large as the parameters together;
- ``for-loop`` takes one tensor at a time: √v and √v divided by a constant, while Python still holds the result of the
  tensor before;
- ``fused`` computes it in registers: nothing.

As in the model's forward, Python's reference counts say when a temporary dies: a name holds its tensor until it is
bound anew, which is after the next tensor is made.

Source: ``_multi_tensor_adam`` and ``_single_tensor_adam`` of torch/optim/adam.py, and their like in sgd.py (2.13).
"""

from collections.abc import Callable, Iterable, Sequence

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.paper import Paper, Storage
from memkit.formula.parameters import Parameter
from memkit.formula.states import StateTensor, optimizer_tensors, shared_tensors, weight_tensors
from memkit.setup.optimizers import TRACE_IT
from memkit.setup.recipes import Precision
from memkit.setup.training import TrainingSetup


def write_weights(setup: TrainingSetup, paper: Paper, precision: Precision, parameters: Iterable[Parameter]) -> None:
    """What exists before the first step: weights, and the master copy of recipes that have one."""
    for parameter in parameters:
        states = optimizer_tensors(parameter, precision, setup.optimizer) if precision.master_dtype else ()
        masters = [tensor for tensor in states if tensor.role == "master weight"]
        write(paper, "empty", [*weight_tensors(parameter, precision), *masters])


def write_states(setup: TrainingSetup, paper: Paper, precision: Precision, parameters: Sequence[Parameter]) -> None:
    """The states that the first step makes, but for a master copy, which was there before.

    What torch keeps on the host counts only where the host is the device.
    """
    for parameter in parameters:
        states = optimizer_tensors(parameter, precision, setup.optimizer)
        made = [tensor for tensor in states if tensor.role != "master weight"]
        write(paper, "zeros_like", [t for t in made if not (t.is_in_host and setup.device == "cuda")])
    write(paper, "create_dynamic_map", shared_tensors(parameters, setup.optimizer))


def write_update(setup: TrainingSetup, paper: Paper, precision: Precision, parameters: Sequence[Parameter]) -> None:
    """The temporaries of an update of these parameters."""
    paper.op = setup.optimizer.implementation
    rule = setup.optimizer.record.temporaries[paper.op]
    if rule == TRACE_IT:
        raise ValueError(
            f"the step of {setup.optimizer.name} ({paper.op}) has no formula; trace it: "
            "trace_memory(training_build(setup))"
        )
    RULES[rule](Temporaries(paper, precision.moment_dtype, setup.device == "cuda"), parameters)


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


def _adam_one_by_one(new: Temporaries, parameters: Iterable[Parameter]) -> None:
    """√v is born, then √v / √(1 - β₂ᵗ); the first is freed; the second stays until the next one replaces it."""
    _denominator = None
    for parameter in parameters:
        root = new.one(parameter.count)
        _denominator = new.one(parameter.count)
        del root  # an argument of the division, without a name


RULES: dict[str, Callable[[Temporaries, Iterable[Parameter]], None]] = {
    "none": lambda new, parameters: None, "all at once": Temporaries.like, "root and denominator": _adam_one_by_one,
}
"""What an optimizer's record calls its temporaries, and the function that plays them. Others may be added."""


def write(paper: Paper, op: str, tensors: Iterable[StateTensor]) -> None:
    """Tensors that stay to the end of the run."""
    paper.op = op
    for tensor in tensors:
        paper.where = tensor.parameter
        paper.place(tensor.num_bytes, tensor.part)
