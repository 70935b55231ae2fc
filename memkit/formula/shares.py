"""Which parameters a rank keeps between steps, and which it updates: all of them, or a share of each.

``fully_shard`` cuts every tensor along its first axis into as many equal chunks as there are ranks; the last ranks may
have less, and room for the same. ``ZeroRedundancyOptimizer`` gives whole tensors to ranks, the largest first, each to
the rank that has least. All that is said here is said of rank 0.

Source: torch/distributed/fsdp/_fully_shard/_fsdp_param.py, torch/distributed/optim/zero_redundancy_optimizer.py, 2.13.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from memkit.formula.parameters import Parameter, parameter_ledger
from memkit.setup.layouts import Layout
from memkit.setup.models import ModelConfig


def shard(parameter: Parameter, num_ranks: int) -> Parameter:
    """A rank's chunk of a tensor: its rows divided by the ranks, rounded up.

    >>> shard(Parameter(name="head", shape=(50257, 768), kind="head"), 8).shape
    (6283, 768)
    """
    rows, *others = parameter.shape
    return replace(parameter, shape=(-(-rows // num_ranks), *others))


def whole_tensors(parameters: Iterable[Parameter], num_ranks: int) -> tuple[Parameter, ...]:
    """The tensors that rank 0 updates where each belongs to one rank."""
    loads, mine = [0] * num_ranks, []
    for parameter in sorted(parameters, key=lambda parameter: parameter.count, reverse=True):
        rank = loads.index(min(loads))
        loads[rank] += parameter.count
        if rank == 0:
            mine.append(parameter)
    return tuple(mine)


@lru_cache(maxsize=64)
def kept_parameters(config: ModelConfig, layout: Layout | None = None) -> tuple[Parameter, ...]:
    """The weights that stand on a rank between steps."""
    parameters = parameter_ledger(config)
    if layout is None or not layout.is_fully_sharded:
        return parameters
    return tuple(shard(parameter, layout.dp_size) for parameter in parameters)


@lru_cache(maxsize=64)
def stepped_parameters(config: ModelConfig, layout: Layout | None = None) -> tuple[Parameter, ...]:
    """What a rank's optimizer updates, and keeps states for."""
    if layout is None or layout.stage != 1:
        return kept_parameters(config, layout)
    return whole_tensors(parameter_ledger(config), layout.dp_size)
