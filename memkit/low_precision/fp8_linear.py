"""A linear layer whose three matrix products take numbers of eight or four bits.

A layer y = x W' multiplies three times, and each time two matrices meet that were cast for this product:

    forward       y  = Q(x)  Q(W)'      summed over the inputs
    dgrad         dx = Q(dy) Q(W)       summed over the outputs
    wgrad         dW = Q(dy)' Q(x)      summed over the tokens

Q multiplies each group of values by a factor and rounds (``scaling``). A factor can leave a sum only if all its terms
share it, so the groups lie along the dimension that is summed. Each matrix enters two products and is summed over
another dimension in each: it is cast twice, once as it stands and once transposed. Only where a group is square (the
whole tensor, 128 x 128) are both casts the same numbers.

What stays wide is what makes this training work: the sums (float32 in the tensor cores), the weight that the
optimizer updates, its gradient, and everything between the layers.

For the backward the layer keeps x in the form that wgrad wants, cast and transposed: one byte a value instead of two,
half a byte in NVFP4. W is cast again when dgrad wants it, so no copy of it stays.

The numbers are exact: two E4M3 values have a product of 8 bits, which float32 holds. So a float32 product of the
decoded matrices is the eight-bit product but for the order of its sums; where torch has a kernel of its own for the
scaling (``torch._scaled_mm``: per tensor or row), that one is used. ``Fp8Linear.kernel`` says which it was. This layer
is for reading and for numbers; for speed take torchao or Transformer Engine.
"""

from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from memkit.formats.decoding import decode
from memkit.formats.records import get_format
from memkit.formats.rounding import encode
from memkit.low_precision.scaling import DelayedScale, factors_from, get_scaling

FLOAT32_MANTISSA_BITS = 23
OPERANDS = ("input", "weight", "gradient")


@dataclass(frozen=True, kw_only=True)
class Fp8Recipe:
    """Element formats and scalings of the three operands, and how far each product strays from the plain one."""

    name: str
    element: str = "float8_e4m3fn"
    gradient_element: str = "float8_e4m3fn"
    input_scaling: str = "tensor"
    weight_scaling: str = "tensor"
    gradient_scaling: str = "tensor"
    delayed: DelayedScale | None = None
    is_wgrad_wide: bool = False
    """torchao's ``rowwise_with_gw_hp``: wgrad from the uncast matrices, dgrad's weight with one factor."""
    rounds_gradients_by_chance: bool = False
    rotates_wgrad: bool = False
    """Multiply wgrad's operands by a 16 x 16 Hadamard matrix along the tokens, which spreads an outlier."""
    accumulator_bits: int | None = None
    """Mantissa bits of the sum between chunks of 32 terms; None is float32."""

    def element_of(self, operand: str) -> str:
        return self.gradient_element if operand == "gradient" else self.element

    def scaling_of(self, operand: str) -> str:
        return getattr(self, f"{operand}_scaling")


def _recipe(name: str, input_scaling: str, weight_scaling: str, **more) -> Fp8Recipe:
    scalings = {"input_scaling": input_scaling, "weight_scaling": weight_scaling, "gradient_scaling": input_scaling}
    return Fp8Recipe(name=name, **scalings, **more)


