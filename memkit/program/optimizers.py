"""The optimizer of a setup: torch's own, Lion in fifteen lines, torchao's and bitsandbytes' where they are installed.

Which class it is and what it takes stands in its record in ``memkit.setup.optimizers``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module

import torch
from torch import Tensor, nn

from memkit.low_precision.sixteen_bit_adamw import SixteenBitAdamW
from memkit.setup.optimizers import OPTIMIZERS, Optimizer, Place
from memkit.setup.recipes import OptimizerConfig
from memkit.setup.training import TrainingSetup

FROM_LIBRARIES = tuple(name for name, record in OPTIMIZERS.items() if record.library not in ("torch", "memkit"))
"""Optimizers that need a library beside torch."""


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


def make_optimizer(config: OptimizerConfig, parameters: Iterable, lr: float = 3e-4) -> torch.optim.Optimizer | Steps:
    """The optimizer of an ``OptimizerConfig``. Muon wants parameters by name: it takes the matrices of ``blocks``.

    Raises: ValueError: Muon without names. ImportError: the optimizer's library is not there.
    """
    if config.record.rest:
        return hidden_and_rest(config, parameters, lr)
    return class_of(config.record)(parameters, lr=lr, **config.record.keywords(config.implementation))


def class_of(record: Optimizer) -> type[torch.optim.Optimizer]:
    """An optimizer's class. Raises: ImportError: the library that has it is not there."""
    module, name = record.made_by.split(":")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise ImportError(f"optimizer {record.name!r} is {module}.{name}: pip install {record.library}") from error


def hidden_and_rest(config: OptimizerConfig, named: Iterable[tuple[str, nn.Parameter]], lr: float) -> Steps:
    """Muon for the matrices of the blocks, AdamW for tables, head, norms and biases."""
    named = list(named)
    if not all(isinstance(item, tuple) for item in named):
        raise ValueError("Muon takes model.named_parameters(): which matrix is a hidden layer's is in its name")
    hidden = [p for name, p in named if p.ndim == 2 and name.startswith("blocks.")]
    rest = [p for name, p in named if p.ndim != 2 or not name.startswith("blocks.")]
    optimizers = [class_of(config.record)(hidden, lr=lr)] if hidden else []
    if rest:
        optimizers.append(make_optimizer(replace(config, name=config.record.rest), rest, lr))
    return Steps(*optimizers)


def step_in_backward(config: OptimizerConfig, named: Iterable[tuple[str, nn.Parameter]]) -> Steps:
    """An optimizer for each parameter, which steps as soon as the gradient is there and frees it."""
    takes_names = bool(config.record.rest)
    optimizers = {p: make_optimizer(config, [(name, p)] if takes_names else [p]) for name, p in named}

    def step_and_free(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step_and_free)
    return Steps()


def make_step_optimizer(setup: TrainingSetup, named: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer | Steps:
    """The setup's optimizer for the parameters that are trained, ``SixteenBitAdamW`` where the precision needs it.

    Gradients wider than the weights are asked of autograd by ``grad_dtype``. Without parameters nothing is made, but
    what no program here runs is refused.

    Raises: ValueError: no optimizer here keeps the copies that the precision wants, or steps on the host.
    """
    precision, optimizer = setup.precision, setup.optimizer
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    copies = (precision.master_dtype, precision.remainder_dtype, precision.main_gradient_dtype)
    if optimizer.is_on_host:
        raise ValueError(f"optimizer place={optimizer.place!r} is a formula only: torchao's needs a CUDA card")
    is_plain = precision.weight_dtype == precision.gradient_dtype and not any((*copies, precision.state_dtype))
    if is_plain or setup.adapter is not None:
        if not trained:
            return Steps()
        if optimizer.place == Place.IN_BACKWARD:
            return step_in_backward(optimizer, trained.items())
        return make_optimizer(optimizer, trained.items() if optimizer.record.rest else trained.values())
    write = {(True, False): "master", (False, True): "kahan"}.get((bool(copies[0]), bool(copies[1])))
    is_known = write is not None and optimizer.name == "AdamW" and optimizer.place == Place.AFTER_BACKWARD
    if not is_known or precision.state_dtype or precision.weight_dtype != "bfloat16":
        raise ValueError(f"precision {precision.name!r} with {optimizer.name} is a formula only")
    for parameter in trained.values():
        parameter.grad_dtype = getattr(torch, precision.gradient_dtype)
    if not trained:
        return Steps()
    return SixteenBitAdamW(trained.values(), write=write, copies_gradients=bool(precision.main_gradient_dtype))
