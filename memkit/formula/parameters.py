"""How many parameters a model has, tensor by tensor.

This is where a model's matrices are decided: the layers of the paper step read here which there are and how large.
The list has the order and the names of ``memkit.program.transformer``'s ``named_parameters()``: the two can
be compared line by line. A tied head is no tensor of its own: it is the token embedding under a second name.

For a GPT-2 style model with h = hidden size, L = layers, v = vocabulary, s = positions the list sums to::

    N = vh + sh + L (12h² + 13h) + 2h

and for a Llama style model with k = width of the key heads and f = intermediate size::

    N = 2vh + L (2h² + 2hk + 3hf + 2h) + h

Norms on queries and keys are 2d more a block; e experts of width g are 3hge + he in place of the MLP's 3hf.

An adapter (LoRA) of rank r beside a layer of ``in`` inputs and ``out`` outputs has r · (in + out) parameters. Beside
query, key, value and output of a Llama with L layers and as many key heads as query heads that sums to::

    N = L · 4 · r · 2h        for Llama-2-7B and r = 16:  32 · 4 · 16 · 8192 = 16,777,216

Of many ranks each may keep a share. ``fully_shard`` cuts every tensor along its first axis into as many equal chunks as
there are ranks; the last ranks may have less, and room for the same. ``ZeroRedundancyOptimizer`` gives whole tensors to
ranks, the largest first, each to the rank that has least. What is said of a rank here is said of rank 0.

Source: torch/distributed/fsdp/_fully_shard/_fsdp_param.py, torch/distributed/optim/zero_redundancy_optimizer.py, 2.13.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from memkit.setup.adapters import AdapterConfig
from memkit.setup.layouts import Layout
from memkit.setup.models import ModelConfig

PARAMETER_KINDS = ("embedding", "attention", "mlp", "norm", "head")
"""Where a parameter sits; a router and its experts are ``experts``. A tied head's weight is an ``embedding``, once."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter tensor: its name in ``state_dict``, its shape and where it sits (``PARAMETER_KINDS``).

    ``axes`` are letters, as in ``model_axes``.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    axes: str = ""

    @property
    def count(self) -> int:
        """Values in the tensor, torch's ``numel()``."""
        return math.prod(self.shape)

    @property
    def is_matrix_product(self) -> bool:
        """Whether it is the weight of a matrix product, as the head is; an embedding is looked up."""
        return len(self.shape) == 2 and self.kind != "embedding"


def model_axes(config: ModelConfig) -> dict[str, int]:
    """The number behind every axis that follows from the model alone; p is the number of positions."""
    return {
        "h": config.hidden_size, "a": config.num_heads, "k": config.num_kv_heads, "d": config.head_dim,
        "f": config.intermediate_size, "v": config.vocab_size, "p": config.max_seq_len, "ad": config.query_size,
        "kd": config.kv_size, "(a+2k)d": config.query_size + 2 * config.kv_size,
        "e": config.num_experts, "c": config.experts_per_token, "g": config.expert_size, "2g": 2 * config.expert_size,
    }


def embedding_parameters(config: ModelConfig) -> tuple[Parameter, ...]:
    """The tables before the first block: tokens, and learned positions where the model has them."""
    tables = [("token_embedding", "v")] + [("position_embedding", "p")] * (config.position == "learned")
    return tuple(_parameter(config, f"{name}.weight", f"{rows} h", "embedding") for name, rows in tables)


@lru_cache(maxsize=64)
def block_parameters(config: ModelConfig, has_experts: bool = False) -> tuple[Parameter, ...]:
    """The parameter tensors of one transformer block, in order; experts and router are no linear layers."""
    projections = {"qkv": "(a+2k)d"} if config.fuses_qkv else {"query": "ad", "key": "kd", "value": "kd"}
    tensors = _norm(config, "norm_1") + _norm(config, "norm_2")
    for name, width in projections.items():
        tensors += _linear(config, f"attention.{name}", f"{width} h", config.has_qkv_bias)
    tensors += _linear(config, "attention.output", "h ad", config.has_output_bias)
    for name in ("query", "key") if config.has_qk_norm else ():
        tensors.append(_parameter(config, f"attention.{name}_norm.weight", "d", "norm"))
    if has_experts:
        experts = {"router": "e h", "gate_up": "e 2g h", "down": "e h g"}
        return (*tensors, *(_parameter(config, f"mlp.{name}", axes, "experts") for name, axes in experts.items()))
    for name in ("gate", "up") if config.mlp == "swiglu" else ("up",):
        tensors += _linear(config, f"mlp.{name}", "f h", config.has_mlp_bias)
    return (*tensors, *_linear(config, "mlp.down", "h f", config.has_mlp_bias))


def output_parameters(config: ModelConfig) -> tuple[Parameter, ...]:
    """What comes after the last block: the last norm, and the head unless it is tied."""
    head = [] if config.ties_embeddings else [_parameter(config, "head.weight", "v h", "head")]
    return (*_norm(config, "norm"), *head)


