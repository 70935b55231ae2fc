"""Block formats: narrow values that share a scale, so that four or eight bits reach where one value alone
cannot.

A block of k neighbours is divided by one scale, and what is left is rounded into the element format. The
reader multiplies back: x = scale * element. Stored are k elements and one scale: element bits + scale bits /
k per value. NVFP4 multiplies by one float32 more, the same for the whole tensor.

How the scale follows from the block's largest magnitude (amax) is a rule of its own, and libraries differ:

    ocp_floor         2^(floor(log2 amax) - e_max)       the largest value may saturate
    nvidia_round_up   amax / max, up to a power of two   nothing saturates
    nearest           amax / max, in the scale's format  the rule where the scale has a mantissa

max is the element format's largest value and 2^e_max the power of two at or below it.

Sources: OCP Microscaling Formats 1.0, section 6.3 (ocp_floor); NVIDIA cuBLAS, 1D block scaling
(nvidia_round_up); NVIDIA 2025, arXiv:2509.25149 (NVFP4); DeepSeek-AI 2024, arXiv:2412.19437 (float8 in tiles
of 128); Dettmers et al. 2023, arXiv:2305.14314 (NF4).
"""

import math
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from memkit.formats.decoding import decode
from memkit.formats.records import FORMATS, FloatFormat, Format, get_format
from memkit.formats.rounding import as_real, encode
from memkit.units import as_one_of, bytes_of

SCALE_RULES = ("ocp_floor", "nvidia_round_up", "nearest")
RULES = (*SCALE_RULES, "power_of_two", "unit")
"""The last two are for tensors in training alone (``memkit.low_precision.scaling``)."""
TENSOR_SCALE_BYTES = 4


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
        _check_rule(self.scale_rule, self.scale, RULES)

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
            raise ValueError(f"shape={shape} is not tiled by {self.name}'s blocks of {self.block_shape}")
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
class BlockQuantized:
    """A quantised tensor: element codes, one scale code per block, and the tensor's scale (1.0 without one)."""

    fmt: BlockFormat
    element_codes: np.ndarray
    scale_codes: np.ndarray
    tensor_scale: float

    @property
    def scales(self) -> np.ndarray:
        """What each block is multiplied by, the tensor's scale included."""
        return decode(self.scale_codes, self.fmt.scale) * self.tensor_scale

    def dequantize(self) -> np.ndarray:
        """scale * element, in float64. A block whose scale is NaN is NaN throughout."""
        return by_block(decode(self.element_codes, self.fmt.element), self.scales, self.fmt)


def quantize(values: object, fmt: str | BlockFormat, *, scale_rule: str | None = None) -> BlockQuantized:
    """Quantise in blocks: a scale for each by ``scale_rule`` (the format's own if None), then the elements.

    An element still too large after scaling saturates. A block that holds NaN gets a NaN scale. Where a scale
    rounds to zero, so do its elements. A tensor scale is amax / (largest element * largest scale), as a float32.

    Raises: ValueError: blocks that do not tile the shape, a rule the scale's format cannot follow.

    >>> block = [1.0] * 31 + [7.0]
    >>> quantize(block, "mxfp4").dequantize()[-2:]    # floor: the scale is 1, so 7 saturates at 6
    array([1., 6.])
    >>> quantize(block, "mxfp4", scale_rule="nvidia_round_up").dequantize()[-2:]    # the scale is 2
    array([1., 8.])
    """
    fmt = BLOCK_FORMATS[as_one_of("format", fmt, BLOCK_FORMATS)] if isinstance(fmt, str) else fmt
    rule = fmt.scale_rule if scale_rule is None else scale_rule
    _check_rule(rule, fmt.scale, SCALE_RULES)
    values = as_real(values).astype(np.float64)
    amax = block_amax(values, fmt)
    tensor_scale = 1.0
    if fmt.has_tensor_scale:
        largest = amax[np.isfinite(amax)].max(initial=0.0)
        tensor_scale = float(np.float32(largest / (fmt.element.max * fmt.scale.max))) or 1.0
    scale_codes = encode_scales(amax / tensor_scale, fmt.element, fmt.scale, rule)
    scales = by_block(np.ones_like(values), decode(scale_codes, fmt.scale) * tensor_scale, fmt)
    scaled = np.divide(values, scales, out=np.zeros_like(values), where=scales > 0)
    codes = encode(scaled, fmt.element, overflow="saturate")
    return BlockQuantized(fmt=fmt, element_codes=codes, scale_codes=scale_codes, tensor_scale=tensor_scale)


def encode_scales(amax: np.ndarray, element: Format, scale: FloatFormat, rule: str) -> np.ndarray:
    """The code of each block's scale, for blocks whose largest magnitudes are ``amax``."""
    if rule == "nearest":
        return encode(amax / element.max, scale, overflow="saturate")
    if rule == "nvidia_round_up":
        wanted = np.maximum(amax / element.max, scale.smallest_normal)  # amax = 0 too has a scale
        return encode(wanted, scale, overflow="saturate", rounding="up")
    e_max = math.frexp(element.max)[1] - 1
    exponent = np.frexp(np.clip(amax, scale.smallest_normal, 2 * scale.max))[1] - 1
    wanted = np.ldexp(1.0, np.clip(exponent - e_max, scale.min_exponent, scale.max_exponent))
    return encode(np.where(np.isnan(amax), np.nan, wanted), scale, overflow="saturate")


def _check_rule(rule: str, scale: FloatFormat, known: tuple[str, ...]) -> None:
    as_one_of("scale_rule", rule, known)
    if rule in ("ocp_floor", "nvidia_round_up") and scale.mantissa_bits:
        raise ValueError(f"scale_rule={rule!r} makes powers of two; {scale.name} has a mantissa")


def block_amax(x: np.ndarray, scaling: Scaling) -> np.ndarray:
    """The largest magnitude of each block. Shapes: (rows, columns) → (row blocks, column blocks)."""
    within = tuple(range(-1, -2 * len(scaling.block_shape), -2))
    return np.abs(x).reshape(scaling.grid(x.shape)).max(axis=within, initial=0)


def by_block(x, factors, scaling: Scaling):
    """Each block of an array or a tensor times its factor. Shapes: [rows, columns]; [row blocks, column blocks]."""
    return (x.reshape(scaling.grid(x.shape)) * factors.reshape(scaling.per_block(x.shape))).reshape(x.shape)


BLOCK_FORMATS: MappingProxyType[str, BlockFormat] = MappingProxyType(
    {
        name: BlockFormat(
            name=name, element=FORMATS[element], block_shape=shape, scale=FORMATS[scale], scale_rule=rule,
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
