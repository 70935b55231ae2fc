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
from dataclasses import dataclass, replace

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.adapters import is_in_4_bits, trained_parameters
from memkit.formula.parameters import Parameter, alike, parameter_ledger
from memkit.setup.adapters import AdapterConfig
from memkit.setup.models import ModelConfig
from memkit.setup.recipes import MIN_OFFLOADED, OPTIMIZERS, OptimizerConfig, Precision
from memkit.units import as_kind, round_up

ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")
MOMENTS = {name: ADAM_MOMENTS for name in OPTIMIZERS if "Adam" in name} | {
    "SGD": (),
    "SGD momentum": ("momentum_buffer",),
    "AdamW amsgrad": (*ADAM_MOMENTS, "max_exp_avg_sq"),
    "Lion": ("exp_avg",),
    "Muon": ("momentum_buffer",),
}
"""States shaped like the parameter, by torch's key in ``optimizer.state``. Adafactor's have other shapes."""

MIN_8BIT_VALUES = 4096
"""bitsandbytes and torchao leave the states of smaller tensors as they are (``min_8bit_size``)."""

MIN_PAGED_VALUES = 100_000
"""bitsandbytes' paged optimizers leave the states of smaller tensors in the card's own memory."""


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """How a library keeps a moment in few bits: codes, one float32 scale a block, maps from codes to values.

    ``map_values``: how many values each moment's map has. bitsandbytes has one map for all tensors, and the
    last block of a tensor may be short; torchao has one for each tensor, and leaves a tensor with a short
    block in the parameter's dtype.
    """

    dtype: str
    bits: int = 8
    scale: str = "scale"
    map_values: int = 0
    shares_map: bool = False

    def takes(self, parameter: Parameter, block_size: int) -> bool:
        """Whether the moments of this tensor are quantized."""
        return parameter.count >= MIN_8BIT_VALUES and (self.shares_map or parameter.count % block_size == 0)


BITSANDBYTES = Quantized(dtype="uint8", scale="absmax", map_values=256, shares_map=True)
QUANTIZED = {
    "8-bit AdamW": BITSANDBYTES,
    "paged 8-bit AdamW": BITSANDBYTES,
    "torchao 8-bit AdamW": Quantized(dtype="uint8", map_values=256),
    "torchao 4-bit AdamW": Quantized(dtype="uint8", bits=4, map_values=16),
    "torchao FP8 AdamW": Quantized(dtype="float8_e4m3fn"),
}
WIDE = ("8-bit AdamW", "paged AdamW", "paged 8-bit AdamW")
"""bitsandbytes: moments that are not quantized are float32, whatever the parameter is."""

NF4_BLOCK, NF4_SCALE_BLOCK = 64, 256
"""Values that share a scale, and scales that share one of their own (Dettmers et al. 2023, section 3)."""


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


