"""Gradients by size on the axis of FP16: what is flushed, what is subnormal, what overflows at a scale."""

import numpy as np

from memkit.low_precision.loss_scaling import FLUSHED_BELOW, FP16, ScaledGradients, scale_gradients
from memkit.pictures.picture import GREY, INK, OKABE_ITO, Picture
from memkit.pictures.stamped_bars import rectangles

LOW, HIGH, PER_POWER = -56, 24, 2
"""The axis in powers of two, and bars per power."""

EDGES = {
    "flushed to 0": (LOW, np.log2(FLUSHED_BELOW), OKABE_ITO[1]),
    "subnormal": (np.log2(FLUSHED_BELOW), np.log2(FP16.smallest_normal), OKABE_ITO[2]),
    "normal": (np.log2(FP16.smallest_normal), 16, OKABE_ITO[3]),
    "overflows": (16, HIGH, OKABE_ITO[4]),
}
HATCHES = ("///", "...", "", "xxx")


class GradientPicture(Picture):
    """A histogram of |gradient| · scale over the four ranges of FP16, and the unscaled one as an outline."""

    def __init__(self):
        super().__init__(8.0, 4.1)
        self.plot = self.add_axes((0.075, 0.15, 0.9, 0.55), xlim=(LOW, HIGH), ylim=(0, 1.18))
        self.plot.spines[["top", "right", "left"]].set_visible(False)
        self.plot.set_yticks([])
        powers = range(LOW, HIGH + 1, 8)
        self.plot.set_xticks(list(powers), [f"$2^{{{power}}}$" for power in powers])
        self.plot.tick_params(colors=GREY, labelsize=9)
        self.plot.set_xlabel("|gradient| · scale, as FP16 has to hold it", fontsize=9.5, color=INK)
        self.title = self.heading(0.945)
        self.bars, self.shares = {}, {}
        for (name, (left, right, colour)), hatch in zip(EDGES.items(), HATCHES, strict=True):
            self.bars[name] = self.moving_bars(self.plot, colour, hatch, linewidth=0)
            middle = (max(left, LOW + 3) + min(right, HIGH)) / 2
            self.plot.text(middle, 1.33, name, fontsize=9.5, ha="center", color=INK)
            look = {"fontsize": 9.5, "ha": "center", "va": "center", "color": GREY}
            self.shares[name] = self.stamp(middle, 1.23, self.plot, **look)
            if right < HIGH:
                self.plot.axvline(right, color=INK, linewidth=1)
        self.outline = self.move(self.plot.plot([], [], color=INK, linewidth=1, linestyle=(0, (3, 2)))[0])
        at = {"transform": self.plot.transAxes, "ha": "center", "va": "center"}
        self.scale = self.stamp(0.5, 1.43, self.plot, fontsize=11, **at)
        note = "dashed: the same gradients at scale 1"
        self.text(0.985, 0.945, note, fontsize=9, va="center", ha="right", color=GREY)
        self.found: ScaledGradients | None = None

    def redraw(self, gradients: np.ndarray, power: int, name: str) -> "GradientPicture":
        """Draw ``gradients`` times 2^``power``; ``name`` says whose they are."""
        self.found = found = scale_gradients(gradients, 2.0**power)
        sizes = np.abs(np.asarray(gradients, dtype=np.float64).ravel())
        logs = np.log2(sizes[sizes > 0])
        borders = np.linspace(LOW, HIGH, (HIGH - LOW) * PER_POWER + 1)
        unscaled = self._heights(logs, borders)
        heights = self._heights(logs + power, borders)
        self.outline.set_data(np.repeat(borders, 2)[1:-1], np.repeat(unscaled, 2))
        normal = max(0.0, 1 - found.flushed - found.subnormal - found.overflowing)
        shares = (found.flushed, found.subnormal, normal, found.overflowing)
        for (zone, (left, right, _)), share in zip(EDGES.items(), shares, strict=True):
            inside = (borders[:-1] >= left) & (borders[:-1] < right) & (heights > 0)
            x, y = borders[:-1][inside], heights[inside]
            self.bars[zone].set_path(rectangles(np.column_stack([x, 0 * y, x + 1 / PER_POWER, y])))
            self.shares[zone].set_text(f"{share:.2%}")
        self.title.set_text(name)
        self.scale.set_text(f"loss scale 2^{power} = {2**power:,}")
        self.alt = (
            f"{name} at loss scale 2^{power}: {found.flushed:.2%} flushed to zero, {found.subnormal:.2%} "
            f"subnormal, {found.overflowing:.2%} overflow."
        )
        return self

    @staticmethod
    def _heights(logs: np.ndarray, borders: np.ndarray) -> np.ndarray:
        counts, _ = np.histogram(np.clip(logs, borders[0], borders[-1] - 1e-9), borders)
        return counts / max(counts.max(), 1)


