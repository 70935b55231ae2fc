"""What is around the walk through a model's operations: how a run keeps, computes and steps its parameters.

``Run`` is a step on one device, all of whose parameters are trained and stepped when all gradients are there. A run
that does otherwise (adapters, offload, a rank of many) is a subclass of another package's; ``run_of`` finds it by the
type of the setup.

What becomes of a finished gradient is a choice made after the walk, by rewriting its events. The walk marks the moment
in which the backward is done with a parameter's gradient. ``add_gradients``: an earlier micro-batch left one, the new
one is added to it and freed. ``keep_gradients``: it stays, in the dtypes that the recipe keeps gradients in, or ``use``
does something with it at once: send it to the host, let the optimizer step.

A step makes its states the first time, and temporaries every time. The update of AdamW needs √v + ε for every
parameter. PyTorch's implementations hold that at different widths:

- ``foreach`` works on lists: one temporary for every parameter, all at once, as large as the parameters together;
- ``for-loop`` takes one tensor at a time: √v and √v divided by a constant, while Python still holds the result of the
  tensor before;
- ``fused`` computes it in registers: nothing.

Source: ``_multi_tensor_adam`` and ``_single_tensor_adam`` of torch/optim/adam.py, and their like in sgd.py (2.13).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch

from memkit.formats.records import tensor_bytes
from memkit.formula.liveness import BORN, FINISHED, FREED, Allocation, Allocations, Segment, Walk
from memkit.formula.parameters import Parameter, parameter_ledger
from memkit.formula.states import (
    StateTensor,
    made_tensors,
    master_tensors,
    shared_tensors,
    weight_tensors,
)
from memkit.recipes import Precision
from memkit.setup import TrainingSetup


def add_gradients(segments: Iterable[Segment]) -> list[Segment]:
    """Each finished gradient is added to one that is there, and freed."""

    def added(segment: Segment) -> list[tuple[Allocation, int]]:
        return [(block, FREED if sign == FINISHED else sign) for block, sign in segment.events]

    return [Segment(each.times, each.unit, added(each)) for each in segments]


def keep_gradients(
    segments: Sequence[Segment],
    block_bytes: int,
    dtypes: Sequence[str] = (),
    use: Callable[[Allocations, Allocation], bool] | None = None,
) -> list[Segment]:
    """Each finished gradient stays, in ``dtypes`` (left out: its own), unless ``use`` returns that it may go."""
    finished = [block for each in segments for block, sign in each.events if sign == FINISHED]
    kept = [block for block in finished if not dtypes or block.gradient_of.dtype in dtypes]
    own, out = {block: replace(block, part="gradients") for block in kept}, []
    for segment in segments:
        record = Allocations(block_bytes)
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


def free_gradients(segments: Sequence[Segment]) -> list[Segment]:
    """What ``zero_grad`` frees: the gradients that these segments have left."""
    gone = {block for segment in segments for block, sign in segment.events if sign == FREED}

    def left(segment: Segment) -> list[tuple[Allocation, int]]:
        made = (block for block, sign in segment.events if sign == BORN and block not in gone)
        return [(block, FREED) for block in made if block.part == "gradients"]

    return [Segment(each.times, each.unit, left(each)) for each in segments]


def allocate_persistent(record: Allocations, op: str, tensors: Iterable[StateTensor]) -> None:
    """Tensors that stay to the end of the run."""
    for tensor in tensors:
        record.new(tensor.num_bytes, op, tensor.parameter, tensor.part).times = tensor.times


def write_weights(
    setup: TrainingSetup, record: Allocations, precision: Precision, parameters: Iterable[Parameter]
) -> None:
    """What exists before the first step: weights, and the master copy of recipes that have one."""
    for parameter in parameters:
        masters = master_tensors(parameter, precision)
        allocate_persistent(record, "empty", weight_tensors(parameter, precision) + masters)


def write_states(
    setup: TrainingSetup, record: Allocations, precision: Precision, parameters: Sequence[Parameter]
) -> None:
    """The states that the first step makes. What torch keeps on the host counts only where the host is the device."""
    for parameter in parameters:
        made = made_tensors(parameter, precision, setup.optimizer)
        on_device = [t for t in made if not (t.is_in_host and setup.device == "cuda")]
        allocate_persistent(record, "zeros_like", on_device)
    allocate_persistent(record, "create_dynamic_map", shared_tensors(parameters, setup.optimizer))


def write_update(
    setup: TrainingSetup,
    record: Allocations,
    precision: Precision,
    parameters: Sequence[Parameter],
    where: str,
) -> None:
    """The temporaries of an update of these parameters."""
    name, implementation = setup.optimizer.name, setup.optimizer.implementation
    play = setup.optimizer.record.temporaries[implementation]
    if play is None:
        how = "trace it: trace_memory(training_build(setup))"
        raise ValueError(f"the step of {name} ({implementation}) has no formula; {how}")
    how = precision.moment_dtype, implementation, where, setup.device == "cuda"
    play(Temporaries(record, *how), parameters)


@dataclass
class Temporaries:
    """Makes the tensors of an update, in the dtype of the moments."""

    record: Allocations
    dtype: str
    op: str
    where: str
    is_cuda: bool

    def one(self, count: int) -> Allocation:
        """A new tensor."""
        return self.record.new(tensor_bytes(count, self.dtype), self.op, self.where)

    def drop(self, *blocks: Allocation | None) -> None:
        """These go."""
        self.record.drop(*filter(None, blocks))


class Run:
    """A step on one device."""

    is_repeated = True
    """Whether one block's weights and states stand for those of all that are alike."""

    def check(self, setup: TrainingSetup) -> None:
        """Raises: ValueError: no formula knows the peak of such a run."""

    def left_out(self, setup: TrainingSetup) -> str:
        """What a run of this setup takes besides and no formula here knows. A peak is then printed as "at least".

        A recipe with copies of its own is estimated as libraries step it (Megatron, DeepSpeed); the program here steps
        by ``SixteenBitAdamW``, one tensor at a time in float32, whatever the optimizer's ``implementation`` says.
        """
        precision, left_out = setup.precision, []
        if setup.device == "cpu" and precision.compute_dtype != "float32":
            left_out.append("what oneDNN packs for products of 16 bits")
        if precision.has_copies:
            left_out.append(
                "the float32 temporaries of memkit's own step, which a library's kernel does without"
            )
        return "; ".join([*left_out, "trace_memory counts it"]) if left_out else ""

    # What stands, and what steps

    def write_weights(self, setup: TrainingSetup, record: Allocations) -> None:
        """What exists before the first step."""
        write_weights(setup, record, setup.precision, parameter_ledger(setup.model))

    def write_states(self, setup: TrainingSetup, record: Allocations) -> None:
        """What the first step of the optimizer makes, and leaves."""
        write_states(setup, record, setup.precision, parameter_ledger(setup.model))

    def write_step(self, setup: TrainingSetup, record: Allocations) -> None:
        """The temporaries of one step, in the order in which they come and go."""
        write_update(setup, record, setup.precision, parameter_ledger(setup.model), "optimizer")

    def has_optimizer_step(self, setup: TrainingSetup) -> bool:
        """Whether there is a step after the backward."""
        return True

    # Forward and backward

    def computes(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup that forward and backward run in."""
        return setup

    def gradient_dtypes(self, setup: TrainingSetup) -> tuple[str, ...]:
        """Those that each parameter's gradient is kept in; none: its own."""
        dtypes = setup.precision.gradient_dtype, setup.precision.main_gradient_dtype
        return tuple(filter(None, dtypes))

    def use(
        self, setup: TrainingSetup, *, makes_states: bool = False
    ) -> Callable[[Allocations, Allocation], bool] | None:
        """What is done at once with a finished gradient, and returns whether that frees it; ``None``: nothing is.

        ``makes_states``: an optimizer that steps there makes its states now.
        """
        return None

    def forward(self, walk: Walk) -> list[Segment]:
        """The forward's events."""
        return walk.forward

    def backward(
        self, setup: TrainingSetup, walk: Walk, *, accumulates: bool, makes_states: bool
    ) -> list[Segment]:
        """The backward's events, with what becomes of each finished gradient.

        ``accumulates``: earlier micro-batches left gradients, which are added to.
        """
        if accumulates:
            return add_gradients(walk.backward)
        use = self.use(setup, makes_states=makes_states)
        return keep_gradients(walk.backward, walk.block_bytes, self.gradient_dtypes(setup), use)


PLAIN = Run()


@singledispatch
def run_of(setup: TrainingSetup) -> Run:
    """How this setup runs. A subclass of ``TrainingSetup`` registers its own: ``run_of.register(Job)(...)``."""
    return PLAIN
