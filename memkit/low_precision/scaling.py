"""Scaling: the factor that moves a tensor into the range of eight or four bits, and who shares it.

E4M3 ends at 448 and E5M2 at 57344. So each group of values is multiplied by m before the cast and by 1/m after
the product:

    amax = max |x|            m = largest element / amax            element = round(x * m)            x ~ element / m

m is what torchao and Transformer Engine call *scale*; its reciprocal, the **scale** of chapter 02's block formats,
is what ``torch._scaled_mm`` and cuBLAS want and what is stored beside the elements. Two choices make a recipe: who
shares a factor (the whole tensor, a row, 128 neighbours, a square of 128 x 128, 32 or 16 neighbours), and which numbers
it may be (the rules of ``memkit.formats.blocks``).

*Current* scaling takes amax from the tensor at hand, which reads it twice. *Delayed* scaling takes it from the
last steps (``DelayedScale``), which reads it once and can be surprised.

Sources: torchao 0.18, float8_utils.amax_to_scale and mx_tensor.to_mx; Transformer Engine 2.20,
common/recipe/__init__.py, quantization._default_sf_compute and custom_recipes/quantization_nvfp4.py; DeepSeek-AI
2024, arXiv:2412.19437, section 3.3 (1x128 and 128x128); NVIDIA 2025, arXiv:2509.25149 (NVFP4).
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from memkit.formats.blocks import FLOAT32_MAX, Factors, Quantized, Scaling, factors_of, quantize_to
from memkit.formats.records import FORMATS, get_format
from memkit.formats.rounding import as_real
from memkit.units import as_one_of, as_whole_number

WHOLE = 0
"""A block as long as its dimension."""


SCALINGS = {
    name: Scaling(
        name=name,
        block_shape=shape,
        scale_rule=rule,
        scale=FORMATS[scale],
        has_tensor_scale=name.startswith("nvfp4"),
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


def factors_from(amax: object, scaling: str, element: str) -> Factors:
    """The factors of blocks whose largest magnitudes are ``amax``. A block of zeros has the factor 1.

    >>> float(factors_from(3.5, "tensor", "float8_e4m3fn").multipliers)    # 448 / 3.5
    128.0
    >>> float(factors_from(3.0, "row_power_of_two", "float8_e4m3fn").multipliers)    # 149.33, cut down
    128.0
    """
    return factors_of(
        as_real(amax), SCALINGS[as_one_of("scaling", scaling, SCALINGS)], get_format(element)
    )


def scale_to(x: object, element: str, scaling: str) -> Quantized:
    """A matrix in ``element`` by a scaling of the book.

    Raises: ValueError: the blocks do not tile the matrix.
    """
    return quantize_to(x, get_format(element), SCALINGS[as_one_of("scaling", scaling, SCALINGS)])


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
