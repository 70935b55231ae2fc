"""Chapter 06's film: how a spike passes through the history from which delayed scaling takes its factor."""

import numpy as np

from memkit.low_precision.trials import NUM_STEPS, SPIKE_STEP, SpikeStep, spike_steps
from memkit.pictures.axes import DASHED, Scale, round_ticks
from memkit.pictures.colours import BLUE, GREEN, VERMILION
from memkit.pictures.svg import GREY, Chart
from memkit.widgets.explorer import Choice, Explorer, Number, View

SPIKES = (2, 4, 16, 64, 256)
HISTORIES = (1, 4, 16, 1024)
PER_CENT = [(0.03, "3 %"), (0.1, "10 %"), (0.3, "30 %"), (1, "100 %")]


class SpikeFilm(Explorer, verdict=(115,)):
    """A spike, a history and a margin → each step's factor under delayed scaling, and what the cast loses."""

    def view(
        self,
        step=Number("Step", SPIKE_STEP, low=0, high=NUM_STEPS - 1),
        spike=Choice("Spike, times", SPIKES, 16),
        history_len=Choice("History, steps", HISTORIES, 1024),
        margin=Number("Margin, bits", 0, low=0, high=8),
    ) -> View:
        """The film with one step marked, and what happens there."""
        if step >= NUM_STEPS:
            raise ValueError(f"step={step} is above {NUM_STEPS - 1}, the film's last step")
        if margin > 16:
            raise ValueError(f"margin={margin} is above 16, beyond which E4M3 has nothing left")
        steps = spike_steps(float(spike), history_len, margin)
        title = f"A spike of {spike} ×, history {history_len:,}, margin {margin}"
        table = [("step", "largest", "fits", "clipped", "error", "current scaling")]
        table += [table_row(i, steps[i]) for i in sorted({0, SPIKE_STEP - 1, SPIKE_STEP, SPIKE_STEP + 1, step})]
        return View(chart=spike_figure(steps, step, title), words=(told(steps, step), after(steps)), table=table)


def spike_figure(steps: tuple[SpikeStep, ...], step: int, title: str) -> Chart:
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
    reaches = ("largest in the tensor", numbers, [s.amax for s in steps], BLUE, "none")
    # what fits is decided by the steps before, so its line is a stair that turns between two steps
    turns = [number + side for number in numbers for side in (-0.5, 0.5)]
    stair = [each.fits for each in steps for _ in range(2)]
    fits = ("largest that fits", turns, stair, VERMILION, "7 4")
    delayed = ("delayed", numbers, [s.error for s in steps], VERMILION, "none")
    current = ("current", numbers, [s.current_error for s in steps], GREEN, "7 4")
    for line, scale, top in ((reaches, value, 76), (fits, value, 104), (delayed, error, 276), (current, error, 304)):
        name, xs, ys, colour, dashes = line
        style = {"stroke_width": 2, "stroke_dasharray": dashes}
        chart.line([(x(a), scale.inside(b)) for a, b in zip(xs, ys, strict=True)], colour, **style)
        chart.line([(604, top), (638, top)], colour, **style)
        chart.words(648, top, name, 12.5)
    chart.words(604, 150, f"step {step}: {shown.clipped_share:.1%} clipped,\nerror {shown.error:.1%}", 12.5, at="top")
    clipped = sum(s.clipped_share > 0 for s in steps)
    chart.words(604, 192, f"{clipped} of {len(steps)} steps clip", 12.5, at="top", shade=GREY)
    chart.alt = (
        f"{title}. The largest value and the largest that fits, over {len(steps)} steps with a spike in step "
        f"{SPIKE_STEP}; in step {step} {shown.clipped_share:.1%} are clipped and the error is {shown.error:.1%}; "
        f"{clipped} of {len(steps)} steps clip."
    )
    return chart


def table_row(number: int, step: SpikeStep) -> tuple[str, ...]:
    """One step's figures as text."""
    shares = (step.clipped_share, step.error, step.current_error)
    return str(number), f"{step.amax:.2f}", f"{step.fits:.2f}", *(f"{share:.2%}" for share in shares)


def told(steps: tuple[SpikeStep, ...], number: int) -> str:
    """What happens in one step."""
    step = steps[number]
    if step.clipped_share:
        return (
            f"Step {number}: the tensor reaches {step.amax:.1f} and {step.fits:.1f} fits: {step.clipped_share:.1%} of "
            f"the values are clipped, error {step.error:.1%} (current scaling {step.current_error:.1%})."
        )
    room = step.fits / step.amax
    return f"Step {number}: everything fits, {room:.1f} times what is needed; error {step.error:.1%}."


def after(steps: tuple[SpikeStep, ...]) -> str:
    """How long the spike stays in the history."""
    fits = np.array([step.fits for step in steps])
    before = fits[: SPIKE_STEP + 1].max()
    wide = int(np.sum(fits[SPIKE_STEP + 1 :] > 1.5 * before))
    rest = NUM_STEPS - SPIKE_STEP - 1
    if wide == rest:
        return f"For all {rest} steps after the spike the factor stays too small; a float format hardly minds."
    return f"The factor stays too small for {wide} steps after the spike."
