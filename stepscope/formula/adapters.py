"""LoRA and QLoRA on paper: thin matrices beside frozen weights, which may be in 4 bits."""

from functools import lru_cache

from memkit.formats.records import tensor_bytes
from memkit.formula.liveness import GRADIENT_OPS, SENDS_VIEWS
from memkit.formula.model import Transformer, addition
from memkit.formula.operations import SAME, Tensor, scope
from memkit.formula.parameters import (
    Parameter,
    block_parameters,
    of_blocks,
    one_of_each_kind,
    parameter_ledger,
)
from memkit.formula.states import StateTensor, weight_tensors
from memkit.models import ModelConfig
from memkit.recipes import Precision
from stepscope.setup import AdapterConfig, Job

NF4 = "nf4"
"""What the weights of QLoRA have for a dtype. No operation reads them but ``gemm_4bit``."""

NF4_BLOCK, NF4_SCALE_BLOCK = 64, 256
"""Values that share a scale, and scales that share one of their own (Dettmers et al. 2023, section 3)."""


GRADIENT_OPS["gemm_4bit"] = "mm"
SENDS_VIEWS.add("gemm_4bit")


@lru_cache(maxsize=64)
def adapters_of_block(
    config: ModelConfig, adapter: AdapterConfig, mlp: str
) -> tuple[Parameter, ...]:
    """The thin matrices of one block, two beside each target, in the order of the layers."""
    matrices = []
    for weight in block_parameters(config, mlp):
        name = weight.name.removesuffix(".weight")
        if weight.is_matrix_product and name.rpartition(".")[2] in adapter.targets:
            (num_outputs, num_inputs), (out_axis, in_axis) = weight.shape, weight.axes.split()
            down, up = (adapter.rank, num_inputs), (num_outputs, adapter.rank)
            matrices.append(
                Parameter(
                    name=f"{name}.lora_a.weight", shape=down, kind="adapter", axes=f"r {in_axis}"
                )
            )
            matrices.append(
                Parameter(
                    name=f"{name}.lora_b.weight", shape=up, kind="adapter", axes=f"{out_axis} r"
                )
            )
    return tuple(matrices)


@lru_cache(maxsize=64)
def trained_parameters(config: ModelConfig, adapter: AdapterConfig | None) -> tuple[Parameter, ...]:
    """Every parameter that the optimizer gets: all of the model's, or the adapters' alone."""
    if adapter is None:
        return parameter_ledger(config)
    return tuple(of_blocks(config, lambda config, mlp: adapters_of_block(config, adapter, mlp)))


def count_adapter_parameters(config: ModelConfig, adapter: AdapterConfig) -> int:
    """Parameters that LoRA trains."""
    alike = one_of_each_kind(config, lambda config, mlp: adapters_of_block(config, adapter, mlp))
    return sum(parameter.times * parameter.count for parameter in alike)


def is_in_4_bits(parameter: Parameter, adapter: AdapterConfig | None) -> bool:
    """Whether QLoRA keeps this frozen weight in 4 bits: the linear layers of the blocks, but not the head."""
    has_4_bits = adapter is not None and adapter.base == NF4
    return has_4_bits and parameter.is_matrix_product and parameter.kind in ("attention", "mlp")


def frozen_tensors(
    parameter: Parameter, precision: Precision, adapter: AdapterConfig
) -> tuple[StateTensor, ...]:
    """A frozen weight, or what stands for it in 4 bits.

    Source: ``quantize_4bit`` of bitsandbytes 0.50: codes, their scales and the two maps, for each tensor anew.
    """
    if not is_in_4_bits(parameter, adapter):
        return weight_tensors(parameter, precision)
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
    if adapter is None or adapter.base != NF4:
        return ()
    return (
        StateTensor(
            parameter="all", role="map of scales", shape=(256,), dtype="float32", part="weights"
        ),
    )


def trained_precision(precision: Precision, adapter: AdapterConfig | None) -> Precision:
    """The dtypes of what is trained: the recipe's, or those of adapters, whose numbers all have one dtype."""
    if adapter is None:
        return precision
    dtypes = dict.fromkeys(("weight_dtype", "gradient_dtype", "compute_dtype"), adapter.dtype)
    return Precision(name="adapter", **dtypes)


