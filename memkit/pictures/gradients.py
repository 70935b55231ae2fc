"""The loss scaling lab's picture (chapter 03): gradients by size, and what FP16 makes of them at a scale."""

import numpy as np

from memkit.low_precision.loss_scaling import FLUSHED_BELOW, FP16, scale_gradients
from memkit.pictures.axes import Scale
from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.number_line import SUPERSCRIPTS
from memkit.pictures.svg import GREY, Chart

LOW, HIGH, PER_POWER = -56, 24, 2
"""The axis in powers of two, and bars per power."""
ZONES = {
    "flushed to 0": (LOW, np.log2(FLUSHED_BELOW), (OKABE_ITO[1], "///")),
    "subnormal": (np.log2(FLUSHED_BELOW), np.log2(FP16.smallest_normal), (OKABE_ITO[2], "...")),
    "normal": (np.log2(FP16.smallest_normal), 16, (OKABE_ITO[3], "")),
    "overflows": (16, HIGH, (OKABE_ITO[4], "xxx")),
}
BORDERS = np.linspace(LOW, HIGH, (HIGH - LOW) * PER_POWER + 1)


def gradients_figure(gradients: np.ndarray, power: int, name: str) -> Chart:
    """A histogram of |gradient| · 2^``power`` over the four ranges of FP16, and the unscaled one as an outline."""
    found = scale_gradients(gradients, 2.0**power)
    sizes = np.abs(np.asarray(gradients, dtype=np.float64).ravel())
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
