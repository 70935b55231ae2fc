"""The batch planner (chapter 05): a batch in tokens → micro-batches and steps that fit."""

from dataclasses import replace
from math import prod

from memkit.fitting.batch_plan import BatchPlan, cuts_of, nearest_plans
from memkit.formats.dtypes import dtype_bits
from memkit.formula.estimate import second_step
from memkit.formula.parameters import count_parameters
from memkit.hardware.cards import CARDS, Card
from memkit.hardware.fit import fit_on, verdict
from memkit.pictures.timeline import choices_figure
from memkit.setup.models import PUBLISHED_MODELS
from memkit.setup.recipes import FUSED_ADAMW, PRECISIONS, PURE_BF16
from memkit.setup.training import TrainingSetup
from memkit.timeline import where
from memkit.units import format_bytes
from memkit.widgets.explorer import Choice, Explorer, Number, View, model_takes

LENGTHS, MAX_BARS = (128, 512, 1024, 2048, 4096, 8192, 16384), 12
FOOT = "sequences in a micro-batch × micro-batches in a step; above the bars: peak"
MODELS = [name for name, model in PUBLISHED_MODELS.items() if model.max_seq_len >= LENGTHS[0]]


class BatchPlanner(Explorer, status=(230, 106, 180, 147, 112)):
    """Model, batch, sequence, micro-batch and card → accumulation steps, peak and relative time."""

    def view(
        self,
        model=Choice("Model", MODELS, "Llama-3.2-1B"),
        precision=Choice("Precision", PRECISIONS, PURE_BF16.name),
        batch_tokens=Number("Tokens a step", 2**19, low=2**16, high=2**23, step=2**16),
        seq_len=Choice("Sequence", LENGTHS, 8192, model_takes),
        micro_batch_size=Number("Micro-batch", 1, low=1, high=64),
        card=Choice("Card", CARDS, "H100 SXM"),
    ) -> View:
        """The plan as a bar among the other ways to cut the same window."""
        batch, first = nearest(batch_tokens, seq_len=seq_len, micro_batch_size=micro_batch_size)
        own = TrainingSetup(
            model=PUBLISHED_MODELS[model], precision=PRECISIONS[precision], seq_len=batch.seq_len,
            micro_batch_size=batch.micro_batch_size, grad_accum_steps=batch.grad_accum_steps, optimizer=FUSED_ADAMW,
        )
        chosen = CARDS[card]
        plans = {name_of(setup): setup for setup in shown_cuts(own, chosen)}
        peaks = {name: second_step(setup).peak for name, setup in plans.items()}
        fits = {name: fit_on(chosen, peak.total_bytes) for name, peak in peaks.items()}
        seconds = {name: least_seconds(setup, chosen) for name, setup in plans.items()}
        times = {name: f"{each / min(seconds.values()):.2f}" for name, each in seconds.items()}
        above, foot = [f"{time} ×" for time in times.values()], FOOT + ", and time ÷ the shortest"
        if len(set(above)) == 1:
            above, foot = [], FOOT + "; all take the same time"
        name = name_of(own)
        chart = choices_figure(
            peaks, f"{batch.global_batch_tokens:,} tokens a step, {model}",
            f"{batch.seq_len:,} tokens in a sequence, {precision}; dashed: room on {card}",
            fits[name].room_bytes, list(plans).index(name), above, foot,
        )
        fitting = [cut for cut, fit in fits.items() if fit.is_expected]
        rows = [("plan", "peak", "at", "on the card", "relative time")]
        for cut, peak in peaks.items():
            size = format_bytes(peak.total_bytes)
            rows.append((cut.replace("\n", " "), size, where(peak), fits[cut].verdict, times[cut]))
        words = (verdict(peaks[name], card), those_that_fit(fitting, len(plans), card), first, quickest(fitting, times))
        return View(
            chart=chart, words=words, headline=fits[name].headline, fits=fits[name].is_expected, table=rows,
        )


def nearest(tokens: int, **sizes: int) -> tuple[BatchPlan, str]:
    """The batch and its sentence; where it is no whole number of forwards, the nearest one, named as such."""
    plan = min(nearest_plans(tokens, **sizes), key=lambda p: abs(p.global_batch_tokens - tokens))
    if plan.global_batch_tokens == tokens:
        return plan, f"{plan}."
    one_pass, shown = prod(sizes.values()), f"{plan.global_batch_tokens:,}"
    whole = f"{tokens:,} tokens are not a whole number of forwards of {one_pass:,}; shown are {shown}, the nearest"
    return plan, f"{whole}: {plan}."


def name_of(setup: TrainingSetup) -> str:
    """Sequences in a micro-batch × micro-batches."""
    return f"{setup.micro_batch_size}\n× {setup.grad_accum_steps}"


def shown_cuts(own: TrainingSetup, card: Card) -> list[TrainingSetup]:
    """The ways to cut the window that are worth a bar: 1, 2, 4, ... sequences, all, and the chosen number.

    Those that take more than three cards are left out, and so are the last if there are too many.
    """
    cuts, num_sequences = [], own.micro_batch_size * own.grad_accum_steps
    for size, steps in cuts_of(num_sequences):
        is_round = size & (size - 1) == 0 or size == num_sequences
        cut = replace(own, micro_batch_size=size, grad_accum_steps=steps)
        if cut == own or (is_round and second_step(cut).peak_bytes <= 3 * card.memory_bytes):
            cuts.append(cut)
    return cuts if len(cuts) <= MAX_BARS else [cut for cut in cuts if cut == own or cut in cuts[: MAX_BARS - 1]]


def least_seconds(setup: TrainingSetup, card: Card) -> float:
    """Seconds of a step's forwards and backwards that no kernel goes below on ``card``, by its data sheet's rates.

    6 FLOPs a token and parameter, and each weight read three times: the larger of the two times counts.
    """
    parameters, dtype = count_parameters(setup.model), setup.precision.compute_dtype
    rate = card.peak_tflops.get(dtype, card.peak_tflops["float32"]) * 10**12
    arithmetic = 6 * parameters * setup.tokens_per_micro_batch / rate
    weights = 3 * parameters * dtype_bits(dtype) / 8 / card.memory_bandwidth
    return setup.grad_accum_steps * max(arithmetic, weights)


def those_that_fit(fitting: list[str], num_cuts: int, card: str) -> str:
    """Which of the cuts fit the card."""
    if not fitting:
        return f"None of the {num_cuts} fits one {card}: accumulation divides activations only."
    return f"Of the {num_cuts} fit one {card}, as expected: {'; '.join(fitting)}.".replace("\n", " ")


def quickest(fitting: list[str], times: dict[str, str]) -> str:
    """Which of those that fit takes least time; of equals the one with the fewest passes."""
    if not fitting:
        return "No smaller micro-batch helps."
    best = min(reversed(fitting), key=lambda cut: float(times[cut])).replace("\n", " ")
    if len({times[cut] for cut in fitting}) == 1:
        return f"By the card's rates those that fit take the same time; {best} has the fewest passes."
    why = "all do the same arithmetic, and a micro-batch of few tokens waits for the weights"
    return f"Of those that fit, {best} takes least time by the card's rates: {why}."
