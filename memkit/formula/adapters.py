"""Which tensors LoRA trains, which it freezes, and which of the frozen ones QLoRA keeps in 4 bits.

An adapter of rank r beside a layer of ``in`` inputs and ``out`` outputs has r · (in + out) parameters. Beside
query, key, value and output of a Llama with L layers and as many key heads as query heads that sums to::

    N = L · 4 · r · 2h        for Llama-2-7B and r = 16:  32 · 4 · 16 · 8192 = 16,777,216
"""

from dataclasses import replace
from functools import lru_cache

from memkit.formula.parameters import Parameter, block_parameters, parameter_ledger
from memkit.setup.adapters import AdapterConfig
from memkit.setup.models import ModelConfig
from memkit.units import as_kind


@lru_cache(maxsize=64)
def adapters_of_block(config: ModelConfig, adapter: AdapterConfig) -> tuple[Parameter, ...]:
    """The thin matrices of one block, two beside each target, in the order of the layers."""
    found = []
    for weight in block_parameters(config):
        name = weight.name.removesuffix(".weight")
        if weight.is_matrix_product and name.rpartition(".")[2] in adapter.targets:
            (num_outputs, num_inputs), (out_axis, in_axis) = weight.shape, weight.axes.split()
            down, up = (adapter.rank, num_inputs), (num_outputs, adapter.rank)
            found.append(Parameter(name=f"{name}.lora_a.weight", shape=down, kind="adapter", axes=f"r {in_axis}"))
            found.append(Parameter(name=f"{name}.lora_b.weight", shape=up, kind="adapter", axes=f"{out_axis} r"))
    return tuple(found)


@lru_cache(maxsize=64)
def trained_parameters(config: ModelConfig, adapter: AdapterConfig | None) -> tuple[Parameter, ...]:
    """Every parameter that the optimizer gets: all of the model's, or the adapters' alone."""
    if adapter is None:
        return parameter_ledger(config)
    layers = range(config.num_layers)
    block = adapters_of_block(config, adapter)
    return tuple(replace(p, name=f"blocks.{layer}.{p.name}") for layer in layers for p in block)


def count_adapter_parameters(config: ModelConfig, adapter: AdapterConfig) -> int:
    """Parameters that LoRA trains.

    >>> from memkit.setup.models import LLAMA_2_7B
    >>> count_adapter_parameters(LLAMA_2_7B, AdapterConfig(rank=16))
    16777216
    """
    as_kind("adapter", adapter, AdapterConfig)
    block = adapters_of_block(as_kind("config", config, ModelConfig), adapter)
    return config.num_layers * sum(parameter.count for parameter in block)


def is_in_4_bits(parameter: Parameter, adapter: AdapterConfig | None) -> bool:
    """Whether QLoRA keeps this frozen weight in 4 bits: the linear layers of the blocks, but not the head."""
    has_4_bits = adapter is not None and adapter.base == "nf4"
    return has_4_bits and parameter.is_matrix_product and parameter.kind in ("attention", "mlp")
