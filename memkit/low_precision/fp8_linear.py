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
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from memkit.low_precision.casts import Cast, DelayedFactor, cast_to, scaled_mm_takes, scaled_product
from memkit.low_precision.scaling import SCALINGS, DelayedScale
from memkit.units import as_one_of

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

    def element_of(self, operand: str) -> str:
        return self.gradient_element if operand == "gradient" else self.element

    def scaling_of(self, operand: str) -> str:
        return getattr(self, f"{operand}_scaling")


def _recipe(name: str, input_scaling: str, weight_scaling: str, **more) -> Fp8Recipe:
    scalings = {"input_scaling": input_scaling, "weight_scaling": weight_scaling, "gradient_scaling": input_scaling}
    return Fp8Recipe(name=name, **scalings, **more)


_HYBRID = {"gradient_element": "float8_e5m2"}
_FP4 = {"element": "float4_e2m1fn", "gradient_element": "float4_e2m1fn"}
FP8_RECIPES = {
    recipe.name: recipe
    for recipe in (
        _recipe("unscaled", "none", "none", **_HYBRID),
        _recipe("delayed", "tensor", "tensor", delayed=DelayedScale(), **_HYBRID),
        _recipe("tensor", "tensor", "tensor", **_HYBRID),
        _recipe("row", "row_power_of_two", "row_power_of_two"),
        _recipe("row_wide_wgrad", "row_power_of_two", "row_power_of_two", is_wgrad_wide=True),
        _recipe("block", "1x128", "128x128"),
        _recipe("mxfp8", "mx", "mx"),
        _recipe("nvfp4", "nvfp4", "nvfp4_16x16", **_FP4),
    )
}
"""Recipes by name. torchao's are ``tensor``, ``row``, ``row_wide_wgrad``; Transformer Engine's ``delayed``, ``tensor``
(its current scaling), ``block``, ``mxfp8``, ``nvfp4``."""


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
        ctx.like = kept.over(None, None) if is_cast else None
        ctx.save_for_backward(weight, *(kept.tensors if is_cast else (kept,)))
        return y.to(x.dtype).reshape(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        layer, (weight, *kept) = ctx.layer, ctx.saved_tensors
        matrix = dy.reshape(-1, dy.shape[-1])
        cast = layer.cast(matrix, "gradient")
        dx = layer.multiply(cast, layer.cast_weight_for_dgrad(weight))
        if layer.recipe.is_wgrad_wide:
            dw = matrix.t().float() @ kept[0].float()
        else:
            dw = layer.multiply(layer.cast_transposed(matrix, "gradient", cast), ctx.like.over(*kept))
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
    def from_linear(cls, linear: nn.Linear, recipe: Fp8Recipe, kernel: str = "auto") -> "Fp8Linear":
        as_one_of("kernel", kernel, ("auto", "emulated"))
        with torch.device("meta"):
            layer = cls(linear.in_features, linear.out_features, bias=linear.bias is not None)
        layer.weight, layer.bias, layer.recipe, layer.kernel = linear.weight, linear.bias, recipe, kernel
        layer.used = Counter()
        layer.delayed, layer.seen = {}, {}
        if recipe.delayed:
            scales = {o: replace(recipe.delayed, element=recipe.element_of(o)) for o in OPERANDS}
            layer.delayed = {o: DelayedFactor(scale, linear.weight.device) for o, scale in scales.items()}
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
            self.seen[operand] = matrix.detach().abs().max()
        return self._cast(matrix, operand, self.recipe.scaling_of(operand), multiplier)

    def cast_transposed(self, matrix: Tensor, operand: str, cast: Cast) -> Cast:
        """The matrix for wgrad, which sums over its first dimension: ``cast`` itself where blocks are square."""
        if SCALINGS[cast.scaling].is_square:
            return cast.t()
        return self._cast(matrix.detach().t().float(), operand, self.recipe.scaling_of(operand), None)

    def cast_weight_for_dgrad(self, weight: Tensor) -> Cast:
        recipe = self.recipe
        if recipe.is_wgrad_wide:
            return self._cast(weight.t(), "weight", "tensor_power_of_two", None)
        multiplier = self.delayed["weight"].multiplier if self.delayed else None
        return self._cast(weight.t(), "weight", recipe.weight_scaling, multiplier)

    def multiply(self, a: Cast, b: Cast) -> Tensor:
        """a b', summed in float32."""
        if self.kernel == "auto" and scaled_mm_takes(a, b):
            self.used["torch._scaled_mm"] += 1
            return scaled_product(a, b)
        self.used["emulated"] += 1
        return a.wide() @ b.wide().t()

    def end_step(self) -> None:
        """Delayed scaling learns what this step saw."""
        for operand, factor in self.delayed.items():
            factor.note(self.seen[operand])

    def _cast(self, matrix: Tensor, operand: str, scaling: str, multiplier: float | None) -> Cast:
        return cast_to(matrix, self.recipe.element_of(operand), scaling, multiplier=multiplier)


def convert_to_fp8(model: nn.Module, recipe: str | Fp8Recipe, *, keep: tuple[str, ...] = (), kernel: str = "auto"):
    """Swap every ``nn.Linear`` in place, but those whose name contains a text of ``keep``; returns the model.

    Raises: ValueError: an unknown recipe.
    """
    if isinstance(recipe, str):
        as_one_of("recipe", recipe, FP8_RECIPES)
        recipe = FP8_RECIPES[recipe]
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and not any(text in name for text in keep):
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, Fp8Linear.from_linear(module, recipe, kernel))
    return model
