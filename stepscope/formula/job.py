"""A ``Job`` on paper: what it keeps between steps, what it moves to the host, and how it runs.

A step with the optimizer's states on the host sends every gradient there and every new weight back: 4 B a parameter in
bf16, whatever the batch is. (Offloaded activations, which ``blocks_ledger`` lists, go there and back in every
micro-batch.) Seconds are bytes divided by the link's rate; what of them hides behind the arithmetic is a measurement.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

from memkit.formula.liveness import Block, Recorder
from memkit.formula.parameters import Parameter, parameter_ledger, times_of
from memkit.formula.run import (
    Run,
    place,
    run_of,
    write_states,
    write_update,
    write_weights,
)
from memkit.formula.states import (
    StateTensor,
    gradient_tensors,
    optimizer_tensors,
    shared_tensors,
    weight_tensors,
)
from memkit.models import ModelConfig
from memkit.recipes import OptimizerConfig, Precision
from stepscope.formula.adapters import (
    frozen_tensors,
    shared_maps,
    trained_parameters,
    trained_precision,
)
from stepscope.optimizers import SharesMaps
from stepscope.setup import MIN_OFFLOADED, AdapterConfig, Job, Place


class Standing(NamedTuple):
    """All that what a job keeps between steps depends on; neither batch nor recomputation is."""

    model: ModelConfig
    precision: Precision
    optimizer: OptimizerConfig
    adapter: AdapterConfig | None = None
    place: Place = Place.AFTER_BACKWARD


def standing_of(job: Job) -> Standing:
    """A job's."""
    return Standing(job.model, job.precision, job.optimizer, job.adapter, job.place)


def job_state_ledger(job: Job | Standing) -> tuple[StateTensor, ...]:
    """Every persistent tensor of the run: weights, then gradients, then the optimizer's.

    With an adapter the model's own weights are frozen: they have no gradient and no state.
    """
    return tuple(_tensors(job))


def job_state_bytes(job: Job | Standing) -> dict[str, int]:
    """Bytes of what stands between steps by part, before rounding, without what the host's memory holds.

    On the host are torch's ``step`` scalars, what an optimizer there keeps, and paged states: unified memory, which
    torch's allocator does not count, and which the driver moves between host and card.

    >>> from memkit.models import LLAMA_2_7B
    >>> from memkit.recipes import PURE_BF16
    >>> lora = AdapterConfig(rank=16, targets=("query", "value"))
    >>> job_state_bytes(Job(model=LLAMA_2_7B, precision=PURE_BF16, adapter=lora))
    {'weights': 13510385664, 'gradients': 33554432, 'optimizer_states': 67108864}
    """
    totals = {"weights": 0, "gradients": 0, "optimizer_states": 0}
    one_of_each = (
        job._replace(model=job.model.one_of_each)
        if isinstance(job, Standing)
        else replace(job, model=job.model.one_of_each)
    )
    for tensor in _tensors(one_of_each):
        if not tensor.is_in_host:
            totals[tensor.part] += times_of(job.model, tensor.parameter) * tensor.num_bytes
    return totals


def _tensors(job: Job | Standing) -> Iterator[StateTensor]:
    trained = trained_parameters(job.model, job.adapter)
    precision = trained_precision(job.precision, job.adapter)
    if job.adapter is not None:
        for parameter in parameter_ledger(job.model):
            yield from frozen_tensors(parameter, job.precision, job.adapter)
        yield from shared_maps(job.adapter)
    for parameter in trained:
        yield from weight_tensors(parameter, precision)
    for parameter in trained:
        yield from gradient_tensors(parameter, precision)
    for parameter in trained:
        for tensor in optimizer_tensors(parameter, precision, job.optimizer):
            yield replace(tensor, is_in_host=True) if is_offloaded(parameter, job.place) else tensor
    yield from shared_tensors(trained, job.optimizer)


def is_offloaded(parameter: Parameter, place: Place) -> bool:
    """Whether this parameter's states are the host's, and its step is done there."""
    return place.is_on_host and parameter.count >= MIN_OFFLOADED


def offloaded_parameters(setup: Job) -> tuple[Parameter, ...]:
    """The trained tensors whose states are on the host."""
    trained = trained_parameters(setup.model, setup.adapter)
    return tuple(parameter for parameter in trained if is_offloaded(parameter, setup.place))


def link_bytes(setup: Job) -> dict[str, int]:
    """Bytes that cross the link in one step, by what moves and where to; gradients leave in every micro-batch.

    >>> from memkit.models import LLAMA_2_7B
    >>> from memkit.recipes import PURE_BF16
    >>> link_bytes(Job(model=LLAMA_2_7B, precision=PURE_BF16, place="on the host"))
    {'gradients to the host': 13476831232, 'weights to the card': 13476831232}
    """
    moved, precision = {}, trained_precision(setup.precision, setup.adapter)
    parameters = offloaded_parameters(setup)
    if parameters:
        gradients = (t for p in parameters for t in gradient_tensors(p, precision))
        weights = (t for p in parameters for t in weight_tensors(p, precision))
        moved["gradients to the host"] = setup.grad_accum_steps * sum(
            t.num_bytes for t in gradients
        )
        moved["weights to the card"] = sum(t.num_bytes for t in weights)
    return moved


def host_bytes(setup: Job) -> dict[str, int]:
    """Bytes that an optimizer on the host keeps there: a copy of weights and gradients, both pinned, and the states."""
    parameters = offloaded_parameters(setup)
    precision = trained_precision(setup.precision, setup.adapter)
    states = (t for p in parameters for t in optimizer_tensors(p, precision, setup.optimizer))
    moved = list(link_bytes(replace(setup, grad_accum_steps=1)).values()) or [0, 0]
    return {
        "weights": moved[1],
        "gradients": moved[0],
        "optimizer_states": sum(t.num_bytes for t in states),
    }


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
        is_in_host = setup.device == "cpu"  # whose memory counts there
        write_states(
            setup, record, precision, parameters if is_in_host else self.on_card(parameters)
        )

    def write_step(self, setup: Job, record: Recorder) -> None:
        precision, parameters = self.trained(setup)
        write_update(setup, record, precision, self.on_card(parameters), "optimizer")

    def has_optimizer_step(self, setup: Job) -> bool:
        return self.place != Place.IN_BACKWARD

    def gradient_dtypes(self, setup: Job) -> tuple[str, ...]:
        return () if self.has_adapter else super().gradient_dtypes(setup)

    def use(self, setup: Job, makes_states: bool) -> Callable[[Recorder, Block], bool] | None:
        return (
            partial(self.step_at_once, setup, makes_states) if self.place.frees_gradients else None
        )

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

    def trained(self, setup: Job) -> tuple:
        """The dtypes of what is trained, and its parameters."""
        return trained_precision(setup.precision, setup.adapter), trained_parameters(
            setup.model, setup.adapter
        )

    def on_card(self, parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
        """Those that step on the card."""
        return tuple(
            parameter for parameter in parameters if not is_offloaded(parameter, self.place)
        )


@cache
def _run(has_adapter: bool, place: Place) -> JobRun:
    """One of each, so that what it has run is remembered."""
    return JobRun(has_adapter, place)


@run_of.register
def _(setup: Job) -> Run:
    return _run(setup.adapter is not None, setup.place)
