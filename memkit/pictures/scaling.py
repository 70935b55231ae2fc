"""The pictures of chapter 06's labs: a distribution under a format, outliers against error, a spike in a history."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from memkit.formats.blocks import block_amax, by_block
from memkit.formats.records import Format, get_format
from memkit.low_precision.scaling import SCALINGS, factors_from
from memkit.low_precision.trials import OUTLIER_FACTORS, SPIKE_STEP, SpikeStep, drawn, scaled
from memkit.pictures.axes import DASHED, DASHES, Curve, Scale, draw_curves, round_ticks
from memkit.pictures.svg import GREY, OKABE_ITO, Chart

NAMES = {
    "none": "no scaling",
    "tensor": "per tensor",
    "row": "per row",
    "1x128": "1 × 128",
    "mx_floor": "MX, floor",
    "mx": "MX, round up",
    "nvfp4": "1 × 16, two levels",
}
ELEMENTS = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int8")
LINES = {
    "INT8 per tensor": ("int8", "tensor", OKABE_ITO[1], "", "X"),
    "E4M3 per tensor": ("float8_e4m3fn", "tensor", OKABE_ITO[0], "", "o"),
    "E5M2 per tensor": ("float8_e5m2", "tensor", OKABE_ITO[3], DASHES[1], "s"),
    "E4M3 per 1 × 128": ("float8_e4m3fn", "1x128", OKABE_ITO[5], DASHES[2], "^"),
    "E4M3 in MX": ("float8_e4m3fn", "mx", OKABE_ITO[4], DASHES[3], "D"),
    "NVFP4": ("float4_e2m1fn", "nvfp4", OKABE_ITO[7], "", "v"),
}
"""Element, scaling and look of each line of the outlier picture; no name has a comma, for they stand in lists."""
SHOWN_POWERS = (-32.0, 19.0)
BINS = np.arange(*SHOWN_POWERS, 0.5)
ZONES = ("becomes 0", "subnormal", "kept", "clipped")
PER_CENT = [(0.01, "1 %"), (0.1, "10 %"), (1, "100 %")]


def scalings_for(element: str) -> tuple[str, ...]:
    """The scalings that the picture compares for an element; MX has no INT8 here, two levels are FP4's."""
    wrong = {"int8": {"mx", "mx_floor", "nvfp4"}, "float4_e2m1fn": set()}.get(element, {"nvfp4"})
    return tuple(name for name in NAMES if name not in wrong)


def scaling_figure(kind: str, element: str, scaling: str) -> Chart:
    """Left: the scaled values by power of two, over what the element holds. Right: the error of each scaling."""
    lost, _ = scaled(kind, element, scaling)
    values, fmt, record = drawn(kind), get_format(element), SCALINGS[scaling]
    moved = by_block(values, factors_from(block_amax(values, record), record, element).multipliers, record)
    heights = np.histogram(np.log2(np.abs(moved[moved != 0])), BINS)[0].astype(float)
    chart = Chart(800, 390, f"{kind}: {element}, {NAMES[scaling]}")
    x = Scale(low=SHOWN_POWERS[0], high=SHOWN_POWERS[1], start=40, end=440)
    y = Scale(low=0, high=1.16, start=330, end=60)
    _draw_zones(chart, fmt, x)
    ticks = [(t, f"{t:g}") for t in round_ticks(x.low, x.high)]
    x.ticks_below(chart, ticks, 330, 330, "value × factor, as a power of two")
    tops = heights / max(heights.max(), 1)
    stairs = [(x(a), y(h)) for left, right, h in zip(BINS, BINS[1:], tops, strict=False) for a in (left, right)]
    chart.line([(x(BINS[0]), y(0)), *stairs, (x(BINS[-1]), y(0))], stroke_width=1.6)
    chart.words(40, 50, "share of the values", 12, shade=GREY)
    _draw_errors(chart, kind, element, scaling)
    chart.alt = (
        f"Histogram of {kind} values times their factors over the range of {element}: {lost.flushed_share:.2%} "
        f"become 0, {lost.clipped_share:.2%} are clipped; beside it the relative error of every scaling as bars."
    )
    return chart


def _draw_zones(chart: Chart, fmt: Format, x: Scale) -> None:
    """What becomes of a value: the ranges of a format, each with its name where there is room."""
    least = getattr(fmt, "smallest_subnormal", 1.0) / 2
    normal = getattr(fmt, "smallest_normal", 1.0)
    ends = [x.low, *(math.log2(value) for value in (least, normal, fmt.max)), x.high]
    for zone, name, left, right in zip((1, 2, 3, 1), ZONES, ends, ends[1:], strict=False):
        chart.rect(x(left), 60, x(right) - x(left), 270, (OKABE_ITO[zone], ""), shade=0.3, tip=name)
        middle = (x(left) + x(right)) / 2
        if right - left > 1.5:
            chart.place([(middle, 72, name)], [(middle, 88, name)], size=11.5)


