"""The pictures of chapter 06: a distribution under a format, outliers against error, a spike in a history."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.patches import Rectangle

from memkit.formats.blocks import block_amax, by_block
from memkit.formats.records import get_format
from memkit.low_precision.scaling import SCALINGS, factors_from
from memkit.low_precision.trials import NUM_STEPS, OUTLIER_FACTORS, SPIKE_STEP, SpikeStep, drawn, scaled
from memkit.pictures.picture import GREY, INK, OKABE_ITO, Picture, bare, hatched, mix

COMPARED = ("none", "tensor", "row", "1x128", "mx_floor", "mx", "nvfp4")
NAMES = {
    "none": "no scaling", "tensor": "per tensor", "row": "per row", "1x128": "1 × 128", "mx_floor": "MX, floor",
    "mx": "MX, round up", "nvfp4": "1 × 16, two levels",
}  # fmt: skip
ELEMENTS = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int8")
LINES = {
    "INT8, tensor": ("int8", "tensor", OKABE_ITO[1], "-", "X"),
    "E4M3, tensor": ("float8_e4m3fn", "tensor", OKABE_ITO[0], "-", "o"),
    "E5M2, tensor": ("float8_e5m2", "tensor", OKABE_ITO[3], "--", "s"),
    "E4M3, 1 × 128": ("float8_e4m3fn", "1x128", OKABE_ITO[5], "-.", "^"),
    "E4M3, MX": ("float8_e4m3fn", "mx", OKABE_ITO[4], ":", "D"),
    "NVFP4": ("float4_e2m1fn", "nvfp4", OKABE_ITO[7], "-", "v"),
}
"""Element, scaling and look of each line of the outlier picture."""
SHOWN_POWERS = (-32.0, 19.0)
BINS = np.arange(*SHOWN_POWERS, 0.5)


def scalings_for(element: str) -> tuple[str, ...]:
    """The scalings that the picture compares for an element; MX has no INT8 here, two levels are FP4's."""
    wrong = {"int8": {"mx", "mx_floor", "nvfp4"}, "float4_e2m1fn": set()}.get(element, {"nvfp4"})
    return tuple(name for name in COMPARED if name not in wrong)


