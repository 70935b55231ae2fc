"""Three trials of scaling on drawn numbers: what a scaling loses, what outliers do to it, what a spike does.

Each draws its numbers from a seed and returns plain figures; chapter 06 and its widgets show the same ones.
"""

import functools
from dataclasses import dataclass

import numpy as np

from memkit.formats.records import get_format
from memkit.low_precision.scaling import ONE_AND_A_BIT, DelayedScale, Scaled, relative_error, scale_to
from memkit.units import as_one_of

SHAPE = (128, 256)
OUTLIER_FACTORS = tuple(10.0 ** (power / 2) for power in range(13))
SPIKE_STEP, NUM_STEPS, NUM_VALUES = 20, 60, 2048


def _gradients(rng: np.random.Generator) -> np.ndarray:
    sizes = np.exp(rng.normal(0, 2, (SHAPE[0], 1)))  # some tokens matter more than others
    return 1e-7 * sizes * rng.normal(size=SHAPE)


def _outliers(rng: np.random.Generator) -> np.ndarray:
    x = rng.normal(size=SHAPE)
    x[:, ::64] *= 100
    return x


DRAWS = {
    "normal": lambda rng: rng.normal(size=SHAPE),
    "heavy tail": lambda rng: rng.standard_t(2.5, SHAPE),
    "gradients": _gradients,
    "outlier channels": _outliers,
}
"""How the numbers of the scaling trial are drawn: 128 rows (tokens) of 256 values."""


@functools.cache
def drawn(kind: str) -> np.ndarray:
    """The matrix of a kind; always the same one.

    Raises: ValueError: an unknown kind.
    """
    as_one_of("kind", kind, DRAWS)
    return DRAWS[kind](np.random.default_rng(0)).astype(np.float32)


@functools.cache
def scaled(kind: str, element: str, scaling: str) -> tuple[Scaled, float]:
    """The matrix of a kind as a scaling holds it, and the relative error of that.

    >>> held, error = scaled("normal", "float8_e4m3fn", "tensor")
    >>> f"{error:.1%}"
    '2.6%'
    """
    x = drawn(kind)
    held = scale_to(x, element, scaling)
    return held, relative_error(x, held.dequantize())


@functools.cache
def outlier_errors(element: str, scaling: str, num_outliers: int, factors=OUTLIER_FACTORS, rows: int = 32) -> tuple:
    """Relative error of the *other* channels, for each factor by which ``num_outliers`` of 1,024 channels are larger.

    >>> f"{outlier_errors('int8', 'tensor', 4, factors=(100.0,))[0]:.0%}"    # E4M3 loses 2.7 % here, as without
    '72%'
    """
    rng = np.random.default_rng(0)
    x, is_outlier = rng.normal(size=(rows, 1024)).astype(np.float32), np.zeros(1024, bool)
    is_outlier[:: 1024 // num_outliers] = True
    errors = []
    for factor in factors:
        held = scale_to(np.where(is_outlier, x * np.float32(factor), x), element, scaling).dequantize()
        errors.append(relative_error(x[:, ~is_outlier], held[:, ~is_outlier]))
    return tuple(errors)


@dataclass(frozen=True, kw_only=True)
class SpikeStep:
    """One step of delayed scaling: what came, the largest value that fitted, and what the cast lost."""

    amax: float
    fits: float
    clipped_share: float
    error: float
    current_error: float


@functools.cache
def _wavering() -> tuple[np.ndarray, tuple[float, ...]]:
    """Each step's values before any spike, and their errors under current scaling, which no spike changes."""
    rng = np.random.default_rng(0)
    drawn = [rng.normal(size=NUM_VALUES) * np.exp(0.1 * rng.normal()) for _ in range(NUM_STEPS)]
    x = np.array(drawn).astype(np.float32)
    held = scale_to(x, DelayedScale().element, "row").dequantize()
    return x, tuple(map(relative_error, x, held))


@functools.lru_cache(maxsize=64)
def spike_steps(spike: float, history_len: int = 1024, margin: int = 0) -> tuple[SpikeStep, ...]:
    """Delayed scaling on a tensor whose size wavers by a tenth and is ``spike`` times larger in step 20."""
    x, current_errors = _wavering()
    x = x * np.where(np.arange(NUM_STEPS) == SPIKE_STEP, np.float32(spike), np.float32(1))[:, None]
    amaxes, multipliers = np.abs(x).max(1), np.empty((NUM_STEPS, 1), np.float32)
    scale = DelayedScale(history_len=history_len, margin=margin).after(4.0)  # a first step has been
    for step, amax in enumerate(amaxes):
        multipliers[step] = scale.multiplier
        scale = scale.after(float(amax))
    moved, largest = x * multipliers, get_format(scale.element).max
    held = scale_to(moved, scale.element, "none").dequantize() * (1 / multipliers)
    clipped = (np.abs(moved) > largest * ONE_AND_A_BIT).mean(1)
    return tuple(
        SpikeStep(
            amax=float(amaxes[i]), fits=largest / float(multipliers[i, 0]), clipped_share=float(clipped[i]),
            error=relative_error(x[i], held[i]), current_error=current_errors[i],
        )
        for i in range(NUM_STEPS)
    )
