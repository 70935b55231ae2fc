"""A matrix in eight or four bits as tensors on its device: the cast, the product, the factor of past steps.

The numbers are those of ``scaling``, whose rules run here as operations of torch (``memkit::factors``, ``encode``,
``decode``): no value comes back to Python, so a trace can follow a layer that casts by shapes alone.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from memkit.formats import decoding, rounding
from memkit.formats.blocks import FLOAT32_MAX, by_block
from memkit.formats.records import get_format
from memkit.low_precision.scaling import SCALINGS, DelayedScale, factors_from
from memkit.units import as_one_of


@torch.library.custom_op("memkit::factors", mutates_args=())
def factors(amax: Tensor, scaling: str, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """``scaling.factors_from``: multipliers and block scales, of amax's shape, and the tensor's scale; float32."""
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
    """``decoding.decode`` in float32."""
    values = decoding.decode(codes.cpu().numpy(), element, dtype=np.float32)
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
        if not self.element.startswith(("float8", "int8")):
            is_packed = get_format(self.element).bits == 4
            pairs = torch.stack([self.elements & 15, self.elements >> 4], -1).flatten(-2)
            codes = pairs if is_packed else self.elements
            values = decode(codes.contiguous(), self.element)
        else:
            values = self.elements.float()
        scales = self.scales.float() if self.tensor_scale is None else self.scales.float() * self.tensor_scale
        return by_block(values, scales, SCALINGS[self.scaling])

    def t(self) -> "Cast":
        """The transpose, of a matrix with square blocks."""
        return self.over(self.elements.t(), self.scales.t(), self.tensor_scale)


def cast_to(x: Tensor, element: str, scaling: str, *, multiplier: Tensor | None = None) -> Cast:
    """``scaling.scale_to`` on a tensor.

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
        elements=elements, scales=block_scales.to(getattr(torch, record.scale.name)), element=element, scaling=scaling,
        tensor_scale=tensor_scale if record.has_tensor_scale else None,
    )


class DelayedFactor:
    """``DelayedScale`` as two tensors on the layer's device: the last amaxes, and the factor of the next cast."""

    def __init__(self, scale: DelayedScale, device: torch.device):
        self.scale = scale
        self.history = torch.zeros(scale.history_len, device=device)
        self.multiplier = torch.ones((), device=device)

    def note(self, amax: Tensor) -> None:
        """A cast saw ``amax``; where that is 0, infinite or NaN the factor stays. Shapes: []."""
        self.history = torch.cat([self.history[1:].to(amax.device), amax.detach().float()[None]])
        wanted = self.history.max()
        quotient = (get_format(self.scale.element).max / wanted / 2**self.scale.margin).clamp(max=float(FLOAT32_MAX))
        self.multiplier = torch.where((wanted > 0) & wanted.isfinite(), quotient, self.multiplier.to(amax.device))


def scaled_mm_takes(a: Cast, b: Cast) -> bool:
    """Whether ``torch._scaled_mm`` multiplies these here: E4M3 or E5M2, one factor a tensor or a row.

    A CPU takes any pair; CUDA wants capability 8.9, not E5M2 twice, and sizes that are multiples of 16.
    """
    if not all(cast.element.startswith("float8") and SCALINGS[cast.scaling].block_shape[1] == 0 for cast in (a, b)):
        return False
    if a.elements.is_cuda:
        is_new = torch.cuda.get_device_capability(a.elements.device) >= (8, 9)
        fits = all(size % 16 == 0 for size in (*a.elements.shape, *b.elements.shape))
        return is_new and fits and (a.element, b.element) != ("float8_e5m2", "float8_e5m2")
    return True


def scaled_product(a: Cast, b: Cast) -> Tensor:
    """a b' by ``torch._scaled_mm``, float32. One factor for all is given as the same factor for each row: a CPU's
    kernel for single factors takes a thousand times as long."""
    scale_a, scale_b = (cast.scales.float().expand(cast.elements.shape[0], 1).contiguous() for cast in (a, b))
    is_wide = not a.elements.is_cuda  # CUDA's kernel with factors by row writes bfloat16
    product = torch._scaled_mm(
        a.elements.contiguous(), b.elements.contiguous().t(), scale_a=scale_a, scale_b=scale_b.t(),
        out_dtype=torch.float32 if is_wide else torch.bfloat16,
    )
    return product.float()
