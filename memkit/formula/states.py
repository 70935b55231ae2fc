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
from dataclasses import dataclass

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.parameters import Parameter, parameter_ledger
from memkit.setup.models import ModelConfig
from memkit.setup.recipes import OptimizerConfig, Precision
from memkit.units import as_kind, round_up

MOMENTS = {
    "SGD": (),
    "SGD momentum": ("momentum_buffer",),
    "Adam": ("exp_avg", "exp_avg_sq"),
    "AdamW": ("exp_avg", "exp_avg_sq"),
    "AdamW amsgrad": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "8-bit AdamW": ("exp_avg", "exp_avg_sq"),
}
"""States shaped like the parameter, by torch's key in ``optimizer.state``. Adafactor's have other shapes."""

MIN_8BIT_VALUES = 4096
"""bitsandbytes leaves the states of smaller tensors in float32 (``min_8bit_size``)."""


@dataclass(frozen=True, kw_only=True)
class StateTensor:
    """One persistent tensor: its parameter, role, shape, dtype and the part of memory it counts in.

    ``is_on_host``: torch keeps it in the CPU's memory even when the parameter is on a GPU.
    """

    parameter: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    part: str
    is_on_host: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes before the allocator rounds."""
        return tensor_bytes(math.prod(self.shape), self.dtype)


def held_bytes(num_bytes: int, device: str) -> int:
    """Bytes the device's allocator takes for a tensor: on CUDA whole blocks of 512."""
    return round_up(num_bytes) if device == "cuda" else num_bytes


def weight_tensors(parameter: Parameter, precision: Precision) -> tuple[StateTensor, ...]:
    """The weight itself. A master copy belongs to the optimizer and is listed there."""
    return (_like(parameter, "weight", precision.weight_dtype, "weights"),)


def gradient_tensors(parameter: Parameter, precision: Precision) -> tuple[StateTensor, ...]:
    """The gradient, and the second one that a recipe with main gradients accumulates in."""
    tensors = [_like(parameter, "gradient", precision.gradient_dtype, "gradients")]
    if precision.main_gradient_dtype:
        tensors.append(_like(parameter, "main gradient", precision.main_gradient_dtype, "gradients"))
    return tuple(tensors)


def optimizer_tensors(
    parameter: Parameter, precision: Precision, optimizer: OptimizerConfig
) -> tuple[StateTensor, ...]:
    """What the optimizer keeps for one parameter from its first step on, under torch's names.

    Source: ``_init_group`` in torch.optim's SGD, Adam and Adafactor (2.13); bitsandbytes ``Optimizer2State``.
    """
    tensors = []
    if precision.master_dtype:
        tensors.append(_like(parameter, "master weight", precision.master_dtype, "optimizer_states"))
    if precision.remainder_dtype:
        tensors.append(_like(parameter, "remainder", precision.remainder_dtype, "optimizer_states"))
    if optimizer.name in ("Adam", "AdamW", "AdamW amsgrad", "Adafactor"):
        is_on_host = optimizer.implementation != "fused"
        tensors.append(_state(parameter, "step", (), "float32", is_on_host=is_on_host))
    dtype = precision.moment_dtype
    if optimizer.name == "Adafactor":
        return (*tensors, *_factored_variance(parameter, dtype))
    is_8bit = optimizer.name == "8-bit AdamW" and parameter.count >= MIN_8BIT_VALUES
    if optimizer.name == "8-bit AdamW":
        dtype = "uint8" if is_8bit else "float32"
    for role in MOMENTS[optimizer.name]:
        tensors.append(_like(parameter, role, dtype, "optimizer_states"))
        if is_8bit:
            num_blocks = -(-parameter.count // optimizer.block_size)
            tensors.append(_state(parameter, f"{role} absmax", (num_blocks,), "float32"))
    return tuple(tensors)


def _factored_variance(parameter: Parameter, dtype: str) -> list[StateTensor]:
    """Adafactor (Shazeer & Stern 2018): means of the squared gradient by row and by column, not all of it."""
    if len(parameter.shape) < 2:
        return [_state(parameter, "variance", parameter.shape, dtype)]
    *outer, num_rows, num_columns = parameter.shape
    return [
        _state(parameter, "row_var", (*outer, num_rows, 1), dtype),
        _state(parameter, "col_var", (*outer, 1, num_columns), dtype),
    ]


def state_ledger(
    config: ModelConfig, precision: Precision, optimizer: OptimizerConfig
) -> tuple[StateTensor, ...]:
    """Every persistent tensor of the run: weights, then gradients, then the optimizer's."""
    parameters = parameter_ledger(config)
    return (
        *(t for p in parameters for t in weight_tensors(p, precision)),
        *(t for p in parameters for t in gradient_tensors(p, precision)),
        *(t for p in parameters for t in optimizer_tensors(p, precision, optimizer)),
    )


def state_bytes(config: ModelConfig, precision: Precision, optimizer: OptimizerConfig) -> dict[str, int]:
    """Bytes of the model states by part, before rounding, without what torch keeps on the host.

    >>> from memkit.setup.models import GPT2_SMALL
    >>> from memkit.setup.recipes import ADAMW, FP32
    >>> state_bytes(GPT2_SMALL, FP32, ADAMW)
    {'weights': 497759232, 'gradients': 497759232, 'optimizer_states': 995518464}
    """
    totals = {"weights": 0, "gradients": 0, "optimizer_states": 0}
    for tensor in state_ledger(config, precision, optimizer):
        if not tensor.is_on_host:
            totals[tensor.part] += tensor.num_bytes
    return totals


def bytes_per_parameter(
    precision: Precision, optimizer: OptimizerConfig, shape: tuple[int, ...] = (4096, 4096)
) -> dict[str, float]:
    """Bytes per parameter as named addends, for a tensor of ``shape``; their sum is the number people print.

    The shape matters only to Adafactor and to the scales of 8-bit states. The ``step`` scalar, one per
    tensor, is left out.

    >>> from memkit.setup.recipes import ADAMW, BF16_MASTER
    >>> addends = bytes_per_parameter(BF16_MASTER, ADAMW)
    >>> addends
    {'weight': 2.0, 'gradient': 2.0, 'master weight': 4.0, 'exp_avg': 4.0, 'exp_avg_sq': 4.0}
    >>> sum(addends.values())
    16.0
    """
    as_kind("precision", precision, Precision)
    as_kind("optimizer", optimizer, OptimizerConfig)
    parameter = Parameter(name="matrix", shape=shape, kind="mlp")
    tensors = (
        *weight_tensors(parameter, precision),
        *gradient_tensors(parameter, precision),
        *optimizer_tensors(parameter, precision, optimizer),
    )
    return {t.role: t.num_bytes / parameter.count for t in tensors if t.role != "step"}


def _like(parameter: Parameter, role: str, dtype: str, part: str) -> StateTensor:
    return StateTensor(parameter=parameter.name, role=role, shape=parameter.shape, dtype=dtype, part=part)


def _state(
    parameter: Parameter, role: str, shape: tuple[int, ...], dtype: str, is_on_host: bool = False
) -> StateTensor:  # fmt: skip
    return StateTensor(
        parameter=parameter.name,
        role=role,
        shape=shape,
        dtype=dtype,
        part="optimizer_states",
        is_on_host=is_on_host,
    )
