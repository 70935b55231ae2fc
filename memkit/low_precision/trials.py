"""A spike under delayed scaling, on drawn numbers: what fits in each step, and what the cast loses (chapter 06)."""

import functools
from dataclasses import dataclass

import numpy as np

from memkit.formats.blocks import ONE_AND_A_BIT
from memkit.formats.records import get_format
from memkit.low_precision.scaling import DelayedScale, relative_error, scale_to

SPIKE_STEP, NUM_STEPS, NUM_VALUES = 20, 60, 2048


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