@addition(lambda setup: isinstance(setup, Job) and setup.adapter is not None)
class WithAdapters(Transformer):
    """A transformer of which LoRA is trained: ``linear`` writes more operations than a plain one, and parameters
    without a gradient make the list keep less.

    Source: ``lora.Linear.forward`` of peft 0.21; ``Linear4bit.forward`` and ``_gemm_4bit_default_impl`` of
    bitsandbytes 0.50.
    """

    setup: Job

    num_first = 2  # frozen, the first block may need no table for its backward

    @classmethod
    def axis_sizes(cls, setup: Job) -> dict[str, int]:
        return super().axis_sizes(setup) | {"r": setup.adapter.rank}

    def tensor_of(self, parameter: Parameter) -> Tensor:
        """All that is no adapter is frozen, in QLoRA some of it in 4 bits."""
        adapter, is_adapter = self.setup.adapter, parameter.kind == "adapter"
        dtype = (
            NF4
            if is_in_4_bits(parameter, adapter)
            else adapter.dtype
            if is_adapter
            else self.weight_dtype
        )
        return Tensor(
            parameter.axes, parameter.count, dtype, parameter=parameter, needs_grad=is_adapter
        )

    def parameters_of_block(self, number: int) -> tuple[Parameter, ...]:
        """The adapters too."""
        adapters = adapters_of_block(self.model, self.setup.adapter, self.model.mlp_of(number))
        return super().parameters_of_block(number) + adapters

    def core_output_by(self) -> str:
        """A frozen projection after the core may not keep what the kernel keeps."""
        return self.kernel

    @scope
    def linear(self, x: Tensor, name: str, label: str = "") -> Tensor:
        """W x, and beside an adapter W x + (α / r) B A x, of which the second is in the adapter's dtype.

        Kept are A x, and x in that dtype, cast anew for each adapter.
        """
        label = label or name.rpartition(".")[2]
        weight = self.parameters.get(f"{name}.weight")
        in_4_bits = weight is not None and weight.dtype == NF4
        y = self.linear_in_4_bits(x, name, label) if in_4_bits else super().linear(x, name, label)
        if f"{name}.lora_a.weight" not in self.parameters:
            return y
        graph, adapter, label = self.graph, self.setup.adapter, y.base.name
        narrow = graph.cast(x, adapter.dtype)
        dropped = self.dropout(graph.view("view", narrow), f"{name} adapter", adapter.dropout)
        thin = super().linear(dropped, f"{name}.lora_a", "A x")
        up = super().linear(thin, f"{name}.lora_b", "lora_b")
        scaled = graph.op("mul", [up], up.axes)
        wider = y.dtype if y.dtype == scaled.dtype else "float32"
        total = graph.op("add", [y, scaled], y.axes, wider, ways=(SAME, SAME), name=label)
        self.copy_for_loop(sum(total.num_bytes for each in (y, scaled) if each.dtype != wider))
        graph.hold(y, scaled)
        graph.bind(narrow)
        return graph.cast(total, y.dtype, label)

    @scope
    def linear_in_4_bits(self, x: Tensor, name: str, label: str) -> Tensor:
        """A frozen weight in NF4 is made wide for the product, and in the backward once more.

        It runs in the dtype that the model was loaded in and gives back its input's, whatever autocast says: no policy
        and no autocast knows ``gemm_4bit``. The scales, which are in 8 bits themselves, are made float32 first.
        """
        graph = self.graph
        codes = self.parameters[f"{name}.weight"]
        bias = self.parameters.get(f"{name}.bias")
        scale_bytes = tensor_bytes(-(-codes.count // NF4_BLOCK), "float32")
        weight_bytes = tensor_bytes(codes.count, self.weight_dtype)
        wide = graph.cast(x, self.weight_dtype)
        # In the backward the weight stands beside the gradient, or with its scales before the gradient is there.
        scratch_bytes = max(weight_bytes, weight_bytes + scale_bytes - wide.num_bytes)
        out = self.multiply(
            "gemm_4bit", wide, codes, [bias] if bias else [], label, scratch_bytes=scratch_bytes
        )
        graph.bind(wide)
        without_mean = graph.scratch(scale_bytes)
        scales = graph.scratch(scale_bytes)
        graph.hold(without_mean)  # an argument of ``+ absmax_offset``, without a name
        graph.scratch(weight_bytes)
        graph.hold(scales)
        return graph.cast(out, x.dtype)