def _draw_errors(chart: Chart, kind: str, element: str, scaling: str) -> None:
    x = Scale(low=0.01, high=1.1, start=592, end=712, is_log=True)
    x.ticks_below(chart, PER_CENT, 60, 330, "relative error")
    for row, name in enumerate(scalings_for(element)):
        error, y, mark = scaled(kind, element, name)[1], 80 + 37 * row, "▸ " if name == scaling else ""
        colour = OKABE_ITO[1 if name == scaling else 0]
        chart.words(584, y, mark + NAMES[name], 12.5, anchor="end", bold=name == scaling)
        end, data = x.inside(error) if error > 0.01 else x.start + 2, {"error": f"{error:.6f}", "scaling": name}
        chart.bar(x.start, end, y, 24, (colour, "///"), tip=f"{NAMES[name]}: {error:.2%}", data=data)
        chart.words(722, y, f"{error:.2%}", 12.5)


def outlier_figure(errors: Mapping[str, Sequence[float]], index: int, num_outliers: int) -> Chart:
    """The error of the ordinary channels against the size of a few large ones, a line a format.

    ``errors``: for each of ``LINES`` one error a factor of ``OUTLIER_FACTORS``; ``index``: the chosen factor.
    """
    factor = OUTLIER_FACTORS[index]
    plural = "channels are" if num_outliers > 1 else "channel is"
    chart = Chart(800, 400, f"{num_outliers} of 1,024 {plural} {factor:,.3g} times larger")
    x = Scale(low=0.9, high=OUTLIER_FACTORS[-1] * 1.1, start=76, end=540, is_log=True)
    y = Scale(low=0.005, high=1.3, start=338, end=64, is_log=True)
    y.ticks_beside(chart, PER_CENT, 76, 540, "relative error of the others")
    powers = [10**p for p in range(round(math.log10(OUTLIER_FACTORS[-1])) + 1)]
    x.ticks_below(chart, [(p, f"{p:,}") for p in powers], 64, 338, "outlier channels are this many times larger")
    chart.line([(x(factor), 64), (x(factor), 338)], shade=GREY, stroke_dasharray=DASHED)
    curves = [
        Curve(name, OUTLIER_FACTORS, errors[name], *look, note=f"{errors[name][index]:.1%}")
        for name, (_, _, *look) in LINES.items()
    ]
    draw_curves(chart, curves, x, y, 562, 76, 48)
    told = "; ".join(f"{name} {row[index]:.1%}" for name, row in errors.items())
    chart.alt = f"Relative error of the ordinary channels beside outliers {factor:,.3g} times larger: {told}."
    return chart


def spike_figure(steps: Sequence[SpikeStep], step: int, title: str) -> Chart:
    """The largest value of each step against what fits, and the error of the cast below; ``step`` is marked."""
    chart, shown = Chart(800, 430, title), steps[step]
    x = Scale(low=-1, high=len(steps), start=80, end=586)
    value = Scale(low=1, high=10**4, start=226, end=58, is_log=True)
    error = Scale(low=0.015, high=1.3, start=370, end=262, is_log=True)
    value.ticks_beside(chart, [(10**p, f"{10**p:,}") for p in range(5)], 80, 586, "value")
    error.ticks_beside(chart, [(0.03, "3 %"), (0.1, "10 %"), (0.3, "30 %"), (1, "100 %")], 80, 586, "relative error")
    for scale, label in ((value, ""), (error, "step")):
        ticks = [(t, f"{t:g}" if label else "") for t in round_ticks(0, len(steps), 7)]
        x.ticks_below(chart, ticks, scale.end, scale.start, label)
        chart.line([(x(step), scale.start), (x(step), scale.end)], shade=GREY, stroke_dasharray=DASHED)
    numbers, before = range(len(steps)), [number - 0.5 for number in range(len(steps))]
    reaches = Curve("largest in the tensor", numbers, [s.amax for s in steps], OKABE_ITO[0], shape="o")
    fits = Curve("largest that fits", before, [s.fits for s in steps], OKABE_ITO[1], is_stepped=True)
    delayed = Curve("delayed", numbers, [s.error for s in steps], OKABE_ITO[1], shape="s")
    current = Curve("current", numbers, [s.current_error for s in steps], OKABE_ITO[3], DASHES[1])
    draw_curves(chart, (reaches, fits), x, value, 604, 76, 28)
    draw_curves(chart, (delayed, current), x, error, 604, 276, 28)
    chart.words(604, 150, f"step {step}: {shown.clipped_share:.1%} clipped,\nerror {shown.error:.1%}", 12.5, at="top")
    clipped = sum(s.clipped_share > 0 for s in steps)
    chart.words(604, 192, f"{clipped} of {len(steps)} steps clip", 12.5, at="top", shade=GREY)
    chart.alt = (
        f"{title}. The largest value and the largest that fits, over {len(steps)} steps with a spike in step "
        f"{SPIKE_STEP}; in step {step} {shown.clipped_share:.1%} are clipped and the error is {shown.error:.1%}; "
        f"{clipped} of {len(steps)} steps clip."
    )
    return chart
