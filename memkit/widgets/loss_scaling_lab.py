"""The loss scaling lab: move a scale, and see what FP16 makes of the gradients of a real backward."""

from collections.abc import Mapping, Sequence

import numpy as np

from memkit.low_precision.loss_scaling import FLUSHED_BELOW, FP16, ScaledGradients, scale_gradients
from memkit.pictures.axes import Scale
from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import GREY, SUPERSCRIPTS, Chart
from memkit.widgets.explorer import Choice, Explorer, Number, View

MAX_POWER = 32
MAX_VALUES = 8_192
"""More gradients than this are thinned evenly by size, which keeps a move of the slider quick."""

LOW, HIGH, PER_POWER = -56, 24, 2
"""The axis in powers of two, and bars per power."""
ZONES = {
    "flushed to 0": (LOW, np.log2(FLUSHED_BELOW), (OKABE_ITO[1], "///")),
    "subnormal": (np.log2(FLUSHED_BELOW), np.log2(FP16.smallest_normal), (OKABE_ITO[2], "...")),
    "normal": (np.log2(FP16.smallest_normal), 16, (OKABE_ITO[3], "")),
    "overflows": (16, HIGH, (OKABE_ITO[4], "xxx")),
}
BORDERS = np.linspace(LOW, HIGH, (HIGH - LOW) * PER_POWER + 1)


class LossScalingLab(Explorer, verdict=(112,)):
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
            chart=gradients_figure(self.gradients[gradients], found, power, gradients),
            words=told(found, power),
            table=table,
        )


def thinned(array: object) -> np.ndarray:
    """The sizes of an array's values in order, at most ``MAX_VALUES`` of them; the largest stays."""
    sizes = np.sort(np.abs(np.asarray(array, dtype=np.float64).ravel()))
    if sizes.size <= MAX_VALUES:
        return sizes
    return sizes[np.linspace(0, sizes.size - 1, MAX_VALUES).round().astype(int)]


def gradients_figure(sizes: np.ndarray, found: ScaledGradients, power: int, name: str) -> Chart:
    """A histogram of |gradient| · 2^``power`` over the four ranges of FP16, and the unscaled one as an outline."""
    logs = np.log2(sizes[sizes > 0])
    chart = Chart(800, 410, name)
    chart.words(788, 20, "dashed: the same gradients at scale 1", 12, anchor="end", shade=GREY)
    chart.words(400, 48, f"loss scale 2^{power} = {2**power:,}", 14, anchor="middle")
    x, y = Scale(low=LOW, high=HIGH, start=24, end=776), Scale(low=0, high=1.06, start=346, end=112)
    heights, width = _heights(logs + power), x(1 / PER_POWER) - x(0)
    normal = max(0.0, 1 - found.flushed - found.subnormal - found.overflowing)
    shares = (found.flushed, found.subnormal, normal, found.overflowing)
    for (zone, (left, right, look)), share in zip(ZONES.items(), shares, strict=True):
        middle = x((max(left, LOW + 3) + min(right, HIGH)) / 2)
        chart.words(middle, 74, zone, 12.5, anchor="middle")
        chart.words(middle, 93, f"{share:.2%}", 12.5, anchor="middle", shade=GREY)
        if right < HIGH:
            chart.line([(x(right), 66), (x(right), y.start)])
        inside = [(a, h) for a, h in zip(BORDERS[:-1], heights, strict=True) if left <= a < right and h > 0]
        boxes = [[(x(a), y(0)), (x(a), y(h)), (x(a) + width, y(h)), (x(a) + width, y(0))] for a, h in inside]
        chart.area(boxes, look, tip=f"{zone}: {share:.2%}", data={"zone": zone, "share": f"{share:.6f}"})
    edges = [
        (x(a), y(h))
        for left, right, h in zip(BORDERS, BORDERS[1:], _heights(logs), strict=False)
        for a, h in ((left, h), (right, h))
    ]
    chart.line(edges, stroke_dasharray="3 3")
    chart.line([(x.start, y.start), (x.end, y.start)], shade=GREY)
    ticks = [(x(p), f"2{str(p).translate(SUPERSCRIPTS)}") for p in range(LOW, HIGH + 1, 8)]
    chart.row(ticks, y.start + 6, 12, shade=GREY)
    chart.words(400, 386, "|gradient| · scale, as FP16 has to hold it", 12.5, anchor="middle")
    chart.alt = (
        f"{name} at loss scale 2^{power}: {found.flushed:.2%} flushed to zero, {found.subnormal:.2%} "
        f"subnormal, {found.overflowing:.2%} overflow."
    )
    return chart


def _heights(logs: np.ndarray) -> np.ndarray:
    counts, _ = np.histogram(np.clip(logs, BORDERS[0], BORDERS[-1] - 1e-9), BORDERS)
    return counts / max(counts.max(), 1)


def told(found: ScaledGradients, power: int) -> tuple[str, ...]:
    """What this scale costs, the worst thing first."""
    small = f"{found.flushed:.2%} are flushed to zero and {found.subnormal:.2%} are subnormal"
    if found.is_skipped:
        over = f"{found.overflowing:.3%} of the gradients overflow at 2^{power}"
        return (f"{over}: a GradScaler skips this step and halves the scale.", f"Of the rest {small}.")
    error = f"a value is off by {found.value_error:.2%} on average"
    advice = "Nearly all values are normal numbers: a larger scale gains nothing."
    if found.flushed + found.subnormal > 0.01:
        advice = "Nothing overflows, so a larger scale still helps."
    return (f"At 2^{power} {small}; {error}.", advice)
