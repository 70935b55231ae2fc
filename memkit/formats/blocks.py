"""Scaling: narrow values that share a scale, so that four or eight bits reach where one value alone cannot.

A block of k neighbours is multiplied by one factor m, and what is left is rounded into the element format. The reader
multiplies back by the **scale**, 1/m: x ~ scale * element. Stored are k elements and one scale: element bits + scale
bits / k per value. NVFP4's scale is one in E4M3 for the block times one float32 for the whole tensor. All arithmetic
is float32, as on a card.

m is what torchao and Transformer Engine call *scale*; its reciprocal, our scale, is what ``torch._scaled_mm`` and
cuBLAS want and what is stored beside the elements. Two choices make a recipe: who shares a factor (the whole tensor, a
row, 128 neighbours, a square of 128 x 128, 32 or 16 neighbours), and which numbers it may be. How the scale follows
from the block's largest magnitude (amax) is a rule of its own, and libraries differ:

    ocp_floor         2^(floor(log2 amax) - e_max)       the largest value may saturate
    nvidia_round_up   amax / max, up to a power of two   nothing saturates
    nearest           amax / max, in the scale's format  the rule where the scale has a mantissa
    power_of_two      m = max / amax, down to a power    multiplying rounds nothing; for tensors in training
    unit              1                                  no scale is stored

max is the element format's largest value and 2^e_max the power of two at or below it.

Sources: OCP Microscaling Formats 1.0, section 6.3 (ocp_floor); NVIDIA cuBLAS, 1D block scaling
(nvidia_round_up); NVIDIA 2025, arXiv:2509.25149 (NVFP4); DeepSeek-AI 2024, arXiv:2412.19437, section 3.3 (float8 in
1x128 and 128x128); Dettmers et al. 2023, arXiv:2305.14314 (NF4); torchao 0.18, float8_utils.amax_to_scale and
mx_tensor.to_mx; Transformer Engine 2.20, custom_recipes/quantization_nvfp4.py.
"""

import math
from dataclasses import dataclass

import numpy as np

from memkit.formats.records import FORMATS, FloatFormat, Format, get_format
from memkit.formats.rounding import as_real, decode, encode, round_to
from memkit.units import as_one_of, bytes_of

RULES = ("ocp_floor", "nvidia_round_up", "nearest", "power_of_two", "unit")
TENSOR_SCALE_BYTES = 4
FLOAT32_MAX = np.finfo(np.float32).max
ONE_AND_A_BIT = 1 + 2.0**-22
"""The product amax * m may end just above the largest element, by the rounding of m."""


@dataclass(frozen=True)
class Scaling:
    """Who shares a scale, how it is stored and by which rule it follows from amax.

    ``block_shape`` has the sizes of the last dimensions, 0 for all of one. The rule ``unit`` stores no scales.
    """

    name: str
    block_shape: tuple[int, ...]
    scale_rule: str
    scale: FloatFormat = FORMATS["float32"]
    has_tensor_scale: bool = False

    def __post_init__(self) -> None:
        as_one_of("scale_rule", self.scale_rule, RULES)
        if (self.scale_rule in ("ocp_floor", "nvidia_round_up")) == bool(self.scale.mantissa_bits):
            words = "powers of two, and only they, are stored without a mantissa"
            raise ValueError(f"scale_rule={self.scale_rule!r} with {self.scale.name}: {words}")

    def bits_per_value(self, element: str | Format) -> float:
        """Element bits + scale bits / block size. The tensor's one float32 is not counted.

        >>> SCALINGS["mx"].bits_per_value("float4_e2m1fn"), SCALINGS["nvfp4"].bits_per_value("float4_e2m1fn")
        (4.25, 4.5)
        """
        return get_format(element).storage_bits + self.scale.storage_bits / math.prod(
            self.block_shape
        )

    def grid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape with each blocked dimension as two: how many blocks, and how many values in one.

        Raises: ValueError: the blocks do not tile the shape.
        """
        shape, rank = tuple(shape), len(self.block_shape)
        blocked = [(n, block or max(n, 1)) for n, block in zip(shape[-rank:], self.block_shape)]
        is_whole = 0 in self.block_shape and len(shape) > rank
        if len(blocked) < rank or is_whole or any(n % k for n, k in blocked):
            raise ValueError(
                f"shape={shape} is not tiled by {self.name}'s blocks of {self.block_shape}"
            )
        return (*shape[:-rank], *(size for n, k in blocked for size in (n // k, k)))

    def per_block(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """``grid`` with a single value in each block: the shape that a block's scale spreads from."""
        grid, rank = list(self.grid(shape)), len(self.block_shape)
        grid[1 - 2 * rank :: 2] = [1] * rank
        return tuple(grid)

    def stored_bytes(self, shape: tuple[int, ...], element: str | Format) -> int:
        """Bytes of a quantised tensor: its elements, a scale for each block and the tensor's own.

        >>> SCALINGS["nvfp4"].stored_bytes((1, 1024), "float4_e2m1fn") - 512    # 64 of E4M3, one float32
        68
        """
        elements = bytes_of(math.prod(shape), get_format(element).storage_bits)
        num_scales = 0 if self.scale_rule == "unit" else math.prod(self.per_block(shape))
        scales = bytes_of(num_scales, self.scale.storage_bits)
        return elements + scales + self.has_tensor_scale * TENSOR_SCALE_BYTES


