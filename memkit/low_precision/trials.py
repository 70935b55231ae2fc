"""Three trials of scaling on drawn numbers: what a scaling loses, what outliers do to it, what a spike does.

Each draws its numbers from a seed and returns plain figures; chapter 06 and its widgets show the same ones.
"""

import functools
from dataclasses import dataclass

import numpy as np

from memkit.formats.records import get_format
from memkit.low_precision.scaling import DelayedScale, Scaled, relative_error, scale_to
from memkit.units import as_one_of

SHAPE = (128, 256)
OUTLIER_FACTORS = tuple(10.0 ** (power / 2) for power in range(13))
SPIKE_STEP, NUM_STEPS = 20, 60


def _heavy(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_t(2.5, SHAPE)


def _gradients(rng: np.random.Generator) -> np.ndarray:
    sizes = np.exp(rng.normal(0, 2, (SHAPE[0], 1)))  # some tokens matter more than others
    return 1e-7 * sizes * rng.normal(size=SHAPE)


def _outliers(rng: np.random.Generator) -> np.ndarray:
    x = rng.normal(size=SHAPE)
    x[:, ::64] *= 100
    return x


DRAWS = {
    "normal": lambda rng: rng.normal(size=SHAPE),
    "heavy tail": _heavy,
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


@functools.lru_cache(maxsize=64)
def spike_steps(
    spike: float, history_len: int = 1024, margin: int = 0, num_steps: int = NUM_STEPS, num_values: int = 2048
) -> tuple[SpikeStep, ...]:
    """Delayed scaling on a tensor whose size wavers by a tenth and is ``spike`` times larger in step 20."""
    rng, scale = np.random.default_rng(0), DelayedScale(history_len=history_len, margin=margin)
    largest, steps = get_format(scale.element).max, []
    scale = scale.after(4.0)  # a first step has been
    for step in range(num_steps):
        x = (rng.normal(size=(1, num_values)) * np.exp(0.1 * rng.normal())).astype(np.float32)
        x *= np.float32(spike if step == SPIKE_STEP else 1)
        held = scale_to(x, scale.element, "tensor", multiplier=scale.multiplier)
        now = scale_to(x, scale.element, "tensor")
        amax = float(np.abs(x).max())
        steps.append(
            SpikeStep(
                amax=amax, fits=largest / scale.multiplier, clipped_share=held.clipped_share,
                error=relative_error(x, held.dequantize()), current_error=relative_error(x, now.dequantize()),
            )
        )  # fmt: skip
        scale = scale.after(amax)
    return tuple(steps)