_HYBRID = {"gradient_element": "float8_e5m2"}
_FP4 = {"element": "float4_e2m1fn", "gradient_element": "float4_e2m1fn"}
FP8_RECIPES: MappingProxyType[str, Fp8Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            _recipe("unscaled", "none", "none", **_HYBRID),
            _recipe("delayed", "tensor", "tensor", delayed=DelayedScale(), **_HYBRID),
            _recipe("tensor", "tensor", "tensor", **_HYBRID),
            _recipe("row", "row_power_of_two", "row_power_of_two"),
            _recipe("row_wide_wgrad", "row_power_of_two", "row_power_of_two", is_wgrad_wide=True),
            _recipe("block", "1x128", "128x128"),
            _recipe("mxfp8", "mx", "mx"),
            _recipe("nvfp4_plain", "nvfp4", "nvfp4", **_FP4),
            _recipe(
                "nvfp4", "nvfp4", "nvfp4_16x16", rounds_gradients_by_chance=True, rotates_wgrad=True, **_FP4
            ),
        )
    }
)
"""Recipes by name. torchao's are ``tensor``, ``row``, ``row_wide_wgrad``; Transformer Engine's ``delayed``, ``tensor``
(its current scaling), ``block``, ``mxfp8``, ``nvfp4``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Cast:
    """A matrix in eight or four bits: elements (two of four bits a byte), a scale a block, one for the tensor."""

    elements: Tensor
    scales: Tensor
    tensor_scale: float
    element: str
    scaling: str

    def wide(self) -> Tensor:
        """element * scale in float32. Shapes: [rows, columns]."""
        if not self.element.startswith("float8"):
            is_packed = get_format(self.element).bits == 4
            pairs = torch.stack([self.elements & 15, self.elements >> 4], -1).flatten(1)
            codes = pairs if is_packed else self.elements
            values = torch.from_numpy(decode(codes.cpu().numpy(), self.element, dtype=np.float32))
            values = values.to(self.elements.device)
        else:
            values = self.elements.float()
        return by_block(values, self.scales.float() * self.tensor_scale, self.scaling)

    def t(self) -> "Cast":
        """The transpose, of a matrix with square blocks."""
        return Cast(
            elements=self.elements.t(), scales=self.scales.t(), tensor_scale=self.tensor_scale,
            element=self.element, scaling=self.scaling,
        )  # fmt: skip


def by_block(x: Tensor, factors: Tensor, scaling: str) -> Tensor:
    """Each block of ``x`` times its factor. Shapes: x [rows, columns]; factors [row blocks, column blocks]."""
    blocks = x.reshape(get_scaling(scaling).grid(x.shape))
    return (blocks * factors[:, None, :, None]).reshape(x.shape)


def cast_to(
    x: Tensor, element: str, scaling: str, *, multiplier: float | None = None, rng: np.random.Generator | None = None
) -> Cast:
    """``scaling.scale_to`` on a tensor. ``rng`` asks for stochastic rounding.

    Shapes: [rows, columns].
    Raises: ValueError: the blocks do not tile the matrix.
    """
    x, record = x.detach().float(), get_scaling(scaling)
    amax = x.reshape(record.grid(x.shape)).abs().amax((1, 3))
    factors = factors_from(amax.cpu().numpy(), scaling, element)
    multipliers, block_scales = (torch.from_numpy(a).to(x.device) for a in (factors.multipliers, factors.block_scales))
    if multiplier is not None:
        multipliers, block_scales = torch.full_like(amax, multiplier), 1 / torch.full_like(amax, multiplier)
    moved = by_block(x, multipliers, scaling)
    if not element.startswith("float8") or rng is not None:
        rounding = "nearest_even" if rng is None else "stochastic"
        codes = encode(moved.cpu().numpy(), element, overflow="saturate", rounding=rounding, rng=rng)
        elements = torch.from_numpy(codes).to(x.device)
        elements = elements.view(getattr(torch, element)) if element.startswith("float8") else elements
    else:
        largest = get_format(element).max
        elements = moved.clamp(-largest, largest).to(getattr(torch, element))
    if get_format(element).bits == 4:
        elements = elements[:, ::2] | elements[:, 1::2] << 4
    stored = torch.float8_e8m0fnu if record.is_e8m0 else torch.float8_e4m3fn if record.rule == "two_level" else None
    scales = block_scales.to(stored or torch.float32)
    return Cast(
        elements=elements, scales=scales, tensor_scale=float(factors.tensor_scale), element=element, scaling=scaling
    )


def scaled_mm_takes(a: Cast, b: Cast) -> bool:
    """Whether ``torch._scaled_mm`` multiplies these here: E4M3 or E5M2, one factor a tensor or a row.

    A CPU takes any pair; CUDA wants capability 8.9, not E5M2 twice, and sizes that are multiples of 16.
    """
    if not all(cast.element.startswith("float8") and get_scaling(cast.scaling).block_shape[1] == 0 for cast in (a, b)):
        return False
    if a.elements.is_cuda:
        is_new = torch.cuda.get_device_capability(a.elements.device) >= (8, 9)
        fits = all(size % 16 == 0 for size in (*a.elements.shape, *b.elements.shape))
        return is_new and fits and (a.element, b.element) != ("float8_e5m2", "float8_e5m2")
    return True


def scaled_product(a: Cast, b: Cast) -> Tensor:
    """a b' by ``torch._scaled_mm``, float32. One factor for all is given as the same factor for each row: a CPU's
    kernel for single factors takes a thousand times as long."""
    scale_a, scale_b = (
        cast.scales.float().expand(cast.elements.shape[0], 1).contiguous() for cast in (a, b)
    )
    is_wide = not a.elements.is_cuda  # CUDA's kernel with factors by row writes bfloat16
    product = torch._scaled_mm(
        a.elements.contiguous(), b.elements.contiguous().t(), scale_a=scale_a, scale_b=scale_b.t(),
        out_dtype=torch.float32 if is_wide else torch.bfloat16,
    )  # fmt: skip
    return product.float()


def product(a: Tensor, b: Tensor, accumulator_bits: int | None = None, chunk: int = 32, promote: int | None = None):
    """a b' in float32; with ``accumulator_bits`` the sum loses its lower mantissa bits after each chunk of terms.

    ``promote`` moves the sum to a float32 total after so many terms, as DeepSeek-V3 does every 128.
    Shapes: [M, K], [N, K] → [M, N].
    """
    if accumulator_bits is None:
        return a @ b.t()
    mask = -1 << (FLOAT32_MANTISSA_BITS - accumulator_bits)
    total = partial = torch.zeros(())
    for start in range(0, a.shape[1], chunk):
        terms = slice(start, start + chunk)
        partial = partial + a[:, terms] @ b[:, terms].t()
        partial = (partial.contiguous().view(torch.int32) & mask).view(torch.float32)
        if promote and (start + chunk) % promote == 0:
            total, partial = total + partial, torch.zeros(())
    return total + partial


def hadamard(size: int = 16) -> Tensor:
    """Sylvester's matrix over the root of its size: its own inverse, every entry as large as any other."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / size**0.5