def weight_tensors(
    parameter: Parameter, precision: Precision, adapter: AdapterConfig | None = None
) -> tuple[StateTensor, ...]:
    """The weight itself, or what stands for it in 4 bits. A master copy belongs to the optimizer and is listed there.

    Source: ``quantize_4bit`` of bitsandbytes 0.50: codes, their scales and the two maps, for each tensor anew.
    """
    if not is_in_4_bits(parameter, adapter):
        dtype = adapter.dtype if parameter.kind == "adapter" else precision.weight_dtype
        return (_state(parameter, "weight", dtype, part="weights"),)
    num_scales = -(-parameter.count // NF4_BLOCK)
    scales = {"NF4 scales": ((num_scales,), "float32")}
    if adapter.double_quantises:
        scales = {
            "NF4 scales": ((num_scales,), "uint8"),
            "scales of scales": ((-(-num_scales // NF4_SCALE_BLOCK),), "float32"),
            "mean scale": ((), "float32"),
            "map of scales": ((256,), "float32"),
        }
    tensors = {"NF4 codes": ((-(-parameter.count // 2), 1), "uint8"), **scales, "NF4 map": ((16,), "float32")}
    return tuple(
        StateTensor(parameter=parameter.name, role=role, shape=shape, dtype=dtype, part="weights")
        for role, (shape, dtype) in tensors.items()
    )


def gradient_tensors(parameter: Parameter, precision: Precision) -> tuple[StateTensor, ...]:
    """The gradient, and the second one that a recipe with main gradients accumulates in; an adapter has one."""
    tensors = [_state(parameter, "gradient", precision.gradient_dtype, part="gradients")]
    if precision.main_gradient_dtype:
        tensors.append(_state(parameter, "main gradient", precision.main_gradient_dtype, part="gradients"))
    return tuple(tensors)


def optimizer_tensors(
    parameter: Parameter, precision: Precision, optimizer: OptimizerConfig
) -> tuple[StateTensor, ...]:
    """What the optimizer keeps for one parameter from its first step on, under torch's names.

    Source: ``_init_group`` in torch.optim's SGD, Adam and Adafactor (2.13); bitsandbytes ``Optimizer2State``.
    """
    if optimizer.name == "Muon" and not is_hidden_matrix(parameter):
        return optimizer_tensors(parameter, precision, replace(optimizer, name="AdamW"))
    is_offloaded = optimizer.is_on_host and parameter.count >= MIN_OFFLOADED
    tensors = []
    if precision.master_dtype:
        tensors.append(_state(parameter, "master weight", precision.master_dtype))
    if precision.remainder_dtype:
        tensors.append(_state(parameter, "remainder", precision.remainder_dtype))
    if optimizer.name in ("Adam", "AdamW", "AdamW amsgrad", "Adafactor") or optimizer.name.startswith("torchao"):
        is_on_host = optimizer.implementation != "fused" or optimizer.name.startswith("torchao")
        tensors.append(_state(parameter, "step", "float32", (), is_on_host=is_on_host))
    if optimizer.name == "Adafactor":
        tensors += _factored_variance(parameter, precision.moment_dtype)
    else:
        for role in MOMENTS[optimizer.name]:
            tensors += _moment(parameter, role, precision, optimizer)
    return tuple(replace(tensor, is_on_host=True) if is_offloaded else tensor for tensor in tensors)


def is_hidden_matrix(parameter: Parameter) -> bool:
    """Whether Muon takes it: a matrix, and no table or head."""
    return len(parameter.shape) == 2 and parameter.kind not in ("embedding", "head")


def _moment(
    parameter: Parameter, role: str, precision: Precision, optimizer: OptimizerConfig
) -> list[StateTensor]:
    """One moment as the optimizer keeps it: a tensor like the parameter, or codes with their scales."""
    how, block_size = QUANTIZED.get(optimizer.name), optimizer.block_size
    is_paged = optimizer.name.startswith("paged") and parameter.count >= MIN_PAGED_VALUES
    if how is None or not how.takes(parameter, block_size):
        dtype = "float32" if optimizer.name in WIDE else precision.moment_dtype
        return [_state(parameter, role, dtype, is_on_host=is_paged)]
    shape = parameter.shape if how.bits == 8 else (parameter.count * how.bits // 8,)
    scales = (-(-parameter.count // block_size),)
    tensors = [
        _state(parameter, role, how.dtype, shape, is_on_host=is_paged),
        _state(parameter, f"{role} {how.scale}", "float32", scales),
    ]
    if how.map_values and not how.shares_map:
        tensors.append(_state(parameter, f"{role} map", "float32", (how.map_values,)))
    return tensors


def shared_tensors(parameters: Iterable[Parameter], optimizer: OptimizerConfig) -> tuple[StateTensor, ...]:
    """What an optimizer keeps once for all tensors: bitsandbytes' two maps from codes to values."""
    how = QUANTIZED.get(optimizer.name)
    if how is None or not how.shares_map or not any(how.takes(p, optimizer.block_size) for p in parameters):
        return ()
    return tuple(
        StateTensor(
            parameter="all", role=f"{role} map", shape=(how.map_values,), dtype="float32", part="optimizer_states"
        )
        for role in MOMENTS[optimizer.name]
    )


def _factored_variance(parameter: Parameter, dtype: str) -> list[StateTensor]:
    """Adafactor (Shazeer & Stern 2018): means of the squared gradient by row and by column, not all of it."""
    if len(parameter.shape) < 2:
        return [_state(parameter, "variance", dtype)]
    *outer, num_rows, num_columns = parameter.shape
    return [
        _state(parameter, "row_var", dtype, (*outer, num_rows, 1)),
        _state(parameter, "col_var", dtype, (*outer, 1, num_columns)),
    ]


def state_ledger(
    config: ModelConfig, precision: Precision, optimizer: OptimizerConfig, adapter: AdapterConfig | None = None
) -> tuple[StateTensor, ...]:
    """Every persistent tensor of the run: weights, then gradients, then the optimizer's.

    With an adapter the model's own weights are frozen: they have no gradient and no state.
    """
    trained = trained_parameters(config, adapter)
    of_trained = precision if adapter is None else precision_of(adapter)
    frozen = () if adapter is None else parameter_ledger(config)
    return (
        *(t for p in frozen for t in weight_tensors(p, precision, adapter)),
        *(t for p in trained for t in weight_tensors(p, of_trained, adapter)),
        *(t for p in trained for t in gradient_tensors(p, of_trained)),
        *(t for p in trained for t in optimizer_tensors(p, of_trained, optimizer)),
        *shared_tensors(trained, optimizer),
    )


def precision_of(adapter: AdapterConfig) -> Precision:
    """The precision of the adapters alone: weights, gradients and moments in one dtype."""
    return Precision(
        name="adapter", weight_dtype=adapter.dtype, gradient_dtype=adapter.dtype, compute_dtype=adapter.dtype
    )


def state_bytes(
    config: ModelConfig, precision: Precision, optimizer: OptimizerConfig, adapter: AdapterConfig | None = None
) -> dict[str, int]:
    """Bytes of the model states by part, before rounding, without what the host's memory holds.

    On the host are torch's ``step`` scalars, what an optimizer there keeps, and paged states: unified memory, which
    torch's allocator does not count, and which the driver moves between host and card.

    >>> from memkit.setup.models import GPT2_SMALL
    >>> from memkit.setup.recipes import ADAMW, FP32
    >>> state_bytes(GPT2_SMALL, FP32, ADAMW)
    {'weights': 497759232, 'gradients': 497759232, 'optimizer_states': 995518464}
    """
    totals = {"weights": 0, "gradients": 0, "optimizer_states": 0}
    for tensor in state_ledger(replace(config, num_layers=1), precision, optimizer, adapter):
        if not tensor.is_on_host:
            totals[tensor.part] += alike(config, tensor.parameter) * tensor.num_bytes
    return totals


def bytes_per_parameter(
    precision: Precision, optimizer: OptimizerConfig, shape: tuple[int, ...] = (4096, 4096)
) -> dict[str, float]:
    """Bytes per parameter as named addends, for a tensor of ``shape``; their sum is the number people print.

    The shape matters only to Adafactor and to quantized states. The ``step`` scalar, one per tensor, is left
    out, and so are maps that all tensors share.

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


def _state(
    parameter: Parameter, role: str, dtype: str, shape: tuple[int, ...] | None = None, part: str = "optimizer_states",
    is_on_host: bool = False,
) -> StateTensor:  # fmt: skip
    """A tensor of one parameter, and of its shape if no other is given."""
    shape = parameter.shape if shape is None else shape
    return StateTensor(parameter=parameter.name, role=role, shape=shape, dtype=dtype, part=part, is_on_host=is_on_host)