class ScalingPicture(Picture):
    """Left: the scaled values by power of two, over what the element holds. Right: the error of each scaling."""

    def __init__(self):
        super().__init__(8.0, 3.9)
        self.title = self.heading(0.945)
        self.plot = self.add_axes((0.075, 0.15, 0.475, 0.65), xlim=SHOWN_POWERS, ylim=(0, 1.16))
        bare(self.plot, "value × factor, as a power of two", "share of the values")
        self.plot.set_yticks([])
        zone_colours = [mix(OKABE_ITO[index], 0.25) for index in (1, 2, 3, 1)]
        self.zones = [self.move(self.plot.axvspan(0, 1, color=colour, lw=0)) for colour in zone_colours]
        self.words = [self.stamp(0, 1.12, self.plot, fontsize=8.5, ha="center", va="top") for _ in self.zones]
        self.outline = self.move(self.plot.stairs(np.zeros(len(BINS) - 1), BINS, color=INK, linewidth=1.5))
        self.side = self.add_axes((0.73, 0.15, 0.15, 0.65), xlim=(-2, 0.05), ylim=(6.6, -0.6))
        self.side.spines[["top", "right"]].set_visible(False)
        self.side.set_xticks([-2, -1, 0], ["1 %", "10 %", "100 %"], fontsize=9, color=GREY)
        self.side.set_yticks([])
        self.side.set_xlabel("relative error", fontsize=9.5, color=INK)
        at = {"transform": self.side.get_yaxis_transform(), "va": "center", "fontsize": 9.5}
        rows = range(len(COMPARED))
        bars = [hatched(Rectangle, (-2, r - 0.32), 0, 0.64, facecolor=OKABE_ITO[0], hatch="///") for r in rows]
        self.bars = [self.move(self.side.add_patch(bar)) for bar in bars]
        self.names = [self.stamp(-0.05, r, self.side, ha="right", **at) for r in rows]
        self.values = [self.stamp(1.05, r, self.side, **at) for r in rows]

    def redraw(self, kind: str, element: str, scaling: str) -> "ScalingPicture":
        """Values of a kind (``trials.DRAWS``) in an element, under a scaling."""
        held, _ = scaled(kind, element, scaling)
        x, fmt, record = drawn(kind), get_format(element), SCALINGS[scaling]
        moved = by_block(x, factors_from(block_amax(x, record), record, element).multipliers, record)
        powers = np.log2(np.abs(moved[moved != 0]))
        heights = np.histogram(powers, BINS)[0].astype(float)
        self.outline.set_data(heights / max(heights.max(), 1), BINS)
        least = getattr(fmt, "smallest_subnormal", 1.0) / 2
        normal = getattr(fmt, "smallest_normal", 1.0)
        ends = [math.log2(value) for value in (least, normal, fmt.max)]
        low, high = SHOWN_POWERS
        edges = [low, *ends, high]
        names = ("becomes 0", "subnormal", "held", "clipped")
        for zone, text, word, left, right in zip(self.zones, self.words, names, edges, edges[1:]):
            zone.set_bounds(left, 0, right - left, 1.16)
            text.set_text(word if right - left > 1.5 else "")
            text.set_position(((left + right) / 2, 1.12 if right - left > 0.7 * len(word) else 1.06))
        self._draw_errors(kind, element, scaling)
        self.title.set_text(f"{kind}: {element}, {NAMES[scaling]}")
        self.alt = (
            f"Histogram of {kind} values times their factors over the range of {element}: {held.flushed_share:.2%} "
            f"become 0, {held.clipped_share:.2%} are clipped; beside it the relative error of every scaling as bars."
        )
        return self

    def _draw_errors(self, kind: str, element: str, scaling: str) -> None:
        shown = scalings_for(element)
        for row, (bar, name, value) in enumerate(zip(self.bars, self.names, self.values)):
            is_there = row < len(shown)
            error = scaled(kind, element, shown[row])[1] if is_there else 0
            bar.set_width(min(max(math.log10(error), -1.97), 0) + 2 if error else 0)
            chosen = is_there and shown[row] == scaling
            bar.set_facecolor(OKABE_ITO[1 if chosen else 0])
            name.set_text(("▸ " if chosen else "") + NAMES[shown[row]] if is_there else "")
            value.set_text(f"{error:.2%}" if is_there else "")


class OutlierPicture(Picture):
    """The error of the ordinary channels against the size of a few large ones, a line a format."""

    def __init__(self):
        super().__init__(8.0, 4.0)
        self.title = self.heading(0.945)
        self.plot = self.add_axes((0.1, 0.14, 0.585, 0.7), xscale="log", yscale="log", ylim=(0.005, 1.3))
        bare(self.plot, "outlier channels are this many times larger", "relative error of the others")
        self.plot.set_xlim(0.9, OUTLIER_FACTORS[-1] * 1.1)
        self.plot.set_yticks([0.01, 0.1, 1], ["1 %", "10 %", "100 %"])
        self.plot.minorticks_off()
        side = self.surface((0.71, 0, 0.29, 1))
        self.rule = self.move(self.plot.axvline(1, color=GREY, linewidth=1.2, linestyle=(0, (4, 3))))
        self.drawn_lines, self.values = {}, {}
        for row, (name, (_, _, colour, dashes, marker)) in enumerate(LINES.items()):
            y, style = 0.8 - 0.125 * row, {"color": colour, "linestyle": dashes, "marker": marker, "markersize": 5}
            self.drawn_lines[name] = self.move(self.plot.plot([], [], linewidth=1.6, **style)[0])
            side.plot([0, 0.06, 0.12], [y] * 3, markevery=[1], linewidth=1.6, **style)
            side.text(0.16, y, name, fontsize=9.5, va="center", color=INK)
            self.values[name] = self.stamp(0.98, y, side, fontsize=9.5, ha="right", va="center")

    def redraw(self, errors: Mapping[str, Sequence[float]], index: int, num_outliers: int) -> "OutlierPicture":
        """``errors``: for each of ``LINES`` one error a factor of ``OUTLIER_FACTORS``; ``index``: the chosen factor."""
        factor = OUTLIER_FACTORS[index]
        self.rule.set_xdata([factor, factor])
        for name, row in errors.items():
            self.drawn_lines[name].set_data(OUTLIER_FACTORS, row)
            self.values[name].set_text(f"{row[index]:.1%}")
        plural = "channels are" if num_outliers > 1 else "channel is"
        self.title.set_text(f"{num_outliers} of 1,024 {plural} {factor:,.3g} times larger")
        told = "; ".join(f"{name} {row[index]:.1%}" for name, row in errors.items())
        self.alt = f"Relative error of the ordinary channels beside outliers {factor:,.3g} times larger: {told}."
        return self


