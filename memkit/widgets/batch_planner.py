"""The batch planner (chapter 05): a batch in tokens → micro-batches, steps and ranks that fit."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from memkit.batch_plan import BatchPlan, cuts_of, least_seconds, nearest_plans
from memkit.cards import CARDS, Card
from memkit.fit import fit_on
from memkit.formats.records import tensor_bytes
from memkit.formula.estimate import second_step
from memkit.formula.parameters import count_parameters
from memkit.models import PUBLISHED_MODELS
from memkit.recipes import FUSED_ADAMW, PRECISIONS, PURE_BF16
from memkit.setup import TrainingSetup
from memkit.units import format_bytes, round_up
from memkit.widgets.explorer import Choice, Explorer, Number, View, choices_view, takes_length

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
        seq_len=Choice("Sequence", LENGTHS, 8192, takes_length(PUBLISHED_MODELS)),
        micro_batch_size=Number("Micro-batch", 1, low=1, high=64),
        dp_size=Number("Ranks", 8, low=1, high=64),
        card=Choice("Card", CARDS, "H100 SXM"),
    ) -> View:
        """The plan as a bar among the other ways to cut the same window."""
        sizes = {"seq_len": seq_len, "micro_batch_size": micro_batch_size}
        batch, first = nearest(global_batch_tokens, **sizes, dp_size=dp_size)
        words = [first]
        own = TrainingSetup(
            model=PUBLISHED_MODELS[model],
            precision=PRECISIONS[precision],
            grad_accum_steps=batch.grad_accum_steps,
            optimizer=FUSED_ADAMW,
            **sizes,
        )
        # DDP's buckets, a second copy of the gradients on each of several ranks (chapter 11)
        weights = tensor_bytes(count_parameters(own.model), own.precision.weight_dtype)
        buckets = round_up(weights) if dp_size > 1 else 0
        card, peaks, seconds = CARDS[card], {}, {}
        for cut in shown_cuts(own, card):
            peak, name = second_step(cut).peak, name_of(cut)
            peaks[name] = replace(
                peak, gradients=peak.gradients + buckets, total_bytes=peak.total_bytes + buckets
            )
            seconds[name] = least_seconds(cut, card)
        times = {name: f"{each / min(seconds.values()):.2f}" for name, each in seconds.items()}
        above, foot = [f"{time} ×" for time in times.values()], FOOT + ", and time ÷ the shortest"
        if len(set(above)) == 1:
            above, foot = [], FOOT + "; all take the same time"
        sizes = {name: peak.total_bytes for name, peak in peaks.items()}
        words.append(quickest([n for n in sizes if fit_on(card, sizes[n]).is_expected], times))
        if buckets:
            copy = f"{format_bytes(buckets)} of the peak are DDP's buckets, a second copy of the gradients"
            words.append(f"{copy}; gradient_as_bucket_view=True saves it.")
        return choices_view(
            peaks,
            card,
            f"{batch.global_batch_tokens:,} tokens a step, {model}",
            f"{seq_len:,} tokens in a sequence, {dp_size} ranks, {precision}",
            words,
            chosen=name_of(own),
            above=above,
            foot=foot,
            columns={"relative time": list(times.values())},
        )


def nearest(tokens: int, **sizes: int) -> tuple[BatchPlan, str]:
    """The batch and its sentence; where it is no whole number of forwards, the nearest one, named as such."""
    plan = min(nearest_plans(tokens, **sizes), key=lambda p: abs(p.global_batch_tokens - tokens))
    if plan.global_batch_tokens == tokens:
        return plan, f"{plan}."
    one_pass, shown = f"{prod(sizes.values()):,}", f"{plan.global_batch_tokens:,}, the nearest"
    whole = f"{tokens:,} tokens are not a whole number of forwards of {one_pass}"
    return plan, f"{whole}; shown are {shown}: {plan}."


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
    most = MAX_BARS if len(cuts) <= MAX_BARS else MAX_BARS - 1
    return [cut for number, cut in enumerate(cuts) if cut == own or number < most]


def quickest(fitting: Sequence[str], times: dict[str, str]) -> str:
    """Which of those that fit takes least time; of equals the one with the fewest passes."""
    if not fitting:
        return "Accumulation divides activations only, so no smaller micro-batch helps."
    best = min(reversed(fitting), key=lambda cut: float(times[cut])).replace("\n", " ")
    if len({times[cut] for cut in fitting}) == 1:
        same = "By the card's rates those that fit take the same time"
        return f"{same}; {best} has the fewest passes."
    why = "all do the same arithmetic, and a micro-batch of few tokens waits for the weights"
    return f"Of those that fit, {best} takes least time by the card's rates: {why}."
