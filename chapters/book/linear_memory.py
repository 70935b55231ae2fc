"""Chapter 06: what a linear layer keeps under each recipe: the weight, its casts, and its input for the backward.

y = x W' with M tokens, K inputs and N outputs. Three things stay between forward and backward:

    weight          K N values, in the dtype that the optimizer updates or that FSDP gathers
    weight's casts  in eight bits once or twice (as it stands for the forward, transposed for dgrad), or not at all
    saved input     M K values: what wgrad will multiply

A library that casts for each product and saves the operands as they came (torchao) changes none of the three. One
that saves what it cast (Transformer Engine) has the input in 8.03 to 8.25 bits instead of 16 or in 4.5, and pays with
the weight's casts. Hopper's FP8 product reads both operands along the sum, so the transpose is a copy of its own; on
Blackwell one copy per tensor serves both, but MXFP8's blocks lie along the sum and need two again.

Sources: torchao 0.18, float8_linear.py (``save_for_backward(input_hp, weight_hp_t)``); Transformer Engine 2.20,
docs/features/low_precision_training/introduction.
"""

from dataclasses import dataclass

from memkit.formats.blocks import SCALINGS
from memkit.formats.records import tensor_bytes
from memkit.models import ModelConfig
from memkit.units import as_one_of

E4M3, E2M1 = "float8_e4m3fn", "float4_e2m1fn"
PLAIN = "bfloat16"


@dataclass(frozen=True, kw_only=True)
class LinearKeeps:
    """A recipe by what stays: how often the weight is kept cast and how, and how the input is kept.

    ``saved`` is (element, scaling); a scaling of "" is a plain dtype. ``keeps_weight`` is False where only the cast
    weight exists and the optimizer holds the wide one.
    """

    name: str
    saved: tuple[str, str] = (PLAIN, "")
    weight_casts: tuple[tuple[str, str], ...] = ()
    keeps_weight: bool = True


LINEAR_KEEPS = {
    keeps.name: keeps
    for keeps in (
        LinearKeeps(name="bf16"),
        LinearKeeps(name="torchao float8"),
        LinearKeeps(
            name="TE per tensor, Hopper",
            saved=(E4M3, "tensor"),
            weight_casts=((E4M3, "tensor"),) * 2,
        ),
        LinearKeeps(
            name="TE per tensor, Blackwell",
            saved=(E4M3, "tensor"),
            weight_casts=((E4M3, "tensor"),),
        ),
        LinearKeeps(
            name="TE block, Hopper", saved=(E4M3, "1x128"), weight_casts=((E4M3, "128x128"),) * 2
        ),
        LinearKeeps(name="TE MXFP8", saved=(E4M3, "mx"), weight_casts=((E4M3, "mx"),) * 2),
        LinearKeeps(
            name="TE NVFP4", saved=(E2M1, "nvfp4"), weight_casts=((E2M1, "nvfp4_16x16"),) * 2
        ),
        LinearKeeps(
            name="TE MXFP8, only cast weights",
            saved=(E4M3, "mx"),
            weight_casts=((E4M3, "mx"),) * 2,
            keeps_weight=False,
        ),
    )
}
"""What each library keeps, by name."""


def cast_bytes(shape: tuple[int, int], element: str, scaling: str) -> int:
    """Bytes of a matrix in a format: with its scales, or plain where ``scaling`` is empty."""
    if not scaling:
        return tensor_bytes(shape[0] * shape[1], element)
    return SCALINGS[scaling].stored_bytes(shape, element)


def linear_keeps(recipe: str, tokens: int, inputs: int, outputs: int) -> dict[str, int]:
    """Bytes that stay between forward and backward, by what they are. ``tokens`` x ``inputs`` is the layer's input.

    >>> linear_keeps("TE per tensor, Blackwell", 1024, 1024, 1024)["saved input"] // 2**20
    1

    Raises: ValueError: an unknown recipe, or sizes that its blocks do not tile.
    """
    keeps = LINEAR_KEEPS[as_one_of("recipe", recipe, LINEAR_KEEPS)]
    shapes = (outputs, inputs), (inputs, outputs)
    casts = [
        cast_bytes(shape, *cast) for shape, cast in zip(shapes, keeps.weight_casts, strict=False)
    ]
    return {
        "weight": tensor_bytes(inputs * outputs, PLAIN) * keeps.keeps_weight,
        "weight, cast": sum(casts[:1]),
        "weight, cast and transposed": sum(casts[1:]),
        "saved input": cast_bytes((inputs, tokens), *keeps.saved),
    }


def linear_inputs(model: ModelConfig) -> int:
    """Values that a block's linear layers read for one token: query, key and value share one input, gate and up too.

    >>> from memkit.models import LLAMA_3_8B
    >>> linear_inputs(LLAMA_3_8B)    # 4096 + 4096 + 4096 + 14336
    26624
    """
    return model.hidden_size + model.query_size + model.hidden_size + model.intermediate_size


def saved_inputs_bytes(model: ModelConfig, tokens: int, num_blocks: int, recipe: str) -> int:
    """Bytes of the inputs that the linear layers of ``num_blocks`` blocks keep for the backward."""
    keeps = LINEAR_KEEPS[as_one_of("recipe", recipe, LINEAR_KEEPS)]
    return num_blocks * cast_bytes((linear_inputs(model), tokens), *keeps.saved)
