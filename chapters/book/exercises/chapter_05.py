"""The exercises of chapter 05: gradient accumulation, equal to the big batch, and its price."""

import torch

from book.exercises import ChoiceExercise, FunctionExercise, JudgedExercise, NumberExercise
from book.exercises.answers import whole
from memkit.formula.estimate import second_step
from memkit.models import GPT2_MEDIUM
from memkit.recipes import FUSED_ADAMW
from memkit.setup import TrainingSetup
from memkit.units import GIB, format_bytes

CONTEXT_BYTES = GIB // 2


def token_weights(counts):
    """Each micro-batch's share of the window's target tokens."""
    return [count / sum(counts) for count in counts]


def steps_of(n, N):
    """The factor of each micro-batch's mean loss, for every window of an epoch."""
    full, rest = divmod(n, N)
    return [1 / N] * full + ([1 / rest] if rest else [])


def factor(own, of_rank, of_all, ranks):
    """Token weighting under DDP, which divides by the ranks."""
    return own * ranks / of_all


def peak_bytes(micro_batch_size: int, grad_accum_steps: int) -> int:
    """The predicted peak of exercise 5.7's window."""
    return second_step(
        TrainingSetup(
            model=GPT2_MEDIUM,
            optimizer=FUSED_ADAMW,
            seq_len=1024,
            micro_batch_size=micro_batch_size,
            grad_accum_steps=grad_accum_steps,
        )
    ).peak_bytes