@dataclass(frozen=True, eq=False)
class Factors:
    """One factor a block: ``multipliers`` before the cast, ``scales`` after the product, both float32.

    A scale is ``block_scales * tensor_scale``: what is stored, in E4M3 for NVFP4, in E8M0 for MX.
    """

    multipliers: np.ndarray
    block_scales: np.ndarray
    tensor_scale: float = 1.0

    @property
    def scales(self) -> np.ndarray:
        return self.block_scales * np.float32(self.tensor_scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class Quantized:
    """A quantised tensor: element codes, and the factors of its blocks."""

    codes: np.ndarray
    factors: Factors
    element: Format
    scaling: Scaling
    clipped_share: float
    """Share of the values that were beyond the largest element and became it."""
    flushed_share: float
    """Share of the values that were not zero and became it."""

    def dequantize(self) -> np.ndarray:
        """element * scale, as float32."""
        elements = decode(self.codes, self.element, dtype=np.float32)
        return by_block(elements, self.factors.scales, self.scaling)


_E8M0, _E4M3 = FORMATS["float8_e8m0fnu"], FORMATS["float8_e4m3fn"]
SCALINGS = {
    scaling.name: scaling
    for scaling in (
        Scaling("none", (0, 0), "unit"),
        Scaling("tensor", (0, 0), "nearest"),
        Scaling("tensor_power_of_two", (0, 0), "power_of_two"),
        Scaling("row", (1, 0), "nearest"),
        Scaling("row_power_of_two", (1, 0), "power_of_two"),
        Scaling("1x128", (1, 128), "power_of_two"),
        Scaling("128x128", (128, 128), "power_of_two"),
        Scaling("mx", (1, 32), "nvidia_round_up", _E8M0),
        Scaling("mx_floor", (1, 32), "ocp_floor", _E8M0),
        Scaling("nvfp4", (1, 16), "nearest", _E4M3, True),
        Scaling("nvfp4_16x16", (16, 16), "nearest", _E4M3, True),
    )
}
"""The scalings of matrices, by name; MX by NVIDIA's rule and by the OCP's. torchao's rowwise recipe is
``row_power_of_two``; Transformer Engine's block recipe takes powers of two too, DeepSeek's kernels the exact quotient.
"""


def get_scaling(scaling: str | Scaling) -> Scaling:
    """The record behind a name; a record passes through.

    Raises: ValueError: the name is not in ``SCALINGS``.
    """
    return (
        SCALINGS[as_one_of("scaling", scaling, SCALINGS)] if isinstance(scaling, str) else scaling
    )


def factors_from(amax: object, scaling: str | Scaling, element: str | Format) -> Factors:
    """The factors of blocks whose largest magnitudes are ``amax``. A block of zeros has the factor 1.

    Raises: ValueError: integers and tables have no MX format.

    >>> float(factors_from(3.5, "tensor", "float8_e4m3fn").multipliers)    # 448 / 3.5
    128.0
    >>> float(factors_from(3.0, "row_power_of_two", "float8_e4m3fn").multipliers)    # 149.33, cut down
    128.0
    """
    scaling, element = get_scaling(scaling), get_format(element)
    amax, largest, scale = as_real(amax).astype(np.float32), element.max, scaling.scale
    if scaling.scale_rule == "unit":
        return Factors(np.ones_like(amax), np.ones_like(amax))
    if not scale.mantissa_bits:
        if not isinstance(element, FloatFormat):
            raise ValueError(f"element={element.name!r} has no MX format")
        scales = _power_scales(np.float64(amax), element, scale, scaling.scale_rule)
        scales = np.where(amax == 0, 1, scales).astype(np.float32)
        return Factors(1 / scales, scales)
    multipliers = _quotient(largest, amax)
    if scaling.scale_rule == "power_of_two":
        multipliers = np.ldexp(np.float32(1), np.frexp(multipliers)[1] - 1).astype(np.float32)
    wanted, tensor_scale = 1 / multipliers, np.float32(1)
    if scale.name == "float32":
        return Factors(multipliers, wanted)
    if scaling.has_tensor_scale:
        # the float32 lifts the largest block's scale to 448, the end of E4M3
        lift = _quotient(scale.max * largest, amax.max(initial=0))
        wanted = amax * np.float32(lift * np.float32(1 / np.float32(largest)))
        tensor_scale = np.float32(1 / lift)
    block_scales = round_to(wanted, scale, overflow="saturate")
    scales = block_scales * tensor_scale
    with np.errstate(divide="ignore"):  # where a scale has rounded to zero, so do its elements
        multipliers = np.where(scales == 0, np.float32(0), np.minimum(1 / scales, FLOAT32_MAX))
    return Factors(multipliers.astype(np.float32), block_scales, float(tensor_scale))


def scale_to(x: object, element: str | Format, scaling: str | Scaling) -> Quantized:
    """A tensor in ``element`` by a scaling: each block is multiplied by its factor, saturated and rounded.

    Raises: ValueError: the blocks do not tile the tensor.

    >>> block = [[1.0] * 31 + [7.0]]
    >>> scale_to(block, "float4_e2m1fn", "mx_floor").dequantize()[0, -2:].tolist()    # the scale is 1: 7 saturates at 6
    [1.0, 6.0]
    >>> scale_to(block, "float4_e2m1fn", "mx").dequantize()[0, -2:].tolist()    # the scale is 2
    [1.0, 8.0]
    """
    x, element, scaling = as_real(x).astype(np.float32), get_format(element), get_scaling(scaling)
    factors = factors_from(block_amax(x, scaling), scaling, element)
    moved = by_block(x, factors.multipliers, scaling)
    codes = encode(moved, element, overflow="saturate")
    is_zero = decode(codes, element, dtype=np.float32) == 0
    return Quantized(
        codes=codes,
        factors=factors,
        element=element,
        scaling=scaling,
        clipped_share=float(np.mean(np.abs(moved) > element.max * ONE_AND_A_BIT)),
        flushed_share=float(np.mean(is_zero & (x != 0))),
    )


def relative_error(x: object, held: object) -> float:
    """Root mean square of the error by that of ``x``."""
    x, held = as_real(x).astype(np.float64), as_real(held).astype(np.float64)
    if x.shape != held.shape:
        raise ValueError(f"held has the shape {held.shape}, x has {x.shape}")
    return float(np.sqrt(np.mean((x - held) ** 2) / np.mean(x**2)))


def _power_scales(amax: np.ndarray, element: Format, scale: FloatFormat, rule: str) -> np.ndarray:
    """Each block's scale, a power of two, for blocks whose largest magnitudes are ``amax``."""
    if rule == "nvidia_round_up":
        fraction, exponent = np.frexp(np.minimum(amax / element.max, scale.max))
        exponent -= fraction == 0.5  # a power of two is its own scale
    else:
        exponent = np.frexp(np.minimum(amax, 2 * scale.max))[1] - math.frexp(element.max)[1]
    scales = np.ldexp(1.0, np.clip(exponent, scale.min_exponent, scale.max_exponent))
    return np.where(np.isnan(amax), np.nan, scales)


def _quotient(largest: float, amax: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", over="ignore"):
        m = np.minimum(np.float32(largest) / amax, FLOAT32_MAX)
    return np.where((amax == 0) | np.isinf(amax), np.float32(1), m).astype(np.float32)


def block_amax(x: np.ndarray, scaling: Scaling) -> np.ndarray:
    """The largest magnitude of each block. Shapes: (rows, columns) → (row blocks, column blocks)."""
    within = tuple(range(-1, -2 * len(scaling.block_shape), -2))
    return np.abs(x).reshape(scaling.grid(x.shape)).max(axis=within, initial=0)


def by_block(x, factors, scaling: Scaling):
    """Each block times its factor. Shapes: [rows, columns]; [row blocks, column blocks]."""
    return (x.reshape(scaling.grid(x.shape)) * factors.reshape(scaling.per_block(x.shape))).reshape(
        x.shape
    )
