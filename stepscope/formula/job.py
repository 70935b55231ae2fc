"""A ``Job`` on paper: what it keeps between steps, what it moves to the host, how it runs, its loss in pieces.

A step with the optimizer's states on the host sends every gradient there and every new weight back: 4 B a parameter in
bf16, whatever the batch is. (Offloaded activations, which ``blocks_ledger`` lists, go there and back in every
micro-batch.) Seconds are bytes divided by the link's rate; what of them hides behind the arithmetic is a measurement.

The head and the loss of some tokens at a time, each run again (chapter 10, section 3): logits of T tokens and V words
are three tensors of T · V numbers at the start of the backward. In n pieces each of them has T · V / n, in float32; the
price is one more product with the head.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial, reduce

from memkit.formula.liveness import Block, Recorder
from memkit.formula.model import Transformer, addition
from memkit.formula.operations import NEW, SAME, Operation, Region, Tensor
from memkit.formula.parameters import Parameter, parameter_ledger, times_of
from memkit.formula.run import Run, run_of
from memkit.formula.states import (
    StateTensor,
    gradient_tensors,
    optimizer_tensors,
    shared_tensors,
    weight_tensors,
)
from memkit.formula.update import place, write_states, write_update, write_weights
from memkit.recipes import Precision
from stepscope.formula.adapters import (
    frozen_tensors,
    shared_maps,
    trained_parameters,
    trained_precision,
)
from stepscope.optimizers import SharesMaps
from stepscope.setup import MIN_OFFLOADED, Job, Place


def job_state_ledger(job: Job) -> tuple[StateTensor, ...]:
    """Every persistent tensor of the run: weights, then gradients, then the optimizer's.

    With an adapter the model's own weights are frozen: they have no gradient and no state.
    """
    trained = trained_parameters(job.model, job.adapter)
    precision = trained_precision(job.precision, job.adapter)
    tensors: list[StateTensor] = []
    if job.adapter is not None:
        for parameter in parameter_ledger(job.model):
            tensors += frozen_tensors(parameter, job.precision, job.adapter)
        tensors += shared_maps(job.adapter)
    for parameter in trained:
        tensors += weight_tensors(parameter, precision)
    for parameter in trained:
        tensors += gradient_tensors(parameter, precision)
    for parameter in trained:
        states = optimizer_tensors(parameter, precision, job.optimizer)
        if is_offloaded(parameter, job.place):
            states = (replace(tensor, is_in_host=True) for tensor in states)
        tensors += states
    return (*tensors, *shared_tensors(trained, job.optimizer))


def job_state_bytes(job: Job) -> dict[str, int]:
    """Bytes of what stands between steps by part, before rounding, without what the host's memory holds.

    On the host are torch's ``step`` scalars, what an optimizer there keeps, and paged states: unified memory, which
    torch's allocator does not count, and which the driver moves between host and card.

    >>> from memkit.models import LLAMA_2_7B
    >>> from memkit.recipes import PURE_BF16
    >>> from stepscope import AdapterConfig
    >>> lora = AdapterConfig(rank=16, targets=("query", "value"))
    >>> job_state_bytes(Job(model=LLAMA_2_7B, precision=PURE_BF16, adapter=lora))
    {'weights': 13510385664, 'gradients': 33554432, 'optimizer_states': 67108864}
    """
    totals = {"weights": 0, "gradients": 0, "optimizer_states": 0}
    for tensor in job_state_ledger(replace(job, model=job.model.one_of_each)):
        if not tensor.is_in_host:
            totals[tensor.part] += times_of(job.model, tensor.parameter) * tensor.num_bytes
    return totals


def is_offloaded(parameter: Parameter, place: Place) -> bool:
    """Whether this parameter's states are the host's, and its step is done there."""
    return place.is_on_host and parameter.count >= MIN_OFFLOADED


def host_bytes(setup: Job) -> dict[str, int]:
    """Bytes that an optimizer on the host keeps there: a copy of weights and gradients, both pinned, and the states."""
    precision = trained_precision(setup.precision, setup.adapter)
    totals = {"weights": 0, "gradients": 0, "optimizer_states": 0}
    for parameter in trained_parameters(setup.model, setup.adapter):
        if is_offloaded(parameter, setup.place):
            tensors = weight_tensors(parameter, precision) + gradient_tensors(parameter, precision)
            for tensor in tensors + optimizer_tensors(parameter, precision, setup.optimizer):
                totals[tensor.part] += tensor.num_bytes
    return totals


def link_bytes(setup: Job) -> dict[str, int]:
    """Bytes that cross the link in one step, by what moves and where to; gradients leave in every micro-batch.

    >>> from memkit.models import LLAMA_2_7B
    >>> from memkit.recipes import PURE_BF16
    >>> link_bytes(Job(model=LLAMA_2_7B, precision=PURE_BF16, place="on the host"))
    {'gradients to the host': 13476831232, 'weights to the card': 13476831232}
    """
    kept = host_bytes(setup)
    moved = {
        "gradients to the host": setup.grad_accum_steps * kept["gradients"],
        "weights to the card": kept["weights"],
    }
    return {what: num_bytes for what, num_bytes in moved.items() if num_bytes}


class JobRun(Run):
    """The run of a job on one card."""

    def __init__(self, has_adapter: bool, place: Place):
        self.has_adapter, self.place = has_adapter, place

    def check(self, setup: Job) -> None:
        if self.place == Place.IN_BACKWARD and isinstance(setup.optimizer.record, SharesMaps):
            raise ValueError(
                f"{setup.optimizer.name} with place='in backward' has no formula for its peak; trace it"
            )

    def left_out(self, setup: Job) -> str:
        return super().left_out(setup) if not self.has_adapter or setup.device == "cpu" else ""

    def write_weights(self, setup: Job, record: Recorder) -> None:
        if self.place.is_on_host:  # whose copies are the host's
            setup = replace(setup, precision=replace(setup.precision, master_dtype=None))
        if not self.has_adapter:
            return super().write_weights(setup, record)
        for parameter in parameter_ledger(setup.model):
            place(record, "empty", frozen_tensors(parameter, setup.precision, setup.adapter))
        place(record, "create_dynamic_map", shared_maps(setup.adapter))
        write_weights(setup, record, *self.trained(setup))

    def write_states(self, setup: Job, record: Recorder) -> None:
        precision, parameters = self.trained(setup)
        if setup.device != "cpu":  # where the host's memory counts
            parameters = self.on_card(parameters)
        write_states(setup, record, precision, parameters)

    def write_step(self, setup: Job, record: Recorder) -> None:
        precision, parameters = self.trained(setup)
        write_update(setup, record, precision, self.on_card(parameters), "optimizer")

    def has_optimizer_step(self, setup: Job) -> bool:
        return self.place != Place.IN_BACKWARD

    def gradient_dtypes(self, setup: Job) -> tuple[str, ...]:
        return () if self.has_adapter else super().gradient_dtypes(setup)

    def use(self, setup: Job, makes_states: bool) -> Callable[[Recorder, Block], bool] | None:
        if self.place.frees_gradients:
            return partial(self.step_at_once, setup, makes_states)
        return None

    def step_at_once(self, setup: Job, makes_states: bool, record: Recorder, block: Block) -> bool:
        """What an optimizer that frees gradients does with a finished one. Returns whether it frees this one."""
        parameter = block.gradient_of.parameter
        _, where = block.finished_by
        precision = self.trained(setup)[0]
        if self.place.is_on_host:
            return is_offloaded(parameter, self.place)
        num_events = len(record.events)
        if makes_states:
            write_states(setup, record, precision, [parameter])
        where = where if len(record.events) == num_events else parameter.name
        write_update(setup, record, precision, [parameter], where)
        return True

    def trained(self, setup: Job) -> tuple[Precision, tuple[Parameter, ...]]:
        """The dtypes of what is trained, and its parameters."""
        adapter = setup.adapter
        return trained_precision(setup.precision, adapter), trained_parameters(setup.model, adapter)

    def on_card(self, parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
        """Those that step on the card."""
        return tuple(p for p in parameters if not is_offloaded(p, self.place))


@cache
def _run(has_adapter: bool, place: Place) -> JobRun:
    """One of each, so that what it has run is remembered."""
    return JobRun(has_adapter, place)


@run_of.register
def _(setup: Job) -> Run:
    return _run(setup.adapter is not None, setup.place)


# --- the loss in pieces -----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class CastsAgain(Region):
    """A piece of the loss; ``cast`` is the weight that it casts where it is run again, and not before."""

    cast: Tensor | None = None

    def restore(self, walk, op: Operation) -> None:
        """The cast is made first."""
        made = []
        if self.cast is not None and self not in walk.was_run_again:
            made = [walk.new(self.cast.num_bytes, "_to_copy", op.where)]
            walk.block_of[self.cast] = made[0]
        super().restore(walk, op)
        walk.drop(*made)


@addition(lambda setup: isinstance(setup, Job) and setup.loss_pieces > 1)
class WithLossInPieces(Transformer):
    """A transformer whose head and loss are a checkpointed region for each piece of the tokens.

    Raises: ValueError: tokens that are no whole number of pieces.
    """

    setup: Job
    read_weight: Tensor | None = None  # the head's, or the one cast of it that the forward reads

    @classmethod
    def axis_sizes(cls, setup: Job) -> dict[str, int]:
        """With t, the tokens of a piece."""
        if setup.tokens_per_micro_batch % setup.loss_pieces:
            words = f"loss_pieces={setup.loss_pieces} of {setup.tokens_per_micro_batch} tokens are not equal"
            raise ValueError(f"{words} and have no formula; trace it")
        return super().axis_sizes(setup) | {"t": setup.tokens_per_micro_batch // setup.loss_pieces}

    def loss_of(self, x: Tensor, targets: Tensor) -> Tensor:
        """The sum of the pieces' losses, divided by the number of targets."""
        graph, num_pieces = self.graph, self.setup.loss_pieces
        n = graph.view("flatten", self.norm("norm", x))
        self.enter("loss")
        parts = graph.view("chunk", n, ["t h"] * num_pieces, (NEW,))
        wanted = graph.view("chunk", targets, ["t"] * num_pieces)
        losses = []
        for part, of_part in zip(parts, wanted, strict=True):
            losses.append(graph.checkpoint(self.loss_of_piece, part, of_part, region=CastsAgain()))
        total = reduce(
            lambda total, loss: graph.op("add", [total, loss], "", ways=(SAME, SAME)), losses
        )
        return graph.op("div", [total], "")

    def loss_of_piece(self, part: Tensor, targets: Tensor) -> Tensor:
        """The head and the summed cross-entropy of a piece, on a float32 copy of its logits."""
        graph, weight = self.graph, self.parameters[f"{self.head_name}.weight"]
        dtype = self.dtype if self.autocast else weight.dtype
        is_first = self.read_weight is None
        self.read_weight = self.read_weight or graph.cast(weight, dtype, "head weight")
        if is_first or self.read_weight is weight:
            kept = self.read_weight
        else:
            # Autocast's cache has the first piece's cast until the forward ends, so that the gradients of all pieces
            # meet there; what a piece is run again with, it casts anew.
            kept = graph.region.cast = Tensor(weight.axes, weight.count, dtype, "head weight")
        narrow = graph.cast(part, dtype)
        logits = graph.op(
            "mm",
            [narrow, self.read_weight],
            "t v",
            dtype,
            name="logits",
            by="linear",
            out_by=None,
            keeps=[narrow, kept],
            flops=2 * part.count * self.model.vocab_size,
        )
        return self.cross_entropy(graph.cast(logits, "float32"), targets)
