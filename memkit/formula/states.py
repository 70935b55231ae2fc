"""What a training run keeps between steps, tensor by tensor: weights, gradients, optimizer states.

Nothing here depends on the batch or on the sequence. Each parameter brings its own small family of tensors.
With AdamW the family costs, in bytes per parameter::

    fp32, torch.autocast      4 w + 4 g                  + 4 m + 4 v = 16
    bf16 with fp32 master     2 w + 2 g + 4 master       + 4 m + 4 v = 16
    Megatron, fp32 gradients  2 w + 4 g + 4 master       + 4 m + 4 v = 18
    bf16, two gradients       2 w + 2 g + 4 master + 4 g + 4 m + 4 v = 20
    pure bf16                 2 w + 2 g                  + 2 m + 2 v =  8
    bf16 with Kahan           2 w + 2 g + 2 remainder    + 2 m + 2 v = 10

``bytes_per_parameter`` gives such a line as named addends. The difference between two published numbers is
then a difference between two recipes, and can be read off.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from memkit.formats.records import tensor_bytes
from memkit.formula.parameters import Parameter, parameter_ledger
from memkit.models import ModelConfig
from memkit.recipes import OptimizerConfig, Precision
from memkit.units import as_whole_number


@dataclass(frozen=True, kw_only=True)
class StateTensor:
    """One persistent tensor: its parameter, role, shape, dtype and the part of memory it counts in.

    ``is_in_host``: torch keeps it in the CPU's memory even when the parameter is on a GPU. ``times``: it stands for so
    many alike, as its parameter does.
    """

    parameter: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    part: str
    is_in_host: bool = False
    times: int = 1

    @property
    def num_bytes(self) -> int:
        """Bytes before the allocator rounds."""
        return tensor_bytes(math.prod(self.shape), self.dtype)


def _state(parameter: Parameter, role: str, dtype: str | None, **more) -> list[StateTensor]:
    """A tensor of one parameter, and of its shape and of the optimizer if no other is given; none without a dtype."""
    more = {"shape": parameter.shape, "part": "optimizer_states", "times": parameter.times} | more
    return [StateTensor(parameter=parameter.name, role=role, dtype=dtype, **more)] if dtype else []


def weight_tensors(parameter: Parameter, precision: Precision) -> list[StateTensor]:
    """The weight itself. A master copy belongs to the optimizer and is listed there."""
    return _state(parameter, "weight", precision.weight_dtype, part="weights")


def gradient_tensors(parameter: Parameter, precision: Precision) -> list[StateTensor]:
    """The gradient, and the second one that a recipe with main gradients accumulates in."""
    own, main = precision.gradient_dtype, precision.main_gradient_dtype
    return [
        *_state(parameter, "gradient", own, part="gradients"),
        *_state(parameter, "main gradient", main, part="gradients"),
    ]


def optimizer_tensors(
    parameter: Parameter, precision: Precision, optimizer: OptimizerConfig
) -> list[StateTensor]:
    """What the optimizer keeps for one parameter from its first step on, under torch's names, as its record says."""
    return master_tensors(parameter, precision) + made_tensors(parameter, precision, optimizer)


def master_tensors(parameter: Parameter, precision: Precision) -> list[StateTensor]:
    """The optimizer's own copy of the weight, there before the first step."""
    return _state(parameter, "master weight", precision.master_dtype)


def made_tensors(
    parameter: Parameter, precision: Precision, optimizer: OptimizerConfig
) -> list[StateTensor]:
    """What the first step makes and leaves."""
    tensors = _state(parameter, "remainder", precision.remainder_dtype)
    for state in optimizer.record.states_of(parameter.shape, parameter.kind).states:
        for role, shape, dtype in state.tensors_of(parameter.shape, precision.moment_dtype):
            is_in_host = state.is_in_host(role, parameter.count, optimizer.implementation)
            tensors += _state(parameter, role, dtype, shape=shape, is_in_host=is_in_host)
    return tensors


def persistent_tensors(
    parameter: Parameter, precision: Precision, optimizer: OptimizerConfig
) -> list[StateTensor]:
    """All that stands for one parameter: weight, gradient, what the optimizer keeps."""
    own = weight_tensors(parameter, precision) + gradient_tensors(parameter, precision)
    return own + optimizer_tensors(parameter, precision, optimizer)


def shared_tensors(
    parameters: Iterable[Parameter], optimizer: OptimizerConfig
) -> tuple[StateTensor, ...]:
    """What an optimizer keeps once for all tensors, as its record says."""
    kept = optimizer.record.shared_by(parameter.count for parameter in parameters)
    return tuple(
        StateTensor(parameter="all", role=role, shape=shape, dtype=dtype, part="optimizer_states")
        for role, shape, dtype in kept
    )


def state_ledger(
    config: ModelConfig, precision: Precision, optimizer: OptimizerConfig
) -> tuple[StateTensor, ...]:
    """Every persistent tensor of the run, parameter by parameter; last what the optimizer keeps once for all."""
    parameters = parameter_ledger(config)
    own = (t for p in parameters for t in persistent_tensors(p, precision, optimizer))
    return (*own, *shared_tensors(parameters, optimizer))


def state_bytes(
    config: ModelConfig, precision: Precision, optimizer: OptimizerConfig
) -> dict[str, int]:
    """Bytes of the model states by part, before rounding, without what the host's memory holds (torch's ``step``).

    >>> from memkit.models import GPT2_SMALL
    >>> from memkit.recipes import ADAMW, FP32
    >>> state_bytes(GPT2_SMALL, FP32, ADAMW)
    {'weights': 497759232, 'gradients': 497759232, 'optimizer_states': 995518464}
    """
    totals = {"weights": 0, "gradients": 0, "optimizer_states": 0}
    for tensor in state_ledger(config, precision, optimizer):
        if not tensor.is_in_host:
            totals[tensor.part] += tensor.num_bytes
    return totals


def bytes_per_parameter(
    precision: Precision, optimizer: OptimizerConfig, shape: tuple[int, ...] = (4096, 4096)
) -> dict[str, float]:
    """Bytes per parameter as named addends, for a tensor of ``shape``; their sum is the number people print.

    Scalars, such as ``step``, are left out: there is one for each tensor.

    >>> from memkit.recipes import ADAMW, BF16_MASTER
    >>> addends = bytes_per_parameter(BF16_MASTER, ADAMW)
    >>> addends
    {'weight': 2.0, 'gradient': 2.0, 'master weight': 4.0, 'exp_avg': 4.0, 'exp_avg_sq': 4.0}
    >>> sum(addends.values())
    16.0
    """
    shape = tuple(as_whole_number("shape", size, 1) for size in shape)
    parameter = Parameter(name="matrix", shape=shape, kind="mlp")
    tensors = persistent_tensors(parameter, precision, optimizer)
    return {t.role: t.num_bytes / parameter.count for t in tensors if t.shape}
