"""Scaling: the factor that moves a tensor into the range of eight or four bits, and who shares it.

E4M3 ends at 448 and E5M2 at 57344. So each group of values is multiplied by m before the cast and by 1/m after
the product:

    amax = max |x|            m = largest element / amax            element = round(x * m)            x ~ element / m

m is what torchao and Transformer Engine call *scale*; its reciprocal, the **scale** of chapter 02's block formats,
is what ``torch._scaled_mm`` and cuBLAS want and what is stored beside the elements. Two choices make a recipe:

- **who shares a factor**: the whole tensor, a row, 128 neighbours, a square of 128 x 128, 32 or 16 neighbours;
- **which numbers it may be**:

    nearest          m = max / amax, as a float32; NVFP4's 1/m is (E4M3 for the block) * (float32 for the tensor)
    power_of_two     that, cut down to a power of two: multiplying rounds nothing
    ocp_floor        1/m = 2^(floor(log2 amax) - e_max): the largest value may saturate
    nvidia_round_up  1/m = amax / max, up to a power of two: nothing saturates
    unit             m = 1

*Current* scaling takes amax from the tensor at hand, which reads it twice. *Delayed* scaling takes it from the
last steps (``DelayedScale``), which reads it once and can be surprised.

Sources: torchao 0.18, float8_utils.amax_to_scale and mx_tensor.to_mx; Transformer Engine 2.20,
common/recipe/__init__.py, quantization._default_sf_compute and custom_recipes/quantization_nvfp4.py; DeepSeek-AI
2024, arXiv:2412.19437, section 3.3 (1x128 and 128x128); NVIDIA 2025, arXiv:2509.25149 (NVFP4).
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from memkit.formats.blocks import BLOCK_FORMATS, Scaling, block_amax, by_block, encode_scales
from memkit.formats.decoding import decode
from memkit.formats.records import FORMATS, FloatFormat, get_format
from memkit.formats.rounding import as_real, encode
from memkit.units import as_one_of, as_whole_number

FLOAT32_MAX = np.finfo(np.float32).max
ONE_AND_A_BIT = 1 + 2.0**-22
"""The product amax * m may end just above the largest element, by the rounding of m."""
WHOLE = 0
"""A block as long as its dimension."""


SCALINGS = {
    name: Scaling(
        name=name, block_shape=shape, scale_rule=rule, scale=FORMATS[scale], has_tensor_scale=name.startswith("nvfp4"),
    )
    for name, shape, scale, rule in (
        ("none", (WHOLE, WHOLE), "float32", "unit"),
        ("tensor", (WHOLE, WHOLE), "float32", "nearest"),
        ("tensor_power_of_two", (WHOLE, WHOLE), "float32", "power_of_two"),
        ("row", (1, WHOLE), "float32", "nearest"),
        ("row_power_of_two", (1, WHOLE), "float32", "power_of_two"),
        ("1x128", (1, 128), "float32", "power_of_two"),
        ("128x128", (128, 128), "float32", "power_of_two"),
        ("mx", (1, 32), "float8_e8m0fnu", "nvidia_round_up"),
        ("mx_floor", (1, 32), "float8_e8m0fnu", "ocp_floor"),
        ("nvfp4", (1, 16), "float8_e4m3fn", "nearest"),
        ("nvfp4_16x16", (16, 16), "float8_e4m3fn", "nearest"),
    )
}
"""The scalings of the book by name. torchao's rowwise recipe is ``row_power_of_two``; Transformer Engine's block
recipe takes powers of two too, DeepSeek's kernels the exact quotient."""


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
class Scaled:
    """A quantised matrix: element codes, and the factors of its blocks."""

    codes: np.ndarray
    factors: Factors
    element: str
    scaling: Scaling
    clipped_share: float
    """Share of the values that were beyond the largest element and became it."""
    flushed_share: float
    """Share of the values that were not zero and became it."""

    def dequantize(self) -> np.ndarray:
        """element * scale, as float32."""
        elements = decode(self.codes, self.element, dtype=np.float32)
        return by_block(elements, self.factors.scales, self.scaling)


