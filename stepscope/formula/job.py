"""How a ``Job`` runs: what its adapters freeze, and where its optimizer steps."""

from collections.abc import Callable
from functools import partial

from memkit.formula.forward import Forward, Run, run_of
from memkit.formula.optimizer import write, write_states, write_update, write_weights
from memkit.formula.paper import Paper
from memkit.formula.parameters import Parameter, parameter_ledger
from stepscope.formula.adapters import (
    AdaptedForward,
    frozen_tensors,
    shared_maps,
    trained_parameters,
    trained_precision,
)
from stepscope.setup.job import Job
from stepscope.setup.optimizers import SharesMaps
from stepscope.setup.places import MIN_OFFLOADED, Place


class JobRun(Run):
    """The run of a job on one card."""

    def __init__(self, has_adapter: bool, place: Place):
        self.has_adapter, self.place = has_adapter, place
        self.num_first = 2 if has_adapter else 1  # frozen, the first may need no table for its backward

    @property
    def forward(self) -> type[Forward]:
        return AdaptedForward if self.has_adapter else Forward

    def check(self, setup: Job) -> None:
        if self.place == Place.IN_BACKWARD and isinstance(setup.optimizer.record, SharesMaps):
            raise ValueError(f"{setup.optimizer.name} with place='in backward' has no formula for its peak; trace it")

    def write_weights(self, setup: Job, paper: Paper) -> None:
        if not self.has_adapter:
            return super().write_weights(setup, paper)
        for parameter in parameter_ledger(setup.model):
            write(paper, "empty", frozen_tensors(parameter, setup.precision, setup.adapter))
        write(paper, "create_dynamic_map", shared_maps(setup.adapter))
        write_weights(setup, paper, *self.trained(setup))

    def write_states(self, setup: Job, paper: Paper) -> None:
        precision, parameters = self.trained(setup)
        is_in_host = setup.device == "cpu"  # whose memory counts there
        write_states(setup, paper, precision, parameters if is_in_host else self.on_card(parameters))

    def write_step(self, setup: Job, paper: Paper) -> None:
        precision, parameters = self.trained(setup)
        paper.where = "optimizer"
        write_update(setup, paper, precision, self.on_card(parameters))

    def has_optimizer_step(self, setup: Job) -> bool:
        return self.place != Place.IN_BACKWARD

    def gradient_dtypes(self, setup: Job) -> list[str]:
        return [] if self.has_adapter else super().gradient_dtypes(setup)

    def use(self, setup: Job, paper: Paper, makes_states: bool) -> Callable[[Parameter], bool] | None:
        return partial(self.step_at_once, setup, paper, makes_states) if self.place.frees_gradients else None

    def step_at_once(self, setup: Job, paper: Paper, makes_states: bool, parameter: Parameter) -> bool:
        """What an optimizer that frees gradients does with a complete one. Returns whether it frees this one."""
        if self.place.is_on_host:
            return parameter.count >= MIN_OFFLOADED
        before, (precision, _) = (paper.where, paper.op), self.trained(setup)
        if makes_states:
            write_states(setup, paper, precision, [parameter])
        write_update(setup, paper, precision, [parameter])
        paper.where, paper.op = before
        return True

    def trained(self, setup: Job) -> tuple:
        """The dtypes of what is trained, and its parameters."""
        return trained_precision(setup.precision, setup.adapter), trained_parameters(setup.model, setup.adapter)

    def on_card(self, parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
        """Those that step on the card."""
        if not self.place.is_on_host:
            return parameters
        return tuple(parameter for parameter in parameters if parameter.count < MIN_OFFLOADED)


RUNS = {(has, place): JobRun(has, place) for has in (False, True) for place in Place}


@run_of.register
def _(setup: Job) -> Run:
    return RUNS[setup.adapter is not None, setup.place]
