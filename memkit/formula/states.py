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
from memkit.formula.parameters import Parameter, alike, is_in_4_bits, parameter_ledger, trained_parameters
from memkit.setup.adapters import AdapterConfig
from memkit.setup.models import ModelConfig
from memkit.setup.optimizers import MIN_OFFLOADED, MIN_PAGED_VALUES, State
from memkit.setup.recipes import OptimizerConfig, Precision
from memkit.units import as_whole_number

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
    tensors = {
        "NF4 codes": ((-(-parameter.count // 2), 1), "uint8"),
        "NF4 scales": ((num_scales,), "uint8"),
        "scales of scales": ((-(-num_scales // NF4_SCALE_BLOCK),), "float32"),
        "mean scale": ((), "float32"),
        "map of scales": ((256,), "float32"),
        "NF4 map": ((16,), "float32"),
    }
    return tuple(
        StateTensor(parameter=parameter.name, role=role, shape=shape, dtype=dtype, part="weights")
        for role, (shape, dtype) in tensors.items()
    )


def shared_maps(adapter: AdapterConfig | None) -> tuple[StateTensor, ...]:
    """The map of scales that bitsandbytes keeps once in a process, and copies for each layer in 4 bits."""
    if adapter is None or adapter.base != "nf4":
        return ()
    return (StateTensor(parameter="all", role="map of scales", shape=(256,), dtype="float32", part="weights"),)


def gradient_tensors(parameter: Parameter, precision: Precision) -> tuple[StateTensor, ...]:
    """The gradient, and the second one that a recipe with main gradients accumulates in; an adapter has one."""
    tensors = [_state(parameter, "gradient", precision.gradient_dtype, part="gradients")]
    if precision.main_gradient_dtype:
        tensors.append(_state(parameter, "main gradient", precision.main_gradient_dtype, part="gradients"))
    return tuple(tensors)


def optimizer_tensors(
    parameter: Parameter, precision: Precision, optimizer: OptimizerConfig
) -> tuple[StateTensor, ...]:
    """What the optimizer keeps for one parameter from its first step on, under torch's names, as its record says."""
    record = optimizer.record
    is_hidden_matrix = len(parameter.shape) == 2 and parameter.kind not in ("embedding", "head")
    if record.rest and not is_hidden_matrix:  # Muon takes neither tables nor heads
        return optimizer_tensors(parameter, precision, replace(optimizer, name=record.rest))
    tensors = []
    if precision.master_dtype:
        tensors.append(_state(parameter, "master weight", precision.master_dtype))
    if precision.remainder_dtype:
        tensors.append(_state(parameter, "remainder", precision.remainder_dtype))
    for state in record.states:
        tensors += _state_tensors(parameter, state, precision, optimizer)
    is_offloaded = optimizer.is_on_host and parameter.count >= MIN_OFFLOADED
    return tuple(replace(tensor, is_on_host=True) if is_offloaded else tensor for tensor in tensors)


def _state_tensors(
    parameter: Parameter, state: State, precision: Precision, optimizer: OptimizerConfig
) -> list[StateTensor]:
    """One state as the optimizer keeps it: a tensor of its shape, or codes with their scales; none for some shapes."""
    shape = state.shape_of(parameter.shape)
    if shape is None:
        return []
    is_on_host = {
        "never": False, "always": True, "unless fused": optimizer.implementation != "fused",
        "if paged": parameter.count >= MIN_PAGED_VALUES,
    }[state.on_host]
    coded = optimizer.record.quantized
    if coded is None or not state.is_moment or not coded.takes(parameter.count):
        return [_state(parameter, state.role, state.dtype or precision.moment_dtype, shape, is_on_host=is_on_host)]
    shape = shape if coded.bits == 8 else (parameter.count * coded.bits // 8,)
    tensors = [
        _state(parameter, state.role, coded.dtype, shape, is_on_host=is_on_host),
        _state(parameter, f"{state.role} {coded.scale}", "float32", (-(-parameter.count // coded.block_size),)),
    ]
    if coded.map_values and not coded.shares_map:
        tensors.append(_state(parameter, f"{state.role} map", "float32", (coded.map_values,)))
    return tensors


def shared_tensors(parameters: Iterable[Parameter], optimizer: OptimizerConfig) -> tuple[StateTensor, ...]:
    """What an optimizer keeps once for all tensors: bitsandbytes' two maps from codes to values."""
    coded = optimizer.record.quantized
    if coded is None or not coded.shares_map or not any(coded.takes(p.count) for p in parameters):
        return ()
    return tuple(
        StateTensor(
            parameter="all", role=f"{role} map", shape=(coded.map_values,), dtype="float32", part="optimizer_states"
        )
        for role in optimizer.record.roles
    )


def state_ledger(
    config: ModelConfig, precision: Precision, optimizer: OptimizerConfig, adapter: AdapterConfig | None = None
) -> tuple[StateTensor, ...]:
    """Every persistent tensor of the run: weights, then gradients, then the optimizer's.

    With an adapter the model's own weights are frozen: they have no gradient and no state.
    """
    trained = trained_parameters(config, adapter)
    of_trained = trained_precision(precision, adapter)
    frozen = () if adapter is None else parameter_ledger(config)
    return (
        *(t for p in frozen for t in weight_tensors(p, precision, adapter)),
        *shared_maps(adapter),
        *(t for p in trained for t in weight_tensors(p, of_trained, adapter)),
        *(t for p in trained for t in gradient_tensors(p, of_trained)),
        *(t for p in trained for t in optimizer_tensors(p, of_trained, optimizer)),
        *shared_tensors(trained, optimizer),
    )


def trained_precision(precision: Precision, adapter: AdapterConfig | None) -> Precision:
    """The dtypes of what is trained: the recipe's, or those of adapters, whose numbers all have one dtype."""
    if adapter is None:
        return precision
    dtypes = dict.fromkeys(("weight_dtype", "gradient_dtype", "compute_dtype"), adapter.dtype)
    return Precision(name="adapter", **dtypes)


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
    for tensor in state_ledger(config.one_of_each, precision, optimizer, adapter):
        if not tensor.is_on_host:
            totals[tensor.part] += alike(config, tensor.parameter) * tensor.num_bytes
    return totals


def bytes_per_parameter(
    precision: Precision, optimizer: OptimizerConfig, shape: tuple[int, ...] = (4096, 4096)
) -> dict[str, float]:
    """Bytes per parameter as named addends, for a tensor of ``shape``; their sum is the number people print.

    The shape matters only to Adafactor and to quantized states. Scalars, such as ``step``, are left out: there is one
    for each tensor. So are maps that all tensors share.

    >>> from memkit.setup.recipes import ADAMW, BF16_MASTER
    >>> addends = bytes_per_parameter(BF16_MASTER, ADAMW)
    >>> addends
    {'weight': 2.0, 'gradient': 2.0, 'master weight': 4.0, 'exp_avg': 4.0, 'exp_avg_sq': 4.0}
    >>> sum(addends.values())
    16.0
    """
    shape = tuple(as_whole_number("shape", size, 1) for size in shape)
    parameter = Parameter(name="matrix", shape=shape, kind="mlp")
    tensors = (
        *weight_tensors(parameter, precision),
        *gradient_tensors(parameter, precision),
        *optimizer_tensors(parameter, precision, optimizer),
    )
    return {t.role: t.num_bytes / parameter.count for t in tensors if t.shape}


def _state(
    parameter: Parameter, role: str, dtype: str, shape: tuple[int, ...] | None = None, part: str = "optimizer_states",
    is_on_host: bool = False,
) -> StateTensor:
    """A tensor of one parameter, and of its shape if no other is given."""
    shape = parameter.shape if shape is None else shape
    return StateTensor(parameter=parameter.name, role=role, shape=shape, dtype=dtype, part=part, is_on_host=is_on_host)