def factors_from(amax: object, scaling: str, element: str) -> Factors:
    """The factors of blocks whose largest magnitudes are ``amax``. A block of zeros has the factor 1.

    >>> float(factors_from(3.5, "tensor", "float8_e4m3fn").multipliers)    # 448 / 3.5
    128.0
    >>> float(factors_from(3.0, "row_power_of_two", "float8_e4m3fn").multipliers)    # 149.33, cut down
    128.0
    """
    scaling, largest = SCALINGS[as_one_of("scaling", scaling, SCALINGS)], get_format(element).max
    amax = as_real(amax).astype(np.float32)
    if scaling.scale_rule == "unit":
        return Factors(multipliers=np.ones_like(amax), block_scales=np.ones_like(amax))
    if scaling.has_tensor_scale:
        return _two_levels(amax, largest, scaling.scale)
    if scaling.scale.name == "float8_e8m0fnu":
        if (element, scaling.scale) not in [(fmt.element.name, fmt.scale) for fmt in BLOCK_FORMATS.values()]:
            raise ValueError(f"element={element!r} has no MX format")
        codes = encode_scales(np.float64(amax), get_format(element), scaling.scale, scaling.scale_rule)
        scales = np.where(amax == 0, np.float32(1), decode(codes, scaling.scale, dtype=np.float32))
        return Factors(multipliers=1 / scales, block_scales=scales)
    multipliers = _quotient(largest, amax)
    if scaling.scale_rule == "power_of_two":
        multipliers = np.ldexp(np.float32(1), np.frexp(multipliers)[1] - 1).astype(np.float32)
    return Factors(multipliers=multipliers, block_scales=1 / multipliers)


def scale_to(x: object, element: str, scaling: str) -> Scaled:
    """Quantise a matrix: multiply each block, saturate, round. The arithmetic is float32, as on a card.

    Raises: ValueError: the blocks do not tile the matrix.
    """
    record = SCALINGS[as_one_of("scaling", scaling, SCALINGS)]
    x = as_real(x).astype(np.float32)
    factors = factors_from(block_amax(x, record), scaling, element)
    moved = by_block(x, factors.multipliers, record)
    codes = encode(moved, element, overflow="saturate")
    is_zero = decode(codes, element, dtype=np.float32) == 0
    return Scaled(
        codes=codes,
        factors=factors,
        element=element,
        scaling=record,
        clipped_share=float(np.mean(np.abs(moved) > get_format(element).max * ONE_AND_A_BIT)),
        flushed_share=float(np.mean(is_zero & (x != 0))),
    )


def relative_error(x: object, held: object) -> float:
    """Root mean square of the error by that of ``x``."""
    x, held = as_real(x).astype(np.float64), as_real(held).astype(np.float64)
    if x.shape != held.shape:
        raise ValueError(f"held has the shape {held.shape}, x has {x.shape}")
    return float(np.sqrt(np.mean((x - held) ** 2) / np.mean(x**2)))


@dataclass(frozen=True, kw_only=True)
class DelayedScale:
    """The factor of the next cast, from the largest magnitudes of the last ones; Transformer Engine's defaults.

    ``history`` ends with the latest step, and its maximum counts; ``margin`` halves the factor so many times.

    >>> scale = DelayedScale(history_len=2)
    >>> [(scale := scale.after(amax)).multiplier for amax in (1.0, 14.0, 1.0, 1.0)]    # a spike stays two steps
    [448.0, 32.0, 32.0, 448.0]
    """

    element: str = "float8_e4m3fn"
    history_len: int = 1024
    margin: int = 0
    history: tuple[float, ...] = ()
    multiplier: float = 1.0

    def __post_init__(self):
        as_whole_number("history_len", self.history_len, 1)
        as_whole_number("margin", self.margin)

    def after(self, amax: float) -> "DelayedScale":
        """The state after a cast that saw ``amax``; where that is 0, infinite or NaN the factor stays."""
        history = (*self.history, float(amax))[-self.history_len :]
        wanted = float(np.max(history))
        multiplier = self.multiplier
        if 0 < wanted < math.inf:
            with np.errstate(over="ignore"):
                quotient = np.float32(get_format(self.element).max) / np.float32(wanted)
            multiplier = float(min(quotient / np.float32(2**self.margin), FLOAT32_MAX))
        return replace(self, history=history, multiplier=multiplier)


def _quotient(largest: float, amax: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", over="ignore"):
        m = np.float32(largest) / amax
    return np.where((amax == 0) | np.isinf(amax), np.float32(1), np.minimum(m, FLOAT32_MAX)).astype(np.float32)


def _two_levels(amax: np.ndarray, largest: float, scale: FloatFormat) -> Factors:
    """NVFP4: the float32 lifts the largest block's scale to 448, the end of E4M3; then each block's is rounded."""
    lift = _quotient(scale.max * largest, amax.max(initial=0))
    wanted = amax * np.float32(lift * np.float32(1 / np.float32(largest)))
    codes = encode(wanted, scale, overflow="saturate")
    block_scales, tensor_scale = decode(codes, scale, dtype=np.float32), np.float32(1 / lift)
    with np.errstate(divide="ignore"):
        multipliers = np.minimum(1 / (block_scales * tensor_scale), FLOAT32_MAX)
    multipliers = np.where(block_scales == 0, np.float32(0), multipliers).astype(np.float32)
    return Factors(multipliers=multipliers, block_scales=block_scales, tensor_scale=float(tensor_scale))
