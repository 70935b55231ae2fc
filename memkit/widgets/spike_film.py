"""Chapter 06's film: how a spike passes through the history from which delayed scaling takes its factor."""

import numpy as np

from memkit.low_precision.trials import NUM_STEPS, SPIKE_STEP, SpikeStep, spike_steps
from memkit.pictures.spike import spike_figure
from memkit.widgets.explorer import Choice, Explorer, Number, View

SPIKES = (2, 4, 16, 64, 256)
HISTORIES = (1, 4, 16, 1024)


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
