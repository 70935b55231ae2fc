"""Chapter 06's explorers: what a scaling loses, what outliers do to it, and how a spike passes through a history."""

import numpy as np

from memkit.low_precision.trials import (
    DRAWS,
    NUM_STEPS,
    OUTLIER_FACTORS,
    SPIKE_STEP,
    SpikeStep,
    outlier_errors,
    scaled,
    spike_steps,
)
from memkit.pictures.scaling import (
    ELEMENTS,
    LINES,
    NAMES,
    outlier_figure,
    scaling_figure,
    scalings_for,
    spike_figure,
)
from memkit.widgets.explorer import Choice, Explorer, Number, View

NUM_OUTLIERS = (1, 4, 16)
SPIKES = (2, 4, 16, 64, 256)
HISTORIES = (1, 4, 16, 1024)


def goes_with_the_element(scaling: str, state: dict) -> bool:
    """Whether the picture compares a scaling for the chosen element."""
    return scaling in scalings_for(state["element"])


class ScalingLab(Explorer):
    """A distribution, an element format and who shares a factor → error, clipped and flushed shares."""

    def __init__(self, **values):
        for kind in DRAWS:  # a move then finds its errors computed
            for element in ELEMENTS:
                for scaling in scalings_for(element):
                    scaled(kind, element, scaling)
        super().__init__(**values)

    def view(
        self,
        kind=Choice("Values", DRAWS, "gradients"),
        element=Choice("Element", ELEMENTS, "float8_e4m3fn"),
        scaling=Choice("Shared by", [(NAMES[name], name) for name in NAMES], "none", goes_with_the_element),
    ) -> View:
        """The distribution under the format, and what was lost."""
        held, error = scaled(kind, element, scaling)
        errors = {name: scaled(kind, element, name)[1] for name in scalings_for(element)}
        best = min(errors, key=errors.get)
        losses = f"{held.flushed_share:.2%} of the values become 0 and {held.clipped_share:.2%} are clipped"
        words = [f"{kind} in {element}, {NAMES[scaling]}: relative error {error:.2%}; {losses}."]
        if errors[best] < 0.95 * error:
            words.append(f"{NAMES[best]} would do best, with {errors[best]:.2%}.")
        rows = [("scaling", "error", "clipped", "become 0")]
        for name, lost in errors.items():
            each = scaled(kind, element, name)[0]
            rows.append((NAMES[name], f"{lost:.2%}", f"{each.clipped_share:.2%}", f"{each.flushed_share:.2%}"))
        return View(chart=scaling_figure(kind, element, scaling), words=words, table=rows)


class OutlierLab(Explorer):
    """How many channels are how much larger → the error of the others, in six formats."""

    def __init__(self, **values):
        self.errors = {
            num: {name: outlier_errors(*line[:2], num) for name, line in LINES.items()} for num in NUM_OUTLIERS
        }
        super().__init__(**values)

    def view(
        self,
        half_decades=Number("Size, √10 to the", 4, low=0, high=len(OUTLIER_FACTORS) - 1),
        num_outliers=Choice("Outlier channels", NUM_OUTLIERS, 4),
    ) -> View:
        """The curves, and which format has died."""
        index, last = half_decades, len(OUTLIER_FACTORS) - 1
        if index > last:
            raise ValueError(f"half_decades={index} is above {last}, where the picture ends")
        errors = self.errors[num_outliers]
        now = {name: row[index] for name, row in errors.items()}
        doubled = [name for name, row in errors.items() if row[index] > 2 * row[0]]
        dead = [name for name in now if now[name] > 0.9]
        fate = f"More than twice as wrong as without outliers: {', '.join(doubled) or 'none'}"
        fate += f"; nothing is left in {', '.join(dead)}." if dead else "."
        best = min(now, key=now.get)
        size = f"Outliers {OUTLIER_FACTORS[index]:,.3g} times larger"
        words = (f"{size}. {fate}", f"The best is {best}, {now[best]:.1%}.")
        table = [("format", "without outliers", "with them")]
        table += [(name, f"{errors[name][0]:.2%}", f"{now[name]:.2%}") for name in now]
        return View(chart=outlier_figure(errors, index, num_outliers), words=words, table=table)


class SpikeFilm(Explorer):
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
