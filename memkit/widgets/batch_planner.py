"""The batch planner: a global batch in tokens → micro-batches, accumulation steps and ranks that a card holds."""

from math import prod
from typing import ClassVar

from memkit.fitting.batch_plan import (
    BatchPlan,
    least_seconds,
    micro_batch_choices,
    nearest_plans,
    peak_of,
    plan_batch,
    planned_setup,
)
from memkit.fitting.room import fit_on
from memkit.hardware.cards import CARDS, Card
from memkit.pictures.peaks import choices_figure
from memkit.setup.layouts import Layout
from memkit.setup.models import PUBLISHED_MODELS
from memkit.setup.recipes import PRECISIONS, PURE_BF16, OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.timeline import Instant
from memkit.units import format_bytes
from memkit.widgets.explorer import Choice, Explorer, Number, View

LENGTHS, MAX_BARS = (128, 512, 1024, 2048, 4096, 8192, 16384), 12
FOOT = "sequences in a micro-batch × micro-batches in a step; above the bars: peak"
MODELS = [name for name, model in PUBLISHED_MODELS.items() if model.max_seq_len >= LENGTHS[0]]


class BatchPlanner(Explorer):
    """Model, global batch, sequence, micro-batch, ranks and card → accumulation steps, peak and relative time."""

    controls: ClassVar = {
        "model": Choice("Model", MODELS, "Llama-3.2-1B"),
        "precision": Choice("Precision", list(PRECISIONS), PURE_BF16.name),
        "global_batch_tokens": Number("Tokens a step", 2**22, low=2**16, high=2**23, step=2**16),
        "seq_len": Choice("Sequence", list(LENGTHS), 8192),
        "micro_batch_size": Number("Micro-batch", 1, low=1, high=64),
        "dp_size": Number("Ranks", 8, low=1, high=64),
        "card": Choice("Card", list(CARDS), "H100 SXM"),
    }

    def offered(self, state: dict) -> dict[str, tuple]:
        """Only sequences that the model takes."""
        return {"seq_len": tuple(n for n in LENGTHS if n <= PUBLISHED_MODELS[state["model"]].max_seq_len)}

    def view(
        self,
        model: str,
        precision: str,
        global_batch_tokens: int,
        seq_len: int,
        micro_batch_size: int,
        dp_size: int,
        card: str,
    ) -> View:
        """The plan as a bar among the other ways to cut the same window."""
        config, own_card = PUBLISHED_MODELS[model], CARDS[card]
        plan, first = plan_or_nearest(global_batch_tokens, seq_len, micro_batch_size, dp_size)
        setup = TrainingSetup(
            model=config, precision=PRECISIONS[precision], optimizer=OptimizerConfig(implementation="fused")
        )
        own = planned_setup(setup, plan)
        capacity = own_card.memory_bytes
        shown = shown_choices(micro_batch_choices(setup, plan), own, capacity)
        layout = Layout(stage=0, dp_size=dp_size) if dp_size > 1 else None
        peaks = [peak_of(choice, layout) for choice in shown]
        seconds = [least_seconds(choice, own_card) for choice in shown]
        times = [second / min(seconds) for second in seconds]
        chosen = shown.index(own)
        sizes = [(choice.micro_batch_size, choice.grad_accum_steps) for choice in shown]
        above, foot = [f"{time:.2f} ×" for time in times], FOOT + ", and time ÷ the shortest"
        if len(set(above)) == 1:
            above, foot = [], FOOT + "; all take the same time by the card's rates"
        bars = {f"{size}\n× {steps}": peak for (size, steps), peak in zip(sizes, peaks, strict=True)}
        title = f"{plan.global_batch_tokens:,} tokens a step, {model}"
        subtitle = f"{seq_len} tokens a sequence, {dp_size} ranks, {precision}; dashed: {card}"
        chart = choices_figure(bars, title, subtitle, capacity, chosen, above, foot)
        rows = [
            (str(size), str(steps), format_bytes(peak.total_bytes), f"{time:.2f}")
            for (size, steps), peak, time in zip(sizes, peaks, times, strict=True)
        ]
        words = (
            first,
            *verdict(peaks, sizes, times, chosen, own_card),
            *buckets_in_words(own, peaks[chosen], dp_size),
        )
        table = (("micro-batch", "steps", "peak", "relative time"), *rows)
        return View(chart=chart, words=words, table=table)


def plan_or_nearest(tokens: int, seq_len: int, micro_batch_size: int, dp_size: int) -> tuple[BatchPlan, str]:
    """The plan and its sentence; where none is whole, the nearest one, named as such."""
    sizes = {"seq_len": seq_len, "micro_batch_size": micro_batch_size, "dp_size": dp_size}
    if tokens % prod(sizes.values()) == 0:
        plan = plan_batch(tokens, **sizes)
        return plan, f"{plan}."
    below, above = nearest_plans(tokens, **sizes)
    nearest = min((p for p in (below, above) if p), key=lambda p: abs(p.global_batch_tokens - tokens))
    one_pass, shown = prod(sizes.values()), f"{nearest.global_batch_tokens:,}"
    whole = f"{tokens:,} tokens are no whole number of passes of {one_pass:,}; shown are {shown}, the nearest"
    return nearest, f"{whole}: {nearest}."


def buckets_in_words(setup: TrainingSetup, peak: Instant, dp_size: int) -> tuple[str, ...]:
    """What DDP's buckets add to the peak of one rank; nothing on one rank alone."""
    if dp_size == 1:
        return ()
    added = format_bytes(peak.total_bytes - peak_of(setup).total_bytes)
    return (
        f"{added} of it are DDP's buckets, a second copy of the gradients; gradient_as_bucket_view=True saves it.",
    )


def shown_choices(choices: list[TrainingSetup], own: TrainingSetup, capacity: int) -> list[TrainingSetup]:
    """The ways to cut the window that are worth a bar: up to three cards' worth of memory, and the chosen one."""
    shown = [choice for choice in choices if choice == own or peak_of(choice).total_bytes <= 3 * capacity]
    return shown if len(shown) <= MAX_BARS else sorted({*shown[: MAX_BARS - 1], own}, key=shown.index)


def verdict(peaks, sizes, times, chosen: int, card: Card) -> tuple[str, ...]:
    """Whether it fits, and which micro-batch takes least time of those that should."""
    fits = [fit_on(card, peak.total_bytes) for peak in peaks]
    fitting = [number for number, fit in enumerate(fits) if fit.is_expected]
    if not fitting:
        return (
            f"Not even one sequence at a time fits on one {card.name}: accumulation divides activations only.",
        )
    best = min(fitting, key=lambda number: (round(times[number], 2), -number))
    size, steps = sizes[best]
    least = (
        f"Of those that fit, {size} × {steps} takes least time by the card's rates: all do the same arithmetic, and a "
        "micro-batch of few tokens waits for the weights."
    )
    if len({round(times[number], 2) for number in fitting}) == 1:
        least = (
            f"By the card's rates those that fit take the same time; {size} × {steps} has the fewest passes."
        )
    return f"Its peak is {format_bytes(peaks[chosen].total_bytes)}. {fits[chosen]}", least
