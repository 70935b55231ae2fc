"""Loss scaling: what FP16 makes of gradients at each scale (chapter 03).

A gradient g under a scale S is held as the FP16 value nearest to S·g and divided by S in float32. Below half
the smallest subnormal value it is **flushed** to zero, below the smallest normal one it is **subnormal** and
loses digits, above the largest it **overflows** and the step is lost.
"""

from dataclasses import dataclass

import numpy as np

from memkit.formats.records import FORMATS

FP16 = FORMATS["float16"]
FLUSHED_BELOW = FP16.smallest_subnormal / 2
"""2^-25: this itself is a tie, and goes to the even code, zero."""

OVERFLOWS_FROM = FP16.max + 2.0**4
"""65,520: half a step above the largest value, a tie that goes to infinity."""


@dataclass(frozen=True, kw_only=True)
class ScaledGradients:
    """What a scale does to the gradients that are not zero: shares of their number, and an error.

    ``value_error`` is the mean relative error of one value after unscaling, overflowed values left out: what
    Adam sees, which divides every gradient by its own size.
    """

    flushed: float
    subnormal: float
    overflowing: float
    value_error: float

    @property
    def is_skipped(self) -> bool:
        """Whether a GradScaler would leave this step out: one value that is not finite is enough."""
        return self.overflowing > 0


def scale_gradients(gradients: np.ndarray, scale: float) -> ScaledGradients:
    """FP16's account of float32 ``gradients`` times ``scale``.

    >>> shares = scale_gradients(np.array([2.0**-26, 2.0**-20, 1.0, 0.0]), scale=1.0)
    >>> round(shares.flushed, 3), round(shares.subnormal, 3), shares.overflowing
    (0.333, 0.333, 0.0)

    Raises: ValueError: a scale that is not a positive number, no gradient that is not zero.
    """
    if not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale={scale!r} is not a positive number")
    sizes = np.abs(np.asarray(gradients, dtype=np.float64).ravel())
    sizes = sizes[sizes > 0]
    if not sizes.size:
        raise ValueError("every gradient is zero: there is nothing to scale")
    scaled = sizes * scale
    flushed, overflowing = scaled <= FLUSHED_BELOW, scaled >= OVERFLOWS_FROM
    subnormal = (scaled < FP16.smallest_normal) & ~flushed
    kept = scaled[~overflowing]
    errors = np.abs(kept.astype(np.float16) - kept) / kept
    return ScaledGradients(
        flushed=float(flushed.mean()),
        subnormal=float(subnormal.mean()),
        overflowing=float(overflowing.mean()),
        value_error=float(errors.mean()) if kept.size else 1.0,
    )
