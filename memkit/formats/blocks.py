"""Block formats: narrow values that share a scale, so that four or eight bits reach where one value alone
cannot.

A block of k neighbours is multiplied by one factor m, and what is left is rounded into the element format. The reader
multiplies back by the **scale**, 1/m: x ~ scale * element. Stored are k elements and one scale: element bits + scale
bits / k per value. NVFP4's scale is one in E4M3 for the block times one float32 for the whole tensor. All arithmetic
is float32, as on a card.

How the scale follows from the block's largest magnitude (amax) is a rule of its own, and libraries differ:

    ocp_floor         2^(floor(log2 amax) - e_max)       the largest value may saturate
    nvidia_round_up   amax / max, up to a power of two   nothing saturates
    nearest           amax / max, in the scale's format  the rule where the scale has a mantissa
    power_of_two      m = max / amax, down to a power    multiplying rounds nothing; for tensors in training
    unit              1                                  no scale is stored

max is the element format's largest value and 2^e_max the power of two at or below it.

Sources: OCP Microscaling Formats 1.0, section 6.3 (ocp_floor); NVIDIA cuBLAS, 1D block scaling
(nvidia_round_up); NVIDIA 2025, arXiv:2509.25149 (NVFP4); DeepSeek-AI 2024, arXiv:2412.19437 (float8 in tiles
of 128); Dettmers et al. 2023, arXiv:2305.14314 (NF4).
"""

import math
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from memkit.formats.decoding import decode
from memkit.formats.records import FORMATS, FloatFormat, Format, get_format
from memkit.formats.rounding import as_real, encode, round_to
from memkit.units import as_one_of, bytes_of

RULES = ("ocp_floor", "nvidia_round_up", "nearest", "power_of_two", "unit")
TENSOR_SCALE_BYTES = 4
FLOAT32_MAX = np.finfo(np.float32).max
ONE_AND_A_BIT = 1 + 2.0**-22
"""The product amax * m may end just above the largest element, by the rounding of m."""


