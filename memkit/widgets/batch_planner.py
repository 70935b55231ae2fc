"""The batch planner: a global batch in tokens → micro-batches, accumulation steps and ranks that a card holds."""

from dataclasses import replace
from math import prod

from memkit.fitting.batch_plan import BatchPlan, cuts_of, nearest_plans, plan_batch
from memkit.fitting.plans import TrainingPlan, plan_of
from memkit.fitting.step import least_seconds, peak_of
from memkit.hardware.cards import CARDS
from memkit.pictures.timeline import choices_figure
from memkit.setup.layouts import Layout
from memkit.setup.models import PUBLISHED_MODELS
from memkit.setup.recipes import FUSED_ADAMW, PRECISIONS, PURE_BF16
from memkit.setup.training import TrainingSetup
from memkit.units import format_bytes
from memkit.widgets.explorer import Choice, Explorer, Number, View, model_takes

LENGTHS, MAX_BARS = (128, 512, 1024, 2048, 4096, 8192, 16384), 12
FOOT = "sequences in a micro-batch × micro-batches in a step; above the bars: peak"
MODELS = [name for name, model in PUBLISHED_MODELS.items() if model.max_seq_len >= LENGTHS[0]]


class BatchPlanner(Explorer):
    """Model, global batch, sequence, micro-batch, ranks and card → accumulation steps, peak and relative time."""

    def view(
        self,
        model=Choice("Model", MODELS, "Llama-3.2-1B"),
        precision=Choice("Precision", PRECISIONS, PURE_BF16.name),
        global_batch_tokens=Number("Tokens a step", 2**22, low=2**16, high=2**23, step=2**16),
        seq_len=Choice("Sequence", LENGTHS, 8192, model_takes),
        micro_batch_size=Number("Micro-batch", 1, low=1, high=64),
        dp_size=Number("Ranks", 8, low=1, high=64),
        card=Choice("Card", CARDS, "H100 SXM"),
    ) -> View:
        """The plan as a bar among the other ways to cut the same window."""
        sizes = {"seq_len": seq_len, "micro_batch_size": micro_batch_size, "dp_size": dp_size}
        batch, first = plan_or_nearest(global_batch_tokens, **sizes)
        setup = TrainingSetup(
            model=PUBLISHED_MODELS[model], precision=PRECISIONS[precision], seq_len=batch.seq_len,
            micro_batch_size=batch.micro_batch_size, grad_accum_steps=batch.grad_accum_steps,
            optimizer=FUSED_ADAMW,
        )
        own = plan_of(setup, CARDS[card], Layout(stage=0, dp_size=batch.dp_size) if batch.dp_size > 1 else None)
        plans = {cut_of(plan): plan for plan in shown_plans(own)}
        seconds = {cut: least_seconds(plan.setup, plan.card) for cut, plan in plans.items()}
        times = {cut: each / min(seconds.values()) for cut, each in seconds.items()}
        above, foot = [f"{time:.2f} ×" for time in times.values()], FOOT + ", and time ÷ the shortest"
        if len(set(above)) == 1:
            above, foot = [], FOOT + "; all take the same time"
        title = f"{batch.global_batch_tokens:,} tokens a step, {model}"
        subtitle = f"{batch.seq_len:,} tokens in a sequence, {batch.dp_size} ranks, {precision}; dashed: {card}"
        bars = {f"{size}\n× {steps}": plan.peak for (size, steps), plan in plans.items()}
        chosen = list(plans).index(cut_of(own))
        chart = choices_figure(bars, title, subtitle, own.card.memory_bytes, chosen, above, foot)
        table = [("micro-batch", "steps", "peak", "relative time")]
        for (size, steps), plan in plans.items():
            table.append((str(size), str(steps), format_bytes(plan.peak_bytes), f"{times[size, steps]:.2f}"))
        words = (first, *verdict(own, plans, times), *buckets_in_words(own))
        return View(chart=chart, words=words, table=table)


def plan_or_nearest(tokens: int, **sizes: int) -> tuple[BatchPlan, str]:
    """The batch and its sentence; where none is whole, the nearest one, named as such."""
    if tokens % prod(sizes.values()) == 0:
        plan = plan_batch(tokens, **sizes)
        return plan, f"{plan}."
    nearest = min(filter(None, nearest_plans(tokens, **sizes)), key=lambda p: abs(p.global_batch_tokens - tokens))
    one_pass, shown = prod(sizes.values()), f"{nearest.global_batch_tokens:,}"
    whole = f"{tokens:,} tokens are not a whole number of forwards of {one_pass:,}; shown are {shown}, the nearest"
    return nearest, f"{whole}: {nearest}."


def cut_of(plan: TrainingPlan) -> tuple[int, int]:
    """Sequences in a micro-batch, and micro-batches."""
    return plan.setup.micro_batch_size, plan.setup.grad_accum_steps


def shown_plans(own: TrainingPlan) -> list[TrainingPlan]:
    """The ways to cut the window that are worth a bar: 1, 2, 4, ... sequences, all, and the chosen number.

    Those that take more than three cards are left out, and so are the last if there are too many.
    """
    num_sequences = prod(cut_of(own))
    plans = []
    for size, steps in cuts_of(num_sequences):
        is_round = size & (size - 1) == 0 or size == num_sequences
        plan = replace(own, setup=replace(own.setup, micro_batch_size=size, grad_accum_steps=steps))
        if plan == own or (is_round and peak_of(plan.setup).total_bytes <= 3 * own.card.memory_bytes):
            plans.append(plan)
    if len(plans) <= MAX_BARS:
        return plans
    return [plan for plan in plans if plan == own or plan in plans[: MAX_BARS - 1]]


def verdict(own: TrainingPlan, plans: dict[tuple, TrainingPlan], times: dict[tuple, float]) -> tuple[str, ...]:
    """Whether it fits, and which micro-batch takes least time of those that should."""
    fitting = {cut: round(times[cut], 2) for cut, plan in plans.items() if plan.fits}
    if not fitting:
        return (f"Not even one sequence at a time fits on one {own.card.name}: accumulation divides activations only.",)
    size, steps = min(fitting, key=lambda cut: (fitting[cut], -cut[0]))
    least = (
        f"Of those that fit, {size} × {steps} takes least time by the card's rates: all do the same arithmetic, and a "
        "micro-batch of few tokens waits for the weights."
    )
    if len(set(fitting.values())) == 1:
        least = f"By the card's rates those that fit take the same time; {size} × {steps} has the fewest passes."
    return f"Its peak is {format_bytes(own.peak_bytes)}. {own.fit}", least


def buckets_in_words(own: TrainingPlan) -> tuple[str, ...]:
    """What DDP's buckets add to the peak of one rank; nothing on one rank alone."""
    if own.layout is None:
        return ()
    added = format_bytes(own.peak_bytes - peak_of(own.setup).total_bytes)
    return (
        f"{added} of it are DDP's buckets, a second copy of the gradients; gradient_as_bucket_view=True saves it.",
    )
