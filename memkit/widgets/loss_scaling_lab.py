"""The loss scaling lab: move a scale, and see what FP16 makes of the gradients of a real backward."""

from collections.abc import Mapping, Sequence

import numpy as np

from memkit.low_precision.loss_scaling import SCALERS, ScaledGradients, scale_gradients
from memkit.pictures.gradients import gradients_figure
from memkit.widgets.explorer import Choice, Explorer, Number, View

MAX_POWER = 32
MAX_VALUES = 8_192
"""More gradients than this are thinned evenly by size, which keeps a move of the slider quick."""


class LossScalingLab(Explorer):
    """Named gradients and a scale 2^k → shares flushed, subnormal, overflowing, and the error of a value."""

    def __init__(self, gradients: Mapping[str, Sequence[float] | np.ndarray], **values):
        if not gradients:
            raise ValueError("no gradients: pass a name and an array at least")
        self.gradients = {name: thinned(array) for name, array in gradients.items()}
        names = list(self.gradients)
        power = Number("Scale 2^k, k =", 0, low=0, high=MAX_POWER)
        self.controls = {"gradients": Choice("Gradients", names, names[0]), "power": power}
        super().__init__(**values)

    def view(self, gradients: str, power: int) -> View:
        """The histogram at this scale, and what a scaler would do."""
        if power > MAX_POWER:
            raise ValueError(f"power={power} is above {MAX_POWER}")
        found = scale_gradients(self.gradients[gradients], 2.0**power)
        table = [
            ("share of the values", ""),
            ("flushed to zero", f"{found.flushed:.3%}"),
            ("subnormal", f"{found.subnormal:.3%}"),
            ("overflow", f"{found.overflowing:.3%}"),
            ("mean error of a value, and of its SGD update", f"{found.value_error:.3%}"),
        ]
        return View(
            chart=gradients_figure(self.gradients[gradients], power, gradients),
            words=(*told(found, power), starts_here(power)),
            table=table,
        )


def thinned(array: object) -> np.ndarray:
    """The sizes of an array's values in order, at most ``MAX_VALUES`` of them; the largest stays."""
    sizes = np.sort(np.abs(np.asarray(array, dtype=np.float64).ravel()))
    if sizes.size <= MAX_VALUES:
        return sizes
    return sizes[np.linspace(0, sizes.size - 1, MAX_VALUES).round().astype(int)]


def told(found: ScaledGradients, power: int) -> tuple[str, ...]:
    """What this scale costs, the worst thing first."""
    small = f"{found.flushed:.2%} are flushed to zero and {found.subnormal:.2%} are subnormal"
    if found.is_skipped:
        over = f"{found.overflowing:.3%} of the gradients overflow at 2^{power}"
        return (f"{over}: a GradScaler skips this step and halves the scale.", f"Of the rest {small}.")
    error = f"a value is off by {found.value_error:.2%} on average"
    advice = (
        "Nothing overflows, so a larger scale still helps."
        if found.flushed + found.subnormal > 0.01
        else ("Nearly all values are normal numbers: a larger scale gains nothing.")
    )
    return (f"At 2^{power} {small}; {error}.", advice)


def starts_here(power: int) -> str:
    """Which libraries begin at this scale."""
    names = [scaler.library for scaler in SCALERS if scaler.initial == 2**power]
    return f"{', '.join(names)}: a dynamic scale starts here." if names else ""