class SpikePicture(Picture):
    """The largest value of each step against what fits, and the error of the cast below."""

    def __init__(self):
        super().__init__(8.0, 4.3)
        self.title = self.heading(0.95)
        steps = (-1, NUM_STEPS)
        self.top = self.add_axes((0.1, 0.47, 0.635, 0.4), yscale="log", xlim=steps, ylim=(1, 10**4))
        self.bottom = self.add_axes((0.1, 0.125, 0.635, 0.27), yscale="log", xlim=steps, ylim=(0.015, 1.3))
        for axes, x_label, y_label in ((self.top, "", "value"), (self.bottom, "step", "relative error")):
            bare(axes, x_label, y_label)
            axes.minorticks_off()
        self.top.tick_params(labelbottom=False)
        self.bottom.set_yticks([0.03, 0.1, 0.3, 1], ["3 %", "10 %", "30 %", "100 %"])
        looks = {
            "largest in the tensor": (self.top, {"color": OKABE_ITO[0], "marker": "o", "markersize": 3.5}),
            "largest that fits": (self.top, {"color": OKABE_ITO[1], "drawstyle": "steps-mid", "linewidth": 2}),
            "delayed": (self.bottom, {"color": OKABE_ITO[1], "marker": "s", "markersize": 3.5}),
            "current": (self.bottom, {"color": OKABE_ITO[3], "linestyle": "--", "linewidth": 2}),
        }
        self.curves = {name: self.move(axes.plot([], [], **look)[0]) for name, (axes, look) in looks.items()}
        side = self.surface((0.755, 0, 0.245, 1))
        for y, (name, (_, look)) in zip((0.83, 0.76, 0.35, 0.28), looks.items()):
            look = {key: value for key, value in look.items() if key != "drawstyle"}
            side.plot([0, 0.06, 0.12], [y] * 3, markevery=[1], **look)
            side.text(0.17, y, name, fontsize=9.5, va="center", color=INK)
        dashed = {"color": GREY, "linewidth": 1.2, "linestyle": (0, (4, 3))}
        self.now = [self.move(axes.axvline(0, **dashed)) for axes in (self.top, self.bottom)]
        self.note = self.stamp(0, 0.62, side, fontsize=9.5, va="top", linespacing=1.5)

    def redraw(self, steps: Sequence[SpikeStep], step: int, title: str) -> "SpikePicture":
        """The film up to its end, and ``step`` marked."""
        numbers, shown = range(len(steps)), steps[step]
        for name, values in (
            ("largest in the tensor", [s.amax for s in steps]),
            ("largest that fits", [s.fits for s in steps]),
            ("delayed", [s.error for s in steps]),
            ("current", [s.current_error for s in steps]),
        ):
            self.curves[name].set_data(numbers, values)
        for line in self.now:
            line.set_xdata([step, step])
        self.note.set_text(f"step {step}: {shown.clipped_share:.1%} clipped,\nerror {shown.error:.1%}")
        self.title.set_text(title)
        self.alt = (
            f"{title}. The largest value and the largest that fits, over {len(steps)} steps with a spike in step "
            f"{SPIKE_STEP}; in step {step} {shown.clipped_share:.1%} are clipped and the error is {shown.error:.1%}."
        )
        return self
