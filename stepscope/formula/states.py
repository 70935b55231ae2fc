"""What a job keeps between steps: frozen weights and adapters, states in few bits, states on the host."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from memkit.formula.parameters import Parameter, parameter_ledger, times_of
from memkit.formula.states import StateTensor, gradient_tensors, optimizer_tensors, shared_tensors, weight_tensors
from memkit.models import ModelConfig
from memkit.recipes import OptimizerConfig, Precision
from stepscope.formula.adapters import frozen_tensors, shared_maps, trained_parameters, trained_precision
from stepscope.setup.adapters import AdapterConfig
from stepscope.setup.job import Job
from stepscope.setup.places import MIN_OFFLOADED, Place


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
    one_of_each = job._replace(model=job.model.one_of_each) if isinstance(job, Standing) else replace(
        job, model=job.model.one_of_each
    )
    for tensor in _tensors(one_of_each):
        if not tensor.is_in_host:
            totals[tensor.part] += times_of(job.model, tensor.parameter) * tensor.num_bytes
    return totals


def _tensors(job: Job | Standing) -> Iterator[StateTensor]:
    trained, precision = trained_parameters(job.model, job.adapter), trained_precision(job.precision, job.adapter)
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