@lru_cache(maxsize=64)
def parameter_ledger(config: ModelConfig) -> tuple[Parameter, ...]:
    """Every parameter tensor of the model, each once, in the order of ``named_parameters()``."""
    return (*embedding_parameters(config), *_of_blocks(config, block_parameters), *output_parameters(config))


def _of_blocks(config: ModelConfig, of_kind: Callable[[ModelConfig, bool], tuple[Parameter, ...]]) -> list[Parameter]:
    """What each block in turn has, under its own number."""
    kinds = [(layer, config.has_experts(layer)) for layer in range(config.num_layers)]
    return [replace(p, name=f"blocks.{layer}.{p.name}") for layer, kind in kinds for p in of_kind(config, kind)]


def alike(config: ModelConfig, name: str) -> int:
    """How many tensors of the model are like this one of its ``one_of_each``."""
    return list(config.blocks_by_kind.values())[int(name.split(".")[1])] if name.startswith("blocks.") else 1


def count_parameters(config: ModelConfig) -> int:
    """Parameters of the model, every tensor counted once.

    >>> from memkit.setup.models import GPT2_SMALL, LLAMA_3_8B
    >>> count_parameters(GPT2_SMALL), count_parameters(LLAMA_3_8B)
    (124439808, 8030261248)
    """
    return sum(count_by_kind(config).values())


def count_by_kind(config: ModelConfig) -> dict[str, int]:
    """Parameters by ``PARAMETER_KINDS``. Blocks of a kind are alike, so one is counted and multiplied.

    >>> from memkit.setup.models import LLAMA_2_7B
    >>> {kind: round(count / 1e6) for kind, count in count_by_kind(LLAMA_2_7B).items()}
    {'embedding': 131, 'attention': 2147, 'mlp': 4329, 'norm': 0, 'head': 131}
    """
    counts = Counter(dict.fromkeys(PARAMETER_KINDS, 0))
    for parameter in parameter_ledger(config.one_of_each):
        counts[parameter.kind] += alike(config, parameter.name) * parameter.count
    return dict(counts)


@lru_cache(maxsize=64)
def adapters_of_block(config: ModelConfig, adapter: AdapterConfig | None, has_experts=False) -> tuple[Parameter, ...]:
    """The thin matrices of one block, two beside each target, in the order of the layers."""
    matrices = []
    for weight in block_parameters(config, has_experts) if adapter else ():
        name = weight.name.removesuffix(".weight")
        if weight.is_matrix_product and name.rpartition(".")[2] in adapter.targets:
            (num_outputs, num_inputs), (out_axis, in_axis) = weight.shape, weight.axes.split()
            down, up = (adapter.rank, num_inputs), (num_outputs, adapter.rank)
            matrices.append(Parameter(name=f"{name}.lora_a.weight", shape=down, kind="adapter", axes=f"r {in_axis}"))
            matrices.append(Parameter(name=f"{name}.lora_b.weight", shape=up, kind="adapter", axes=f"{out_axis} r"))
    return tuple(matrices)


@lru_cache(maxsize=64)
def trained_parameters(config: ModelConfig, adapter: AdapterConfig | None) -> tuple[Parameter, ...]:
    """Every parameter that the optimizer gets: all of the model's, or the adapters' alone."""
    if adapter is None:
        return parameter_ledger(config)
    return tuple(_of_blocks(config, lambda config, has_experts: adapters_of_block(config, adapter, has_experts)))


def count_adapter_parameters(config: ModelConfig, adapter: AdapterConfig) -> int:
    """Parameters that LoRA trains.

    >>> from memkit.setup.models import LLAMA_2_7B
    >>> count_adapter_parameters(LLAMA_2_7B, AdapterConfig(rank=16))
    16777216
    """
    return sum(alike(config, p.name) * p.count for p in trained_parameters(config.one_of_each, adapter))


def is_in_4_bits(parameter: Parameter, adapter: AdapterConfig | None) -> bool:
    """Whether QLoRA keeps this frozen weight in 4 bits: the linear layers of the blocks, but not the head."""
    has_4_bits = adapter is not None and adapter.base == "nf4"
    return has_4_bits and parameter.is_matrix_product and parameter.kind in ("attention", "mlp")


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


def _parameter(config: ModelConfig, name: str, axes: str, kind: str) -> Parameter:
    sizes = model_axes(config)
    return Parameter(name=name, shape=tuple(sizes[axis] for axis in axes.split()), kind=kind, axes=axes)


def _linear(config: ModelConfig, name: str, axes: str, has_bias: bool) -> list[Parameter]:
    kind = name.split(".")[-2]
    parts = {"weight": axes, "bias": axes.split()[0]} if has_bias else {"weight": axes}
    return [_parameter(config, f"{name}.{part}", part_axes, kind) for part, part_axes in parts.items()]


def _norm(config: ModelConfig, name: str) -> list[Parameter]:
    parts = ("weight", "bias") if config.norm == "layernorm" else ("weight",)
    return [_parameter(config, f"{name}.{part}", "h", "norm") for part in parts]