def judge_cut(cut: object, num_sequences: int, card_bytes: int) -> str | None:
    """Whether a window of sequences of 1,024 tokens fits the card in the fewest forwards."""
    pair = tuple(map(whole, cut)) if isinstance(cut, (tuple, list)) else ()
    if not (len(pair) == 2 and all(type(n) is int and n > 0 for n in pair)):
        return (
            f"{cut!r} is not a pair of whole numbers above 0: (micro_batch_size, grad_accum_steps)."
        )
    size, steps = pair
    if size * steps != num_sequences:
        if size * steps == num_sequences * 1024:
            told = f"the window has {num_sequences} sequences."
            return f"{size} × {steps} are tokens. A sequence has 1,024 of them: {told}"
        wanted = f"{num_sequences * 1024:,} tokens are {num_sequences} sequences of 1,024."
        return f"{size} × {steps} = {size * steps} sequences; {wanted}"
    room = card_bytes - CONTEXT_BYTES
    if (peak := peak_bytes(size, steps)) > room:
        alone = peak_bytes(size, 1)
        text = f"It peaks at {format_bytes(peak)}; the room is {format_bytes(room)}."
        if alone <= room and steps > 1:
            return f"{text} The first micro-batch fits, at {format_bytes(alone)}; the second has the gradients besides."
        return text
    if (
        num_sequences % (2 * size) == 0
        and peak_bytes(2 * size, num_sequences // (2 * size)) <= room
    ):
        return f"It fits, at {format_bytes(peak)}. So do {2 * size} sequences at a time, in half as many forwards."
    return None


EXERCISES = (
    NumberExercise(
        id="5.1",
        letters={
            "tokens": 2_097_152,
            "s": 4096,
            "b": 4,
            "ranks": 16,
            "forward": "s * b * ranks",
            "steps": "tokens // forward",
        },
        formula="steps",
        unit="accumulation steps",
        because=(
            "{s:,} × {b} × {ranks} = {forward:,} tokens in one forward of all ranks; {steps} of them make "
            "{tokens:,}."
        ),
        table="""
        steps * ranks :: You left the ranks out: {ranks} of them see other tokens at the same time.
        steps * b :: You left the micro-batch out: a rank holds {b} sequences at a time.
        tokens // s :: That is the number of sequences. They come {b} × {ranks} at a time.
        tokens // s * ranks // b :: Of micro-batch and ranks you multiplied by one where you should divide.
        b * ranks :: That is the sequences of one forward, {b} × {ranks}, and not the number of forwards.
        tokens // ranks :: That is the tokens that one rank sees in the step.
        tokens // (b * ranks) :: You left the sequence's {s:,} tokens out.
        forward :: Those are the tokens of one forward. How many of them make a step?
        """,
    ),
    NumberExercise(
        id="5.2",
        letters={"P": 6_738_415_616, "steps": 64},
        formula="2 * P",
        tolerance=0.006,
        because="The gradients, 2 bytes a parameter, are in memory in every forward but the first: {2 * P:,} B.",
        table="""
        0 :: It is not free. What did the first micro-batch leave behind?
        P :: That is the number of gradients; each has 2 bytes.
        4 * P :: 4 bytes a gradient is float32. Here they are bfloat16.
        steps * 2 * P ; (steps - 1) * 2 * P :: The micro-batches add into one gradient. {steps} of them need no more
            room than 2.
        8 * P :: 8 bytes a parameter are Adam's two float32 states; they are there with or without accumulation.
        """,
    ),
    FunctionExercise(
        id="5.3",
        right=token_weights,
        hides_results=True,
        tolerance=1e-6,
        probes=(([3, 17, 40, 8],), ([5, 5],), ([7],)),
        letters={"torch": torch},
        also=("torch.tensor(counts) / sum(counts)",),
        because="A token counts the same in every micro-batch.",
        table="""
        [1 / len(counts) for _ in counts] :: The mean of means: a token of a short micro-batch counts more than one of
            a long.
        [1 / sum(counts) for _ in counts] :: model(...) returns a mean over its own tokens. Turn it into a sum first:
            times its count.
        list(counts) :: That gives the sum over all tokens. Divide by their number.
        [sum(counts) / count for count in counts] :: Upside down: that gives the short micro-batches the large
            factors.
        [count / max(counts) for count in counts] :: The largest has the factor 1, so they do not sum to 1. Divide by
            the sum of the counts.
        [count * len(counts) / sum(counts) for count in counts] :: They sum to the number of micro-batches: the
            gradient is that many times too large.
        [count / sum(counts) / len(counts) for count in counts] :: The shares are right; you divided by the number of
            micro-batches as well.
        [1 / count / sum(1 / c for c in counts) for count in counts] :: Upside down: the short micro-batches get the
            large shares.
        [1 / count for count in counts] :: A micro-batch's loss is a mean already; 1 ÷ its count divides a second
            time.
        """,
    ),
    FunctionExercise(
        id="5.4",
        right=steps_of,
        hides_results=True,
        tolerance=1e-6,
        probes=((10, 4), (8, 4), (3, 4), (9, 4), (5, 1)),
        because="The last window is short and is a mean of its own.",
        table="""
        [1 / N] * (n // N) :: The rest of the epoch is never stepped. steps_of(10, 4) has three steps.
        [1 / N] * -(-n // N) :: Every window is stepped, but the last of (10, 4) has 2 of them: over 4 it is half a
            mean.
        [1 / N] * (n // N) + [1 / max(n % N, 1)] :: (8, 4) has no short window, and yours steps a third time, on
            nothing.
        [1 / N] * (n // N) + [1 / (n % N or N)] :: (8, 4) has no micro-batch left over, and yours adds a third window.
        [-(-n // N) / n] * -(-n // N) :: You cut the epoch into equal windows. A window has N micro-batches, and only
            the last is shorter.
        [round(1 / min(N, n - i), 3) for i in range(0, n, N)] :: You rounded. Return 1 ÷ length as it comes.
        [1 / N] * (n // N) + [1 / (n % N) if n % N else 0] :: (8, 4) has two windows, and yours adds a third with the
            factor 0. Leave it out where no micro-batch is left over.
        [1 / N] * (n // N - 1) + [1 / (N + n % N)] :: You gave the rest to the last full window. It is a window of its
            own, with a step of its own.
        [N / n] * (n // N) + ([n % N / n] if n % N else []) :: Those are the windows' shares of the epoch. Each window
            is a mean of its own.
        [1 / n] * -(-n // N) :: You divide by the epoch. The optimizer steps once a window.
        [1 / N] * (n - n % N) + [1 / (n % N or 1)] * (n % N) :: That is one factor a micro-batch; the question asks
            for one per optimizer step.
        [1 / N] * n :: One factor a micro-batch, and each 1 / N. Asked is one per optimizer step; the last window is
            short.
        [N] * (n // N) + ([n % N] if n % N else []) :: Those are the lengths of the windows. The loss is multiplied by
            1 ÷ length.
        [1 / N] * (n // N) + ([n % N / N] if n % N else []) ; [1 / N] * (n // N) + [n % N / N] :: The short window's
            share of a full one: its micro-batches need 1 ÷ their own number.
        [1] * (n // N) + ([n % N / N] if n % N else []) :: The windows' shares of a full one, and no means: each loss
            of a window is multiplied by 1 ÷ the number of its micro-batches.
        [1 / N] * (n // N) + ([n % N / N**2] if n % N else []) :: The short window counts for its share twice over:
            its micro-batches need 1 ÷ their own number, and nothing else.
        [1 / N] * (n // N) + ([N / (n % N)] if n % N else []) :: N ÷ rest is by how much the broken loop's factor for
            the short window is too small. The factor itself is 1 ÷ rest.
        [[1 / min(N, n - i)] * min(N, n - i) for i in range(0, n, N)] :: The factors are right. Return each once for
            its optimizer step, not in a list of its own.
        """,
    ),
    FunctionExercise(
        id="5.5",
        right=factor,
        tolerance=1e-6,
        probes=((3, 20, 50, 2), (17, 20, 50, 2), (8, 64, 512, 8)),
        because="DDP's mean over ranks and this factor give each token 1 ÷ of_all.",
        table="""
        own / of_rank :: The broken version: a token of the rank with fewer tokens counts more.
        own / of_all :: The right share; then DDP divides by the ranks again: the gradient is that much too small.
        own * 2 / of_all :: Right for two ranks. Take their number from ranks, and it holds for any.
        own / (of_all * ranks) :: DDP divides by the ranks already. Multiply it back.
        own * ranks / of_rank :: of_rank counts this rank's tokens only; the mean is over all ranks' tokens.
        of_rank * ranks / of_all :: That is the share of the whole window, given to every micro-batch of it.
        ranks / of_all :: The mean loss of a micro-batch becomes a sum by its own count: it is missing.
        own / (of_rank * ranks) :: Two slips: the tokens are all ranks', and DDP divides by the ranks already.
        of_rank / of_all :: That is the rank's share of all tokens. Take this micro-batch's, and think of DDP's mean.
        """,
    ),
    ChoiceExercise(
        id="5.6",
        right="d",
        because="7 B gradients of 4 bytes, whole on every rank until the last micro-batch.",
        table="""
        a :: That is a shard, 28 GB ÷ 8. Who reduced and scattered it?
        b :: That is 1 byte a gradient. They are float32.
        c :: That is bfloat16. They are kept in the dtype in which they will be reduced.
        """,
    ),
    JudgedExercise(
        id="5.7",
        judge=judge_cut,
        letters={"num_sequences": 64, "card_bytes": 27 * GIB // 2},
        because="With twice the micro-batch the second forward, in which the gradients are in memory, does not fit.",
    ),
)