class _Products(torch.autograd.Function):
    """The three products of a layer."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, layer: "Fp8Linear") -> Tensor:
        matrix = x.reshape(-1, x.shape[-1])
        ctx.layer, ctx.x_shape = layer, x.shape
        cast = layer.cast(matrix, "input")
        y = layer.multiply(cast, layer.cast(weight, "weight"))
        kept = matrix if layer.recipe.is_wgrad_wide else layer.cast_transposed(matrix, "input", cast)
        is_cast = isinstance(kept, Cast)
        ctx.kept = kept if is_cast else None
        ctx.save_for_backward(weight, *((kept.elements, kept.scales) if is_cast else (kept,)))
        return y.to(x.dtype).reshape(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        layer, (weight, kept, *scales) = ctx.layer, ctx.saved_tensors
        matrix = dy.reshape(-1, dy.shape[-1])
        cast = layer.cast(matrix, "gradient")
        dx = layer.multiply(cast, layer.cast_weight_for_dgrad(weight))
        if layer.recipe.is_wgrad_wide:
            dw = matrix.t().float() @ kept.float()
        else:
            x = ctx.kept
            x = Cast(elements=kept, scales=scales[0], tensor_scale=x.tensor_scale, element=x.element, scaling=x.scaling)
            dw = layer.multiply(layer.cast_transposed(matrix, "gradient", cast), x)
        layer.end_step()
        return dx.to(dy.dtype).reshape(ctx.x_shape), dw.to(weight.dtype), None


class Fp8Linear(nn.Linear):
    """``nn.Linear`` with the products of a recipe; ``from_linear`` takes an existing layer's parameters.

    ``kernel`` is "auto" (``torch._scaled_mm`` where it takes the operands) or "emulated"; ``used`` counts which
    products ran where.
    """

    recipe: Fp8Recipe
    kernel: str = "auto"

    @classmethod
    def from_linear(cls, linear: nn.Linear, recipe: Fp8Recipe, kernel: str = "auto", seed: int = 0) -> "Fp8Linear":
        if kernel not in ("auto", "emulated"):
            raise ValueError(f"kernel={kernel!r} is not one of auto, emulated")
        with torch.device("meta"):
            layer = cls(linear.in_features, linear.out_features, bias=linear.bias is not None)
        layer.weight, layer.bias, layer.recipe, layer.kernel = linear.weight, linear.bias, recipe, kernel
        layer.rng, layer.used = np.random.default_rng(seed), Counter()
        layer.delayed = {o: recipe.delayed for o in OPERANDS} if recipe.delayed else {}
        if layer.delayed and recipe.gradient_element != recipe.element:
            layer.delayed["gradient"] = DelayedScale(
                element=recipe.gradient_element, history_len=recipe.delayed.history_len,
                margin=recipe.delayed.margin, algo=recipe.delayed.algo,
            )  # fmt: skip
        layer.seen = {}
        return layer

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        with torch.autocast(x.device.type, enabled=False):  # sums stay float32
            y = _Products.apply(x, self.weight, self)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def cast(self, matrix: Tensor, operand: str) -> Cast:
        """The matrix for the product that sums over its last dimension."""
        multiplier = None
        if self.delayed:
            multiplier = self.delayed[operand].multiplier
            self.seen[operand] = matrix.detach().abs().max().item()
        return self._cast(matrix, operand, self.recipe.scaling_of(operand), multiplier)

    def cast_transposed(self, matrix: Tensor, operand: str, cast: Cast) -> Cast:
        """The matrix for wgrad, which sums over its first dimension: ``cast`` itself where blocks are square."""
        recipe = self.recipe
        if get_scaling(cast.scaling).is_square and not recipe.rotates_wgrad:
            return cast.t()
        turned = matrix.detach().t().float()
        if recipe.rotates_wgrad:
            turned = (turned.reshape(-1, 16) @ hadamard().to(turned.device)).reshape(turned.shape)
        return self._cast(turned, operand, recipe.scaling_of(operand), None)

    def cast_weight_for_dgrad(self, weight: Tensor) -> Cast:
        recipe = self.recipe
        if recipe.is_wgrad_wide:
            return self._cast(weight.t(), "weight", "tensor_power_of_two", None)
        multiplier = self.delayed["weight"].multiplier if self.delayed else None
        return self._cast(weight.t(), "weight", recipe.weight_scaling, multiplier)

    def multiply(self, a: Cast, b: Cast) -> Tensor:
        """a b', summed in float32."""
        bits = self.recipe.accumulator_bits
        if self.kernel == "auto" and bits is None and scaled_mm_takes(a, b):
            self.used["torch._scaled_mm"] += 1
            return scaled_product(a, b)
        self.used["emulated"] += 1
        return product(a.wide(), b.wide(), bits)

    def end_step(self) -> None:
        """Delayed scaling learns what this step saw."""
        self.delayed = {o: scale.after(self.seen.get(o, 0.0)) for o, scale in self.delayed.items()}

    def _cast(self, matrix: Tensor, operand: str, scaling: str, multiplier: float | None) -> Cast:
        rng = self.rng if operand == "gradient" and self.recipe.rounds_gradients_by_chance else None
        element = self.recipe.element_of(operand)
        return cast_to(matrix, element, scaling, multiplier=multiplier, rng=rng)


def convert_to_fp8(model: nn.Module, recipe: str | Fp8Recipe, *, keep: tuple[str, ...] = (), kernel: str = "auto"):
    """Swap every ``nn.Linear`` in place, but those whose name contains a text of ``keep``; returns the model.

    Raises: ValueError: an unknown recipe.
    """
    if isinstance(recipe, str):
        if recipe not in FP8_RECIPES:
            raise ValueError(f"recipe={recipe!r} is not one of {', '.join(FP8_RECIPES)}")
        recipe = FP8_RECIPES[recipe]
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and not any(text in name for text in keep):
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, Fp8Linear.from_linear(module, recipe, kernel))
    return model
