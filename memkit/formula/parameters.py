"""How many parameters a model has, tensor by tensor.

This is where a model's matrices are decided: the formula's list of operations reads here which there are and how
large. The list has the order and the names of ``memkit.program.transformer``'s ``named_parameters()``: the two can be
compared line by line. A tied head is no tensor of its own: it is the token embedding under a second name.

For a GPT-2 style model with h = hidden size, L = layers, v = vocabulary, s = positions the list sums to::

    N = vh + sh + L (12h² + 13h) + 2h

and for a Llama style model with k = width of the key heads and f = intermediate size::

    N = 2vh + L (2h² + 2hk + 3hf + 2h) + h

Norms on queries and keys are 2d more a block.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from memkit.models import ModelConfig

PARAMETER_KINDS = ("embedding", "attention", "mlp", "norm", "head")
"""Where a parameter sits. A tied head's weight is an ``embedding``, once."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter tensor: its name in ``state_dict``, its shape and where it sits (``PARAMETER_KINDS``).

    ``axes`` are letters, as in ``model_axes``. ``times``: it stands for so many alike, in blocks that are alike.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    axes: str = ""
    times: int = 1

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
    a, k, d = config.num_heads, config.num_kv_heads, config.head_dim
    sizes = {"h": config.hidden_size, "a": a, "k": k, "d": d, "f": config.intermediate_size}
    sizes |= {"v": config.vocab_size, "p": config.max_seq_len, "ad": a * d, "kd": k * d}
    sizes |= {"(a+2k)d": (a + 2 * k) * d, "d/2": d // 2, "ad/2": a * d // 2, "kd/2": k * d // 2}
    return sizes | config.more_axes


def embedding_parameters(config: ModelConfig) -> tuple[Parameter, ...]:
    """The tables before the first block: tokens, and learned positions where the model has them."""
    tokens = _parameter(config, "token_embedding.weight", "v h", "embedding")
    positions = _parameter(config, "position_embedding.weight", "p h", "embedding")
    return (tokens, positions) if config.position == "learned" else (tokens,)


def mlp_parameters(config: ModelConfig, is_gated: bool = False) -> list[Parameter]:
    """The MLP of GPT-2: up, down; the gated one of Llama: gate, up, down."""
    layers = {"mlp.gate": "f h"} if is_gated else {}
    layers |= {"mlp.up": "f h", "mlp.down": "h f"}
    bias = config.has_mlp_bias
    return [p for name, axes in layers.items() for p in _linear(config, name, axes, bias)]


MLP_PARAMETERS: dict[str, Callable[[ModelConfig], list[Parameter]]] = {
    "gelu": mlp_parameters,
    "swiglu": partial(mlp_parameters, is_gated=True),
}
"""The parameters of an MLP, by the kind that ``ModelConfig.mlp_of`` names."""


@lru_cache(maxsize=64)
def block_parameters(config: ModelConfig, mlp: str = "") -> tuple[Parameter, ...]:
    """The parameter tensors of one transformer block, in order, with this kind of MLP (the model's own)."""
    projections = {"query": "ad", "key": "kd", "value": "kd"}
    if config.fuses_qkv:
        projections = {"qkv": "(a+2k)d"}
    tensors = _norm(config, "norm_1") + _norm(config, "norm_2")
    for name, width in projections.items():
        tensors += _linear(config, f"attention.{name}", f"{width} h", config.has_qkv_bias)
    tensors += _linear(config, "attention.output", "h ad", config.has_output_bias)
    for name in ("query", "key") if config.has_qk_norm else ():
        tensors.append(_parameter(config, f"attention.{name}_norm.weight", "d", "norm"))
    return (*tensors, *MLP_PARAMETERS[mlp or config.mlp](config))


def output_parameters(config: ModelConfig) -> tuple[Parameter, ...]:
    """What comes after the last block: the last norm, and the head unless it is tied."""
    head = [] if config.ties_embeddings else [_parameter(config, "head.weight", "v h", "head")]
    return (*_norm(config, "norm"), *head)


@lru_cache(maxsize=64)
def parameter_ledger(config: ModelConfig) -> tuple[Parameter, ...]:
    """Every parameter tensor of the model, each once, in the order of ``named_parameters()``."""
    return (
        *embedding_parameters(config),
        *of_blocks(config, block_parameters),
        *output_parameters(config),
    )


def of_blocks(
    config: ModelConfig, of_kind: Callable[[ModelConfig, str], Iterable[Parameter]]
) -> list[Parameter]:
    """What each block in turn has, under its own number."""
    times = config.block_times or (1,) * config.num_layers
    return [
        replace(p, name=f"blocks.{layer}.{p.name}", times=times[layer])
        for layer in range(config.num_layers)
        for p in of_kind(config, config.mlp_of(layer))
    ]


def count_parameters(config: ModelConfig) -> int:
    """Parameters of the model, every tensor counted once.

    >>> from memkit.models import GPT2_SMALL, LLAMA_3_8B
    >>> count_parameters(GPT2_SMALL), count_parameters(LLAMA_3_8B)
    (124439808, 8030261248)
    """
    return sum(count_by_kind(config).values())


def count_by_kind(config: ModelConfig) -> dict[str, int]:
    """Parameters by ``PARAMETER_KINDS``. Blocks of a kind are alike, so one is counted and multiplied.

    >>> from memkit.models import LLAMA_2_7B
    >>> {kind: round(count / 1e6) for kind, count in count_by_kind(LLAMA_2_7B).items()}
    {'embedding': 131, 'attention': 2147, 'mlp': 4329, 'norm': 0, 'head': 131}
    """
    counts = Counter(dict.fromkeys(PARAMETER_KINDS, 0))
    for p in parameter_ledger(config.one_of_each):
        counts[p.kind] += p.times * p.count
    return dict(counts)


def _parameter(config: ModelConfig, name: str, axes: str, kind: str) -> Parameter:
    sizes = model_axes(config)
    shape = tuple(sizes[axis] for axis in axes.split())
    return Parameter(name=name, shape=shape, kind=kind, axes=axes)


def _linear(config: ModelConfig, name: str, axes: str, has_bias: bool) -> list[Parameter]:
    kind = name.partition(".")[0]
    weight = _parameter(config, f"{name}.weight", axes, kind)
    bias = _parameter(config, f"{name}.bias", axes.split()[0], kind)
    return [weight, bias] if has_bias else [weight]


def _norm(config: ModelConfig, name: str) -> list[Parameter]:
    parts = {"layernorm": ("weight", "bias"), "rmsnorm": ("weight",)}
    return [_parameter(config, f"{name}.{part}", "h", "norm") for part in parts[config.norm]]
