"""The optimizer of a job: the kit's ways to make one, Lion in fifteen lines, Muon with AdamW for the rest, and steps in
the backward."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from memkit.program.optimizers import class_of, make_step_optimizer
from memkit.program.optimizers import make_optimizer as make_one
from memkit.recipes import OptimizerConfig
from stepscope.setup.job import Job
from stepscope.setup.optimizers import Muon
from stepscope.setup.places import Place


class Lion(torch.optim.Optimizer):
    """The sign of a mean of gradients, and one state (Chen et al. 2023, arXiv:2302.06675, program 1)."""

    def __init__(self, parameters: Iterable[Tensor | dict], lr: float = 1e-4,
                 betas=(0.9, 0.99), weight_decay=0.0, foreach=True):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "foreach": foreach})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            for p in weights:
                if not self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
            lists = [weights] if group["foreach"] else [[p] for p in weights]
            for some in lists:
                self.update(some, group["lr"], *group["betas"], group["weight_decay"])

    def update(self, weights: list[Tensor], lr: float, beta1: float, beta2: float, weight_decay: float) -> None:
        """All of these at once, with one temporary like each."""
        means, gradients = [self.state[p]["exp_avg"] for p in weights], [p.grad for p in weights]
        torch._foreach_mul_(weights, 1 - lr * weight_decay)
        directions = torch._foreach_lerp(means, gradients, 1 - beta1)
        torch._foreach_sign_(directions)
        torch._foreach_add_(weights, directions, alpha=-lr)
        torch._foreach_lerp_(means, gradients, 1 - beta2)


class Steps:
    """Optimizers that step one after another; with none, the steps were done in the backward."""

    def __init__(self, *optimizers: torch.optim.Optimizer):
        self.optimizers = optimizers

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)


def make_optimizer(config: OptimizerConfig, named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer | Steps:
    """The optimizer of an ``OptimizerConfig`` for parameters by name. Muon takes the matrices of ``blocks``, its
    ``rest`` all others: tables, head, norms and biases.

    Raises: ImportError: the optimizer's library is not there.
    """
    named = list(named)
    record = config.record
    if not isinstance(record, Muon):
        return make_one(config, [parameter for _, parameter in named])
    hidden = [p for name, p in named if p.ndim == 2 and name.startswith("blocks.")]
    rest = [p for name, p in named if p.ndim != 2 or not name.startswith("blocks.")]
    optimizers = [class_of(record)(hidden, lr=3e-4)] if hidden else []
    if rest:
        optimizers.append(make_one(OptimizerConfig(record=record.rest, implementation=config.implementation), rest))
    return Steps(*optimizers)


def step_in_backward(config: OptimizerConfig, named: Iterable[tuple[str, nn.Parameter]]) -> Steps:
    """An optimizer for each parameter, which steps as soon as the gradient is there and frees it."""
    optimizers = {parameter: make_optimizer(config, [(name, parameter)]) for name, parameter in named}

    def step_and_free(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step_and_free)
    return Steps()


def make_job_optimizer(job: Job, named: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer | Steps:
    """The job's optimizer for the parameters that are trained. Without parameters nothing is made, but what no program
    here runs is refused.

    Raises: ValueError: no optimizer here keeps the copies that the precision wants, or steps on the host.
    """
    precision = job.precision
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    if job.place.is_on_host:
        raise ValueError(f"place={job.place!r} is a formula only: torchao's needs a CUDA card")
    copies = precision.master_dtype, precision.remainder_dtype, precision.main_gradient_dtype, precision.state_dtype
    is_plain = precision.weight_dtype == precision.gradient_dtype and not any(copies)
    if job.adapter is None and not is_plain:
        if job.place != Place.AFTER_BACKWARD:
            raise ValueError(f"precision {precision.name!r} with place={job.place!r} is a formula only")
        return make_step_optimizer(job, trained) or Steps()
    if not trained:
        return Steps()
    if job.place == Place.IN_BACKWARD:
        return step_in_backward(job.optimizer, trained.items())
    return make_optimizer(job.optimizer, trained.items())
