"""Loss scaling: what FP16 makes of gradients at each scale, and where the libraries start and stop.

A gradient g under a scale S is held as the FP16 value nearest to S·g and divided by S in float32. Below half
the smallest subnormal value it is **flushed** to zero, below the smallest normal one it is **subnormal** and
loses digits, above the largest it **overflows** and the step is lost.
"""

import math
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
        flushed=float(flushed.mean()), subnormal=float(subnormal.mean()), overflowing=float(overflowing.mean()),
        value_error=float(errors.mean()) if kept.size else 1.0,
    )


@dataclass(frozen=True, kw_only=True)
class ScalerDefaults:
    """How a library's dynamic loss scale starts, grows and falls, if nobody says otherwise.

    ``hysteresis``: overflows that it takes to halve. ``least`` and ``most`` bound the scale (None: unbounded).
    """

    library: str
    initial: int
    growth_interval: int
    hysteresis: int = 1
    least: float | None = None
    most: float | None = None
    source: str

    @property
    def bounds(self) -> str:
        """Both bounds in words.

        >>> [scaler.bounds for scaler in SCALERS[:3]]
        ['none', '≤ 2^24', '≥ 1']
        """
        least = [] if self.least is None else [f"≥ {self.least:g}"]
        most = [] if self.most is None else [f"≤ 2^{math.log2(self.most):g}"]
        return ", ".join(least + most) or "none"


SCALERS = (
    ScalerDefaults(library="torch.amp.GradScaler", initial=2**16, growth_interval=2000,
                   source="torch/amp/grad_scaler.py, 2.13"),
    ScalerDefaults(library="NVIDIA Apex", initial=2**16, growth_interval=2000, most=2**24,
                   source="apex@03b0eeb, apex/amp/scaler.py"),
    ScalerDefaults(library="Megatron-LM", initial=2**32, growth_interval=1000, hysteresis=2, least=1,
                   source="Megatron-LM@e914fb7, core/optimizer/optimizer_config.py"),
    ScalerDefaults(library="DeepSpeed", initial=2**16, growth_interval=1000, hysteresis=2, least=1,
                   source="DeepSpeed@0ac4684, runtime/precision_config.py"),
    ScalerDefaults(library="TensorFlow", initial=2**15, growth_interval=2000,
                   source="keras@054e295, src/optimizers/loss_scale_optimizer.py"),
)
"""Every one of them doubles and halves; read at the commits named, of NVIDIA, deepspeedai and keras-team on GitHub."""
