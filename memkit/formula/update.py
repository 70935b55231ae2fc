"""From a finished gradient to a stepped weight: what becomes of the gradient, and what the optimizer's step makes.

The first is a choice made after the walk, by rewriting its events. The walk marks the moment in which the backward is
done with a parameter's gradient. ``added``: an earlier micro-batch left one, the new one is added to it and freed.
``kept``: it stays, in the dtypes that the recipe keeps gradients in, or ``use`` does something with it at once: send
it to the host, let the optimizer step.

A step makes its states the first time, and temporaries every time. The update of AdamW needs √v + ε for every
parameter. PyTorch's implementations hold that at different widths:

- ``foreach`` works on lists: one temporary for every parameter, all at once, as large as the parameters together;
- ``for-loop`` takes one tensor at a time: √v and √v divided by a constant, while Python still holds the result of the
  tensor before;
- ``fused`` computes it in registers: nothing.

Source: ``_multi_tensor_adam`` and ``_single_tensor_adam`` of torch/optim/adam.py, and their like in sgd.py (2.13).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from memkit.formats.records import tensor_bytes
from memkit.formula.liveness import BORN, FINISHED, FREED, Block, Recorder, Segment
from memkit.formula.parameters import Parameter
from memkit.formula.states import StateTensor, optimizer_tensors, shared_tensors, weight_tensors
from memkit.optimizers import TRACE_IT
from memkit.recipes import Precision
from memkit.setup import TrainingSetup
from memkit.units import as_one_of


def added(segments: Iterable[Segment]) -> list[Segment]:
    """Each finished gradient is added to one that is there, and freed."""
    return [
        Segment(each.times, each.unit, [(block, sign or FREED) for block, sign in each.events])
        for each in segments
    ]


def kept(
    segments: Sequence[Segment],
    block_bytes: int,
    dtypes: Sequence[str] = (),
    use: Callable[[Recorder, Block], bool] | None = None,
) -> list[Segment]:
    """Each finished gradient stays, in ``dtypes`` (left out: its own), unless ``use`` returns that it may go."""
    own = {
        block: replace(block, part="gradients")
        for segment in segments
        for block, sign in segment.events
        if sign == FINISHED and (not dtypes or block.gradient_of.dtype in dtypes)
    }
    out = []
    for segment in segments:
        record = Recorder(block_bytes)
        for block, sign in segment.events:
            mine = own.get(block, block)
            if sign != FINISHED:
                record.events.append((mine, sign))
                continue
            x, goes = block.gradient_of, [] if block in own else [mine]
            for dtype in dtypes or (x.dtype,):
                one = mine
                if dtype != x.dtype:
                    one = record.new(tensor_bytes(x.count, dtype), *block.finished_by, "gradients")
                    one.gradient_of = x
                if use is not None and use(record, block):
                    goes.append(one)
            record.events += [(one, FREED) for one in goes]
        out.append(Segment(segment.times, segment.unit, record.events))
    return out


def freed(segments: Sequence[Segment]) -> list[Segment]:
    """What ``zero_grad`` frees: the gradients that these segments have left."""
    gone = {block for segment in segments for block, sign in segment.events if sign == FREED}
    out = []
    for segment in segments:
        left = [
            b
            for b, sign in segment.events
            if sign == BORN and b.part == "gradients" and b not in gone
        ]
        out.append(Segment(segment.times, segment.unit, [(block, FREED) for block in left]))
    return out


def place(record: Recorder, op: str, tensors: Iterable[StateTensor]) -> None:
    """Tensors that stay to the end of the run."""
    for tensor in tensors:
        record.new(tensor.num_bytes, op, tensor.parameter, tensor.part)


def write_weights(
    setup: TrainingSetup, record: Recorder, precision: Precision, parameters: Iterable[Parameter]
) -> None:
    """What exists before the first step: weights, and the master copy of recipes that have one."""
    for parameter in parameters:
        states = (
            optimizer_tensors(parameter, precision, setup.optimizer)
            if precision.master_dtype
            else ()
        )
        masters = [tensor for tensor in states if tensor.role == "master weight"]
        place(record, "empty", [*weight_tensors(parameter, precision), *masters])


def write_states(
    setup: TrainingSetup, record: Recorder, precision: Precision, parameters: Sequence[Parameter]
) -> None:
    """The states that the first step makes, but for a master copy, which was there before.

    What torch keeps on the host counts only where the host is the device.
    """
    for parameter in parameters:
        states = optimizer_tensors(parameter, precision, setup.optimizer)
        made = [tensor for tensor in states if tensor.role != "master weight"]
        place(
            record, "zeros_like", [t for t in made if not (t.is_in_host and setup.device == "cuda")]
        )
    place(record, "create_dynamic_map", shared_tensors(parameters, setup.optimizer))


def write_update(
    setup: TrainingSetup,
    record: Recorder,
    precision: Precision,
    parameters: Sequence[Parameter],
    where: str,
) -> None:
    """The temporaries of an update of these parameters."""
    implementation = setup.optimizer.implementation
    rule = setup.optimizer.record.temporaries[implementation]
    if rule == TRACE_IT:
        raise ValueError(
            f"the step of {setup.optimizer.name} ({implementation}) has no formula; trace it: "
            "trace_memory(training_build(setup))"
        )
    as_one_of(f"temporaries of {setup.optimizer.name}", rule, RULES)
    is_cuda = setup.device == "cuda"
    RULES[rule](
        Temporaries(record, precision.moment_dtype, implementation, where, is_cuda), parameters
    )


class Temporaries:
    """Makes the tensors of an update, in the dtype of the moments."""

    def __init__(self, record: Recorder, dtype: str, op: str, where: str, is_cuda: bool):
        self.record = record
        self.dtype = dtype
        self.op = op
        self.where = where
        self.is_cuda = is_cuda

    def one(self, count: int) -> Block:
        """A new tensor."""
        return self.record.new(tensor_bytes(count, self.dtype), self.op, self.where)

    def drop(self, *blocks: Block | None) -> None:
        """These go."""
        self.record.drop(*filter(None, blocks))


def _all_at_once(new: Temporaries, parameters: Sequence[Parameter]) -> None:
    """One like every parameter, all there before the first is freed."""
    new.drop(*[new.one(parameter.count) for parameter in parameters])


def _adam_one_by_one(new: Temporaries, parameters: Sequence[Parameter]) -> None:
    """√v is born, then √v / √(1 - β₂ᵗ); the first is freed; the second stays until the next one replaces it."""
    before = None
    for parameter in parameters:
        root = new.one(parameter.count)
        denominator = new.one(parameter.count)
        new.drop(before, root)
        before = denominator
    new.drop(before)


RULES: dict[str, Callable[[Temporaries, Sequence[Parameter]], None]] = {
    "none": lambda new, parameters: None,
    "all at once": _all_at_once,
    "root and denominator": _adam_one_by_one,
}
"""What an optimizer's record calls its temporaries, and the function that plays them. Others may be added."""
