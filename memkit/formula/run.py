"""How a run keeps, computes and steps its parameters: what is around the walk through a model's operations.

``Run`` is a step on one device, all of whose parameters are trained and stepped when all gradients are there. A run
that does otherwise (adapters, offload, a rank of many) is a subclass of another package's; ``run_of`` finds it by the
type of the setup.
"""

from collections.abc import Callable
from functools import singledispatch

from memkit.formula import update
from memkit.formula.liveness import Block, Recorder, Segment, Walk
from memkit.formula.parameters import parameter_ledger
from memkit.formula.update import write_states, write_update, write_weights
from memkit.setup import TrainingSetup


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
        copies = precision.master_dtype, precision.main_gradient_dtype, precision.remainder_dtype
        if setup.device == "cpu" and precision.compute_dtype != "float32":
            left_out.append("what oneDNN packs for products of 16 bits")
        if any(copies) or precision.gradient_dtype != precision.weight_dtype:
            left_out.append(
                "the float32 temporaries of memkit's own step, which a library's kernel does without"
            )
        return "; ".join([*left_out, "trace_memory counts it"]) if left_out else ""

    # What stands, and what steps

    def write_weights(self, setup: TrainingSetup, record: Recorder) -> None:
        """What exists before the first step."""
        write_weights(setup, record, setup.precision, parameter_ledger(setup.model))

    def write_states(self, setup: TrainingSetup, record: Recorder) -> None:
        """What the first step of the optimizer makes, and leaves."""
        write_states(setup, record, setup.precision, parameter_ledger(setup.model))

    def write_step(self, setup: TrainingSetup, record: Recorder) -> None:
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
        self, setup: TrainingSetup, makes_states: bool
    ) -> Callable[[Recorder, Block], bool] | None:
        """What is done at once with a finished gradient, and returns whether that frees it; ``None``: nothing is.

        ``makes_states``: an optimizer that steps there makes its states now.
        """
        return None

    def forward(self, walk: Walk) -> list[Segment]:
        """The forward's events."""
        return walk.forward

    def backward(
        self, setup: TrainingSetup, walk: Walk, accumulates: bool, makes_states: bool
    ) -> list[Segment]:
        """The backward's events, with what becomes of each finished gradient.

        ``accumulates``: earlier micro-batches left gradients, which are added to.
        """
        if accumulates:
            return update.added(walk.backward)
        use = self.use(setup, makes_states)
        return update.kept(walk.backward, walk.block_bytes, self.gradient_dtypes(setup), use)


PLAIN = Run()


@singledispatch
def run_of(setup: TrainingSetup) -> Run:
    """How this setup runs. A subclass of ``TrainingSetup`` registers its own: ``run_of.register(Job)(...)``."""
    return PLAIN