@dataclass(frozen=True, kw_only=True)
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

    @property
    def is_square(self) -> bool:
        """Whether a matrix and its transpose have the same elements, so that one copy serves both."""
        return self.block_shape[0] == self.block_shape[-1]

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

        >>> BLOCK_FORMATS["nvfp4"].stored_bytes((1, 1024), "float4_e2m1fn") - 512    # 64 of E4M3, one float32
        68
        """
        elements = bytes_of(math.prod(shape), get_format(element).storage_bits)
        num_scales = 0 if self.scale_rule == "unit" else math.prod(self.per_block(shape))
        scales = bytes_of(num_scales, self.scale.storage_bits)
        return elements + scales + self.has_tensor_scale * TENSOR_SCALE_BYTES


@dataclass(frozen=True, kw_only=True)
class BlockFormat(Scaling):
    """Elements in blocks along the last dimensions, each block with one scale."""

    element: Format

    @property
    def block_size(self) -> int:
        """Values that share a scale."""
        return math.prod(self.block_shape)

    @property
    def bits_per_value(self) -> float:
        """Element bits + scale bits / block size. The tensor's one float32 is not counted.

        >>> BLOCK_FORMATS["mxfp4"].bits_per_value, BLOCK_FORMATS["nvfp4"].bits_per_value
        (4.25, 4.5)
        """
        return self.element.storage_bits + self.scale.storage_bits / self.block_size


@dataclass(frozen=True, kw_only=True, eq=False)
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


def factors_of(amax: np.ndarray, scaling: Scaling, element: Format) -> Factors:
    """The factors of blocks whose largest magnitudes are ``amax``. A block of zeros has the factor 1."""
    largest, amax = element.max, amax.astype(np.float32)
    if scaling.scale_rule == "unit":
        return Factors(multipliers=np.ones_like(amax), block_scales=np.ones_like(amax))
    if scaling.has_tensor_scale:
        return _two_levels(amax, largest, scaling.scale)
    if scaling.scale.name == "float8_e8m0fnu":
        if (element, scaling.scale) not in [
            (fmt.element, fmt.scale) for fmt in BLOCK_FORMATS.values()
        ]:
            raise ValueError(f"element={element.name!r} has no MX format")
        codes = _power_scales(np.float64(amax), element, scaling.scale, scaling.scale_rule)
        scales = np.where(amax == 0, np.float32(1), decode(codes, scaling.scale, dtype=np.float32))
        return Factors(multipliers=1 / scales, block_scales=scales)
    multipliers = _quotient(largest, amax)
    if scaling.scale_rule == "power_of_two":
        multipliers = np.ldexp(np.float32(1), np.frexp(multipliers)[1] - 1).astype(np.float32)
    if scaling.scale.name != "float32":  # INT4's float16, or NVFP4's E4M3 alone
        scales = round_to(1 / multipliers, scaling.scale, overflow="saturate")
        return Factors(multipliers=_multipliers(scales), block_scales=scales)
    return Factors(multipliers=multipliers, block_scales=1 / multipliers)


def quantize_to(x: object, element: Format, scaling: Scaling) -> Quantized:
    """Quantise a tensor: multiply each block, saturate, round.

    Raises: ValueError: the blocks do not tile the tensor.
    """
    x = as_real(x).astype(np.float32)
    factors = factors_of(block_amax(x, scaling), scaling, element)
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


def quantize(values: object, fmt: str | BlockFormat, *, scale_rule: str | None = None) -> Quantized:
    """Quantise in a block format: a scale for each block by ``scale_rule`` (the format's own if None), then elements.

    Raises: ValueError: blocks that do not tile the shape, a rule the scale's format cannot follow.

    >>> block = [1.0] * 31 + [7.0]
    >>> quantize(block, "mxfp4").dequantize()[-2:].tolist()    # floor: the scale is 1, so 7 saturates at 6
    [1.0, 6.0]
    >>> quantize(block, "mxfp4", scale_rule="nvidia_round_up").dequantize()[-2:].tolist()    # the scale is 2
    [1.0, 8.0]
    """
    fmt = BLOCK_FORMATS[as_one_of("format", fmt, BLOCK_FORMATS)] if isinstance(fmt, str) else fmt
    return quantize_to(values, fmt.element, replace(fmt, scale_rule=scale_rule or fmt.scale_rule))


def _power_scales(amax: np.ndarray, element: Format, scale: FloatFormat, rule: str) -> np.ndarray:
    """The code of each block's scale, a power of two, for blocks whose largest magnitudes are ``amax``."""
    if rule == "nvidia_round_up":
        wanted = np.maximum(amax / element.max, scale.smallest_normal)  # amax = 0 too has a scale
        return encode(wanted, scale, overflow="saturate", rounding="up")
    e_max = math.frexp(element.max)[1] - 1
    exponent = np.frexp(np.clip(amax, scale.smallest_normal, 2 * scale.max))[1] - 1
    wanted = np.ldexp(1.0, np.clip(exponent - e_max, scale.min_exponent, scale.max_exponent))
    return encode(np.where(np.isnan(amax), np.nan, wanted), scale, overflow="saturate")


def _quotient(largest: float, amax: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", over="ignore"):
        m = np.float32(largest) / amax
    return np.where((amax == 0) | np.isinf(amax), np.float32(1), np.minimum(m, FLOAT32_MAX)).astype(
        np.float32
    )


def _two_levels(amax: np.ndarray, largest: float, scale: FloatFormat) -> Factors:
    """NVFP4: the float32 lifts the largest block's scale to 448, the end of E4M3; then each block's is rounded."""
    lift = _quotient(scale.max * largest, amax.max(initial=0))
    wanted = amax * np.float32(lift * np.float32(1 / np.float32(largest)))
    codes = encode(wanted, scale, overflow="saturate")
    block_scales, tensor_scale = decode(codes, scale, dtype=np.float32), np.float32(1 / lift)
    multipliers = _multipliers(block_scales * tensor_scale)
    return Factors(
        multipliers=multipliers, block_scales=block_scales, tensor_scale=float(tensor_scale)
    )


def _multipliers(scales: np.ndarray) -> np.ndarray:
    """1 / scale; where a scale has rounded to zero, so do its elements."""
    with np.errstate(divide="ignore"):
        return np.where(scales == 0, np.float32(0), np.minimum(1 / scales, FLOAT32_MAX)).astype(
            np.float32
        )


def block_amax(x: np.ndarray, scaling: Scaling) -> np.ndarray:
    """The largest magnitude of each block. Shapes: (rows, columns) → (row blocks, column blocks)."""
    within = tuple(range(-1, -2 * len(scaling.block_shape), -2))
    return np.abs(x).reshape(scaling.grid(x.shape)).max(axis=within, initial=0)


def by_block(x, factors, scaling: Scaling):
    """Each block of an array or a tensor times its factor. Shapes: [rows, columns]; [row blocks, column blocks]."""
    return (x.reshape(scaling.grid(x.shape)) * factors.reshape(scaling.per_block(x.shape))).reshape(
        x.shape
    )


BLOCK_FORMATS: MappingProxyType[str, BlockFormat] = MappingProxyType(
    {
        name: BlockFormat(
            name=name,
            element=FORMATS[element],
            block_shape=shape,
            scale=FORMATS[scale],
            scale_rule=rule,
            has_tensor_scale=name.startswith("nvfp4"),
        )
        for name, element, shape, scale, rule in (
            ("mxfp8_e4m3", "float8_e4m3fn", (32,), "float8_e8m0fnu", "ocp_floor"),
            ("mxfp8_e5m2", "float8_e5m2", (32,), "float8_e8m0fnu", "ocp_floor"),
            ("mxfp6_e3m2", "float6_e3m2fn", (32,), "float8_e8m0fnu", "ocp_floor"),
            ("mxfp6_e2m3", "float6_e2m3fn", (32,), "float8_e8m0fnu", "ocp_floor"),
            ("mxfp4", "float4_e2m1fn", (32,), "float8_e8m0fnu", "ocp_floor"),
            ("nvfp4", "float4_e2m1fn", (16,), "float8_e4m3fn", "nearest"),
            ("nvfp4_16x16", "float4_e2m1fn", (16, 16), "float8_e4m3fn", "nearest"),
            ("float8_1x128", "float8_e4m3fn", (128,), "float32", "nearest"),
            ("float8_128x128", "float8_e4m3fn", (128, 128), "float32", "nearest"),
            ("int8_1x128", "int8", (128,), "float32", "nearest"),
            ("int4_group128", "int4", (128,), "float16", "nearest"),
            ("nf4_block64", "nf4", (64,), "float32", "nearest"),
        )
    }
)
"""The block formats of the book by name; integers are symmetric (no zero point), NF4 without double
quantisation."""
