"""A linear layer whose three products take numbers of eight or four bits: cast, product, layer.

The rules of ``memkit.formats.blocks`` run here as operations of torch (``memkit::factors``, ``encode``, ``decode``):
no value comes back to Python, so a trace can follow a layer that casts by shapes alone.

A layer y = x W' multiplies three times, and each time two matrices meet that were cast for this product:

    forward       y  = Q(x)  Q(W)'      summed over the inputs
    dgrad         dx = Q(dy) Q(W)       summed over the outputs
    wgrad         dW = Q(dy)' Q(x)      summed over the tokens

Q multiplies each group of values by a factor and rounds. A factor can leave a sum only if all its terms
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

*Current* scaling takes amax from the tensor at hand, which reads it twice. *Delayed* scaling takes it from the
last steps (``DelayedScale``), which reads it once and can be surprised.

Source: Transformer Engine 2.20, common/recipe/__init__.py and quantization._default_sf_compute (delayed scaling).
"""

import copy
from collections import Counter
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from memkit.formats import rounding
from memkit.formats.blocks import FLOAT32_MAX, SCALINGS, by_block, factors_from
from memkit.formats.records import get_format
from memkit.units import as_one_of, as_whole_number


@torch.library.custom_op("memkit::factors", mutates_args=())
def factors(amax: Tensor, scaling: str, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """``blocks.factors_from``: multipliers and block scales, of amax's shape, and the tensor's scale; float32."""
    blocks = factors_from(amax.cpu().numpy(), scaling, element)
    arrays = blocks.multipliers, blocks.block_scales, np.float32(blocks.tensor_scale)
    return tuple(torch.tensor(array, device=amax.device) for array in arrays)


@factors.register_fake
def _(amax, scaling, element):
    return torch.empty_like(amax), torch.empty_like(amax), amax.new_empty(())


@torch.library.custom_op("memkit::encode", mutates_args=())
def encode(x: Tensor, element: str) -> Tensor:
    """``rounding.encode``, saturating: a byte a code."""
    codes = rounding.encode(x.cpu().numpy(), element, overflow="saturate")
    return torch.from_numpy(codes).to(x.device)


@encode.register_fake
def _(x, element):
    return torch.empty_like(x, dtype=torch.uint8)


@torch.library.custom_op("memkit::decode", mutates_args=())
def decode(codes: Tensor, element: str) -> Tensor:
    """``rounding.decode`` in float32."""
    values = rounding.decode(codes.cpu().numpy(), element, dtype=np.float32)
    return torch.from_numpy(values).to(codes.device)


@decode.register_fake
def _(codes, element):
    return torch.empty_like(codes, dtype=torch.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cast:
    """A matrix in eight or four bits: elements (two of four bits a byte), a scale a block, one for the tensor."""

    elements: Tensor
    scales: Tensor
    tensor_scale: Tensor | None
    element: str
    scaling: str

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What it keeps in memory."""
        return tuple(t for t in (self.elements, self.scales, self.tensor_scale) if t is not None)

    def over(self, elements: Tensor, scales: Tensor, tensor_scale: Tensor | None = None) -> "Cast":
        """The same formats over other tensors."""
        return replace(self, elements=elements, scales=scales, tensor_scale=tensor_scale)

    def wide(self) -> Tensor:
        """element * scale in float32. Shapes: [rows, columns]."""
        if self.element.startswith(("float8", "int8")):
            values = self.elements.float()
        else:
            codes = self.elements
            if get_format(self.element).bits == 4:
                codes = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
            values = decode(codes.contiguous(), self.element)
        scales = self.scales.float()
        if self.tensor_scale is not None:
            scales = scales * self.tensor_scale
        return by_block(values, scales, SCALINGS[self.scaling])

    def t(self) -> "Cast":
        """The transpose, of a matrix with square blocks."""
        return self.over(self.elements.t(), self.scales.t(), self.tensor_scale)


def cast_to(x: Tensor, element: str, scaling: str, *, multiplier: Tensor | None = None) -> Cast:
    """``blocks.scale_to`` on a tensor.

    Shapes: [rows, columns]; multiplier [].
    Raises: ValueError: the blocks do not tile the matrix.
    """
    x, record = x.detach().float(), SCALINGS[as_one_of("scaling", scaling, SCALINGS)]
    amax = x.reshape(record.grid(x.shape)).abs().amax((-1, -3))
    multipliers, block_scales, tensor_scale = factors(amax, scaling, element)
    if multiplier is not None:
        multipliers = multiplier.to(amax.device).expand_as(amax)
        block_scales = 1 / multipliers
    moved = by_block(x, multipliers, record)
    if element == "int8":
        elements = moved.round().clamp(-128, 127).to(torch.int8)
    elif not element.startswith("float8"):
        elements = encode(moved, element)
    else:
        largest = get_format(element).max
        elements = moved.clamp(-largest, largest).to(getattr(torch, element))
    if get_format(element).bits == 4:
        elements = elements[..., ::2] | elements[..., 1::2] << 4
    return Cast(
        elements=elements,
        scales=block_scales.to(getattr(torch, record.scale.name)),
        element=element,
        scaling=scaling,
        tensor_scale=tensor_scale if record.has_tensor_scale else None,
    )


class DelayedScale:
    """The factor of the next cast, from the largest magnitudes of the last ones; Transformer Engine's defaults.

    ``history`` ends with the latest step, and its maximum counts; ``margin`` halves the factor so many times. Both
    history and factor are tensors on the layer's device.

    Raises: ValueError: a ``history_len`` that is not a whole number above 0, a ``margin`` that is none.

    >>> scale = DelayedScale(history_len=2)
    >>> [(scale := scale.after(amax)).multiplier.item() for amax in (1.0, 14.0, 1.0, 1.0)]    # a spike stays two steps
    [448.0, 32.0, 32.0, 448.0]
    """

    def __init__(
        self, element: str = "float8_e4m3fn", history_len: int = 1024, margin: int = 0, device=None
    ):
        self.element, self.margin = element, as_whole_number("margin", margin)
        self.history = torch.zeros(as_whole_number("history_len", history_len, 1), device=device)
        self.multiplier = torch.ones((), device=device)

    def after(self, amax: Tensor | float) -> Self:
        """The state after a cast that saw ``amax``; where that is 0, infinite or NaN the factor stays. Shapes: []."""
        amax, later = torch.as_tensor(amax).detach().float(), copy.copy(self)
        later.history = torch.cat([self.history[1:].to(amax.device), amax[None]])
        wanted = later.history.max()
        # a tensor, as torch divides a number by one as its reciprocal, rounded once more
        largest = torch.full_like(wanted, get_format(self.element).max)
        quotient = (largest / wanted / 2**self.margin).clamp(max=float(FLOAT32_MAX))
        is_known = (wanted > 0) & wanted.isfinite()
        later.multiplier = torch.where(is_known, quotient, self.multiplier.to(amax.device))
        return later


def scaled_mm_takes(a: Cast, b: Cast) -> bool:
    """Whether ``torch._scaled_mm`` multiplies these here: E4M3 or E5M2, one factor a tensor or a row.

    A CPU takes any pair; CUDA wants capability 8.9, not E5M2 twice, and sizes that are multiples of 16.
    """
    for cast in (a, b):
        if not cast.element.startswith("float8") or SCALINGS[cast.scaling].block_shape[1]:
            return False
    if not a.elements.is_cuda:
        return True
    is_new = torch.cuda.get_device_capability(a.elements.device) >= (8, 9)
    fits = all(size % 16 == 0 for size in (*a.elements.shape, *b.elements.shape))
    return is_new and fits and not a.element == b.element == "float8_e5m2"


def scaled_product(a: Cast, b: Cast) -> Tensor:
    """a b' by ``torch._scaled_mm``, float32. One factor for all is given as the same factor for each row: a CPU's
    kernel for single factors takes a thousand times as long."""
    scale_a, scale_b = (
        cast.scales.float().expand(cast.elements.shape[0], 1).contiguous() for cast in (a, b)
    )
    is_wide = not a.elements.is_cuda  # CUDA's kernel with factors by row writes bfloat16
    product = torch._scaled_mm(
        a.elements.contiguous(),
        b.elements.contiguous().t(),
        scale_a=scale_a,
        scale_b=scale_b.t(),
        out_dtype=torch.float32 if is_wide else torch.bfloat16,
    )
    return product.float()


OPERANDS = ("input", "weight", "gradient")


@dataclass(frozen=True)
class Fp8Recipe:
    """Element formats and scalings of the three operands, and how far each product strays from the plain one.

    ``scaling`` is that of the input and of the gradient.
    """

    name: str
    scaling: str = "tensor"
    weight_scaling: str = "tensor"
    element: str = "float8_e4m3fn"
    gradient_element: str = "float8_e4m3fn"
    is_delayed: bool = False
    is_wgrad_wide: bool = False
    """torchao's ``rowwise_with_gw_hp``: wgrad from the uncast matrices, dgrad's weight with one factor."""

    def element_of(self, operand: str) -> str:
        return self.gradient_element if operand == "gradient" else self.element

    def scaling_of(self, operand: str) -> str:
        return self.weight_scaling if operand == "weight" else self.scaling


_HYBRID = {"gradient_element": "float8_e5m2"}
FP8_RECIPES = {
    recipe.name: recipe
    for recipe in (
        Fp8Recipe("unscaled", "none", "none", **_HYBRID),
        Fp8Recipe("delayed", is_delayed=True, **_HYBRID),
        Fp8Recipe("tensor", **_HYBRID),
        Fp8Recipe("row", "row_power_of_two", "row_power_of_two"),
        Fp8Recipe("row_wide_wgrad", "row_power_of_two", "row_power_of_two", is_wgrad_wide=True),
        Fp8Recipe("block", "1x128", "128x128"),
        Fp8Recipe("mxfp8", "mx", "mx"),
        Fp8Recipe("nvfp4", "nvfp4", "nvfp4_16x16", "float4_e2m1fn", "float4_e2m1fn"),
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
        cast = layer.cast(matrix, "input", is_seen=True)
        y = layer.multiply(cast, layer.cast(weight, "weight", is_seen=True))
        kept = layer.cast_transposed(matrix, "input", cast)
        is_cast = isinstance(kept, Cast)
        ctx.like = kept.over(None, None) if is_cast else None
        ctx.save_for_backward(weight, *(kept.tensors if is_cast else (kept,)))
        return y.to(x.dtype).reshape(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        layer, (weight, *kept) = ctx.layer, ctx.saved_tensors
        matrix, is_wide = dy.reshape(-1, dy.shape[-1]), layer.recipe.is_wgrad_wide
        cast = layer.cast(matrix, "gradient", is_seen=True)
        scaling = "tensor_power_of_two" if is_wide else ""
        dx = layer.multiply(cast, layer.cast(weight.t(), "weight", scaling))
        other = layer.cast_transposed(matrix, "gradient", cast)
        if is_wide:
            dw = other.t().float() @ kept[0].float()
        else:
            dw = layer.multiply(other, ctx.like.over(*kept))
        layer.end_step()
        return dx.to(dy.dtype).reshape(ctx.x_shape), dw.to(weight.dtype), None


class Fp8Linear(nn.Linear):
    """An ``nn.Linear`` with its parameters, and the products of a recipe.

    ``kernel`` is "auto" (``torch._scaled_mm`` where it takes the operands) or "emulated"; ``used`` counts which
    products ran where.
    """

    def __init__(self, linear: nn.Linear, recipe: Fp8Recipe, kernel: str = "auto"):
        with torch.device("meta"):
            super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None)
        self.weight, self.bias, self.recipe = linear.weight, linear.bias, recipe
        self.kernel = as_one_of("kernel", kernel, ("auto", "emulated"))
        self.used, self.seen, self.delayed = Counter(), {}, {}
        if recipe.is_delayed:
            self.delayed = {
                operand: DelayedScale(recipe.element_of(operand), device=linear.weight.device)
                for operand in OPERANDS
            }

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        with torch.autocast(x.device.type, enabled=False):  # sums stay float32
            y = _Products.apply(x, self.weight, self)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def cast(
        self, matrix: Tensor, operand: str, scaling: str = "", *, is_seen: bool = False
    ) -> Cast:
        """The matrix for the product that sums over its last dimension, by the recipe's scaling if none is named.

        Delayed scaling learns from those that are ``is_seen``.
        """
        multiplier = None
        if self.delayed:
            multiplier = self.delayed[operand].multiplier
            if is_seen:
                self.seen[operand] = matrix.detach().abs().max()
        scaling = scaling or self.recipe.scaling_of(operand)
        return cast_to(matrix, self.recipe.element_of(operand), scaling, multiplier=multiplier)

    def cast_transposed(self, matrix: Tensor, operand: str, cast: Cast) -> Cast | Tensor:
        """The matrix for wgrad, which sums over its first dimension: ``cast`` itself where blocks are square, and
        the matrix as it is where wgrad is wide."""
        if self.recipe.is_wgrad_wide:
            return matrix
        if SCALINGS[cast.scaling].is_square:
            return cast.t()
        return self.cast(matrix.detach().t().float(), operand)

    def multiply(self, a: Cast, b: Cast) -> Tensor:
        """a b', summed in float32."""
        if self.kernel == "auto" and scaled_mm_takes(a, b):
            self.used["torch._scaled_mm"] += 1
            return scaled_product(a, b)
        self.used["emulated"] += 1
        return a.wide() @ b.wide().t()

    def end_step(self) -> None:
        """Delayed scaling learns what this step saw."""
        self.delayed = {name: scale.after(self.seen[name]) for name, scale in self.delayed.items()}


def convert_to_fp8(
    model: nn.Module, recipe: str | Fp8Recipe, *, keep: tuple[str, ...] = (), kernel: str = "auto"
) -> nn.Module:
    """Swap every ``nn.Linear`` in place, but those whose name contains a text of ``keep``; returns the model.

    Raises: ValueError: an unknown recipe or kernel.
    """
    if isinstance(recipe, str):
        recipe = FP8_RECIPES[as_one_of("recipe", recipe, FP8_RECIPES)]
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and not any(text in name for text in keep):
            model.set_submodule(name, Fp8Linear(module, recipe, kernel))
    return model
