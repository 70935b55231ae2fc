"""The optimizer of a setup: torch's own, or ``SixteenBitAdamW`` where the precision needs copies of the weights.

Which class it is and what it takes stands in its record in ``memkit.optimizers``.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module

import torch
from torch import nn

from memkit.low_precision.sixteen_bits import SixteenBitAdamW
from memkit.optimizers import Optimizer
from memkit.recipes import OptimizerConfig
from memkit.setup import TrainingSetup


def make_optimizer(
    config: OptimizerConfig, parameters: Iterable, lr: float = 3e-4
) -> torch.optim.Optimizer:
    """The optimizer of an ``OptimizerConfig``. Raises: ImportError: the optimizer's library is not there."""
    return class_of(config.record)(
        parameters, lr=lr, **config.record.keywords(config.implementation)
    )


def class_of(record: Optimizer) -> type[torch.optim.Optimizer]:
    """An optimizer's class. Raises: ImportError: the library that has it is not there."""
    module, name = record.made_by.split(":")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ImportError(
            f"optimizer {record.name!r} is {module}.{name}: pip install {library}"
        ) from error


def make_step_optimizer(
    setup: TrainingSetup, named: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer | None:
    """The setup's optimizer for the parameters that are trained, ``SixteenBitAdamW`` where the precision needs it.

    Gradients wider than the weights are asked of autograd by ``grad_dtype``. Without parameters nothing is made, but
    what no program here runs is refused.

    Raises: ValueError: no optimizer here keeps the copies that the precision wants.
    """
    precision, optimizer = setup.precision, setup.optimizer
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    copies = (precision.master_dtype, precision.remainder_dtype, precision.main_gradient_dtype)
    is_plain = precision.weight_dtype == precision.gradient_dtype and not any(
        (*copies, precision.state_dtype)
    )
    if is_plain:
        return make_optimizer(optimizer, trained.values()) if trained else None
    write = {(True, False): "master", (False, True): "kahan"}.get(
        (bool(copies[0]), bool(copies[1]))
    )
    is_known = write is not None and optimizer.name == "AdamW"
    if not is_known or precision.state_dtype or precision.weight_dtype != "bfloat16":
        raise ValueError(f"precision {precision.name!r} with {optimizer.name} is a formula only")
    for parameter in trained.values():
        parameter.grad_dtype = getattr(torch, precision.gradient_dtype)
    if not trained:
        return None
    return SixteenBitAdamW(
        trained.values(), write=write, copies_gradients=bool(precision.main_gradient_dtype)
    )
