"""The batch planner (chapter 05): a batch in tokens → micro-batches, steps and ranks that fit."""

from dataclasses import replace
from math import prod

from memkit.fitting.batch_plan import BatchPlan, cuts_of, nearest_plans
from memkit.fitting.plan import TrainingPlan, plan_of
from memkit.fitting.step import least_seconds, peak_of
from memkit.hardware.cards import CARDS
from memkit.setup.layouts import Layout
from memkit.setup.models import PUBLISHED_MODELS
from memkit.setup.recipes import FUSED_ADAMW, PRECISIONS, PURE_BF16
from memkit.setup.training import TrainingSetup
from memkit.units import format_bytes
from memkit.widgets.explorer import Choice, Explorer, Number, View, model_takes
from memkit.widgets.plan_bars import plans_view

LENGTHS, MAX_BARS = (128, 512, 1024, 2048, 4096, 8192, 16384), 12
FOOT = "sequences in a micro-batch × micro-batches in a step; above the bars: peak"
MODELS = [name for name, model in PUBLISHED_MODELS.items() if model.max_seq_len >= LENGTHS[0]]


class BatchPlanner(Explorer, status=(230, 106, 180, 147, 112)):
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
        batch, first = nearest(global_batch_tokens, **sizes)
        setup = TrainingSetup(
            model=PUBLISHED_MODELS[model], precision=PRECISIONS[precision], seq_len=batch.seq_len,
            micro_batch_size=batch.micro_batch_size, grad_accum_steps=batch.grad_accum_steps,
            optimizer=FUSED_ADAMW,
        )
        own = plan_of(setup, CARDS[card], Layout(stage=0, dp_size=batch.dp_size) if batch.dp_size > 1 else None)
        plans = {name_of(plan): plan for plan in shown_plans(own)}
        seconds = {cut: least_seconds(plan.setup, plan.card) for cut, plan in plans.items()}
        times = {cut: f"{each / min(seconds.values()):.2f}" for cut, each in seconds.items()}
        above, foot = [f"{time} ×" for time in times.values()], FOOT + ", and time ÷ the shortest"
        if len(set(above)) == 1:
            above, foot = [], FOOT + "; all take the same time"
        return plans_view(
            plans, f"{batch.global_batch_tokens:,} tokens a step, {model}",
            f"{batch.seq_len:,} tokens in a sequence, {batch.dp_size} ranks, {precision}",
            (first, *quickest(plans, times), *buckets_in_words(own)), above=above, foot=foot,
            chosen=name_of(own), columns={"relative time": list(times.values())},
        )


def nearest(tokens: int, **sizes: int) -> tuple[BatchPlan, str]:
    """The batch and its sentence; where it is no whole number of forwards, the nearest one, named as such."""
    plan = min(nearest_plans(tokens, **sizes), key=lambda p: abs(p.global_batch_tokens - tokens))
    if plan.global_batch_tokens == tokens:
        return plan, f"{plan}."
    one_pass, shown = prod(sizes.values()), f"{plan.global_batch_tokens:,}"
    whole = f"{tokens:,} tokens are not a whole number of forwards of {one_pass:,}; shown are {shown}, the nearest"
    return plan, f"{whole}: {plan}."


def name_of(plan: TrainingPlan) -> str:
    """Sequences in a micro-batch × micro-batches."""
    return f"{plan.setup.micro_batch_size}\n× {plan.setup.grad_accum_steps}"


def shown_plans(own: TrainingPlan) -> list[TrainingPlan]:
    """The ways to cut the window that are worth a bar: 1, 2, 4, ... sequences, all, and the chosen number.

    Those that take more than three cards are left out, and so are the last if there are too many.
    """
    plans, num_sequences = [], own.setup.micro_batch_size * own.setup.grad_accum_steps
    for size, steps in cuts_of(num_sequences):
        is_round = size & (size - 1) == 0 or size == num_sequences
        plan = replace(own, setup=replace(own.setup, micro_batch_size=size, grad_accum_steps=steps))
        if plan == own or (is_round and peak_of(plan.setup).total_bytes <= 3 * own.card.memory_bytes):
            plans.append(plan)
    if len(plans) <= MAX_BARS:
        return plans
    return [plan for plan in plans if plan == own or plan in plans[: MAX_BARS - 1]]


def quickest(plans: dict[str, TrainingPlan], times: dict[str, str]) -> list[str]:
    """Which of those that fit takes least time; of equals the one with the fewest passes."""
    fitting = [cut for cut, plan in plans.items() if plan.fits]
    if not fitting:
        return ["Accumulation divides activations only, so no smaller micro-batch helps."]
    best = min(reversed(fitting), key=lambda cut: float(times[cut])).replace("\n", " ")
    if len({times[cut] for cut in fitting}) == 1:
        return [f"By the card's rates those that fit take the same time; {best} has the fewest passes."]
    why = "all do the same arithmetic, and a micro-batch of few tokens waits for the weights"
    return [f"Of those that fit, {best} takes least time by the card's rates: {why}."]


def buckets_in_words(own: TrainingPlan) -> list[str]:
    """What DDP's buckets add to the peak of one rank; nothing on one rank alone."""
    if own.layout is None:
        return []
    added = format_bytes(own.peak_bytes - peak_of(own.setup).total_bytes)
    buckets = f"{added} of the peak are DDP's buckets, a second copy of the gradients"
    return [f"{buckets}; gradient_as_bucket_view=True saves it."]
