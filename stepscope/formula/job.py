"""How a ``Job`` runs: what its adapters freeze, and where its optimizer steps."""

from collections.abc import Callable
from functools import cache, partial

from memkit.formula.liveness import Block, Recorder
from memkit.formula.parameters import Parameter, parameter_ledger
from memkit.formula.run import Run, run_of
from memkit.formula.update import place, write_states, write_update, write_weights
from stepscope.formula.adapters import frozen_tensors, shared_maps, trained_parameters, trained_precision
from stepscope.formula.states import is_offloaded
from stepscope.setup.job import Job
from stepscope.setup.optimizers import SharesMaps
from stepscope.setup.places import Place


class JobRun(Run):
    """The run of a job on one card."""

    def __init__(self, has_adapter: bool, place: Place):
        self.has_adapter, self.place = has_adapter, place

    def check(self, setup: Job) -> None:
        if self.place == Place.IN_BACKWARD and isinstance(setup.optimizer.record, SharesMaps):
            raise ValueError(f"{setup.optimizer.name} with place='in backward' has no formula for its peak; trace it")

    def left_out(self, setup: Job) -> str:
        return super().left_out(setup) if not self.has_adapter or setup.device == "cpu" else ""

    def write_weights(self, setup: Job, record: Recorder) -> None:
        if not self.has_adapter:
            return super().write_weights(setup, record)
        for parameter in parameter_ledger(setup.model):
            place(record, "empty", frozen_tensors(parameter, setup.precision, setup.adapter))
        place(record, "create_dynamic_map", shared_maps(setup.adapter))
        write_weights(setup, record, *self.trained(setup))

    def write_states(self, setup: Job, record: Recorder) -> None:
        precision, parameters = self.trained(setup)
        is_in_host = setup.device == "cpu"  # whose memory counts there
        write_states(setup, record, precision, parameters if is_in_host else self.on_card(parameters))

    def write_step(self, setup: Job, record: Recorder) -> None:
        precision, parameters = self.trained(setup)
        write_update(setup, record, precision, self.on_card(parameters), "optimizer")

    def has_optimizer_step(self, setup: Job) -> bool:
        return self.place != Place.IN_BACKWARD

    def gradient_dtypes(self, setup: Job) -> tuple[str, ...]:
        return () if self.has_adapter else super().gradient_dtypes(setup)

    def use(self, setup: Job, makes_states: bool) -> Callable[[Recorder, Block], bool] | None:
        return partial(self.step_at_once, setup, makes_states) if self.place.frees_gradients else None

    def step_at_once(self, setup: Job, makes_states: bool, record: Recorder, block: Block) -> bool:
        """What an optimizer that frees gradients does with a finished one. Returns whether it frees this one."""
        parameter, (_, where), precision = block.gradient_of.parameter, block.finished_by, self.trained(setup)[0]
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
        return trained_precision(setup.precision, setup.adapter), trained_parameters(setup.model, setup.adapter)

    def on_card(self, parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
        """Those that step on the card."""
        return tuple(parameter for parameter in parameters if not is_offloaded(parameter, self.place))


@cache
def _run(has_adapter: bool, place: Place) -> JobRun:
    """One of each, so that what it has run is remembered."""
    return JobRun(has_adapter, place)


@run_of.register
def _(setup: Job) -> Run:
    return _run(setup.adapter is not None, setup.place)
