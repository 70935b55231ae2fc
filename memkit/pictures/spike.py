"""The spike film's picture (chapter 06): a tensor's largest value, what fits, and the error, step by step."""

from collections.abc import Sequence

from memkit.low_precision.trials import SPIKE_STEP, SpikeStep
from memkit.pictures.axes import DASHED, Scale, round_ticks
from memkit.pictures.colours import BLUE, GREEN, VERMILION
from memkit.pictures.lines import Line, draw_lines
from memkit.pictures.svg import GREY, Chart

PER_CENT = [(0.03, "3 %"), (0.1, "10 %"), (0.3, "30 %"), (1, "100 %")]


def spike_figure(steps: Sequence[SpikeStep], step: int, title: str) -> Chart:
    """The largest value of each step against what fits, and the error of the cast below; ``step`` is marked."""
    chart, shown, numbers = Chart(800, 430, title), steps[step], range(len(steps))
    x = Scale(low=-1, high=len(steps), start=80, end=586)
    value = Scale(low=1, high=10**4, start=226, end=58, is_log=True)
    error = Scale(low=0.015, high=1.3, start=370, end=262, is_log=True)
    value.ticks_beside(chart, [(10**p, f"{10**p:,}") for p in range(5)], 80, 586, "value")
    error.ticks_beside(chart, PER_CENT, 80, 586, "relative error")
    for scale, label in ((value, ""), (error, "step")):
        ticks = [(t, f"{t:g}" if label else "") for t in round_ticks(0, len(steps), 7)]
        x.ticks_below(chart, ticks, scale.end, scale.start, label)
        chart.line([(x(step), scale.start), (x(step), scale.end)], shade=GREY, stroke_dasharray=DASHED)
    reaches = Line(name="largest in the tensor", xs=numbers, ys=[s.amax for s in steps], look=(BLUE, ""))
    # what fits is decided by the steps before, so its line is a stair that turns between two steps
    turns = [number + side for number in numbers for side in (-0.5, 0.5)]
    stair = [each.fits for each in steps for _ in range(2)]
    fits = Line(name="largest that fits", xs=turns, ys=stair, look=(VERMILION, "7 4"))
    delayed = Line(name="delayed", xs=numbers, ys=[s.error for s in steps], look=(VERMILION, ""))
    current = Line(name="current", xs=numbers, ys=[s.current_error for s in steps], look=(GREEN, "7 4"))
    draw_lines(chart, (reaches, fits), x, value, 604, 76, 28)
    draw_lines(chart, (delayed, current), x, error, 604, 276, 28)
    chart.words(604, 150, f"step {step}: {shown.clipped_share:.1%} clipped,\nerror {shown.error:.1%}", 12.5, at="top")
    clipped = sum(s.clipped_share > 0 for s in steps)
    chart.words(604, 192, f"{clipped} of {len(steps)} steps clip", 12.5, at="top", shade=GREY)
    chart.alt = (
        f"{title}. The largest value and the largest that fits, over {len(steps)} steps with a spike in step "
        f"{SPIKE_STEP}; in step {step} {shown.clipped_share:.1%} are clipped and the error is {shown.error:.1%}; "
        f"{clipped} of {len(steps)} steps clip."
    )
    return chart
