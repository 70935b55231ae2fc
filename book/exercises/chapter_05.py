"""The exercises of chapter 05: gradient accumulation, equal to the big batch, and its price."""

import torch

from book.exercises import ChoiceExercise, FunctionExercise, JudgedExercise, NumberExercise
from memkit.fitting.batch_plan import peak_of, plan_batch
from memkit.setup.models import GPT2_MEDIUM
from memkit.setup.recipes import OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.units import GIB, format_bytes

LLAMA_2_7B_PARAMETERS = 6_738_415_616
CARD_BYTES, CONTEXT_BYTES, NUM_SEQUENCES = 27 * GIB // 2, GIB // 2, 64


def token_weights(counts):
    """Each micro-batch's share of the window's target tokens."""
    return [count / sum(counts) for count in counts]


def steps_of(num_batches, N):
    """The factor of each micro-batch's mean loss, for every window of an epoch."""
    full, rest = divmod(num_batches, N)
    return [1 / N] * full + ([1 / rest] if rest else [])


def factor(own, of_rank, of_all, ranks):
    """Token weighting under DDP, which divides by the ranks."""
    return own * ranks / of_all


def peak_bytes(micro_batch_size: int, grad_accum_steps: int) -> int:
    """The predicted peak of exercise 5.7's window."""
    fused = OptimizerConfig(implementation="fused")
    return peak_of(
        TrainingSetup(
            model=GPT2_MEDIUM, optimizer=fused, seq_len=1024, micro_batch_size=micro_batch_size,
            grad_accum_steps=grad_accum_steps,
        )
    ).total_bytes  # fmt: skip


def judge_cut(cut: object, num_sequences: int = NUM_SEQUENCES, card_bytes: int = CARD_BYTES) -> str | None:
    """Whether a window of sequences of 1,024 tokens fits the card in the fewest forwards."""
    if not (isinstance(cut, (tuple, list)) and len(cut) == 2 and all(type(n) is int and n > 0 for n in cut)):
        return f"{cut!r} is not a pair of whole numbers above 0: (micro_batch_size, grad_accum_steps)."
    size, steps = cut
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
            return f"{text} The first micro-batch fits, at {format_bytes(alone)}; the second finds the gradients there."
        return text
    if num_sequences % (2 * size) == 0 and peak_bytes(2 * size, num_sequences // (2 * size)) <= room:
        return f"It fits, at {format_bytes(peak)}. So do {2 * size} sequences at a time, in half as many forwards."
    return None


def window_exercise(tokens: int, seq_len: int, micro_batch_size: int, ranks: int) -> NumberExercise:
    """Exercise 5.1 with other numbers."""
    plan = plan_batch(tokens, seq_len=seq_len, micro_batch_size=micro_batch_size, dp_size=ranks)
    steps, forward = plan.grad_accum_steps, seq_len * micro_batch_size * ranks
    return NumberExercise(
        id="5.1",
        title="Steps of a window",
        right=steps,
        unit="accumulation steps",
        because=f"{seq_len:,} × {micro_batch_size} × {ranks} = {forward:,} tokens in one forward of all ranks; "
        f"{steps} of them make {tokens:,}.",
        mistakes=(
            (steps * ranks, f"You left the ranks out: {ranks} of them see other tokens at the same time."),
            (
                steps * micro_batch_size,
                f"You left the micro-batch out: a rank holds {micro_batch_size} sequences at a time.",
            ),
            (
                tokens // seq_len,
                f"That is the number of sequences. They come {micro_batch_size} × {ranks} at a time.",
            ),
            (
                tokens // seq_len * ranks // micro_batch_size,
                "Of micro-batch and ranks you multiplied by one where you should divide.",
            ),
            (
                micro_batch_size * ranks,
                f"That is the sequences of one forward, {micro_batch_size} × {ranks}, and not the number of forwards.",
            ),
            (tokens // ranks, "That is the tokens that one rank sees in the step."),
            (tokens // (micro_batch_size * ranks), f"You left the sequence's {seq_len:,} tokens out."),
            (forward, "Those are the tokens of one forward. How many of them make a step?"),
        ),
    )


def gradients_exercise(num_parameters: int, steps: int) -> NumberExercise:
    """Exercise 5.2 for another model and window."""
    P = num_parameters
    return NumberExercise(
        id="5.2",
        title="What it adds to the peak",
        right=2 * P,
        tolerance=0.005,
        because=f"The gradients, 2 bytes a parameter, stand in every forward but the first: {2 * P:,} B.",
        mistakes=(
            (0, "It is not free. What did the first micro-batch leave behind?"),
            (P, "That is the number of gradients; each has 2 bytes."),
            (4 * P, "4 bytes a gradient is float32. Here they are bfloat16."),
            (
                steps * 2 * P,
                f"The micro-batches add into one gradient. {steps} of them need no more room than 2.",
            ),
            (
                (steps - 1) * 2 * P,
                f"The micro-batches add into one gradient. {steps} of them need no more room than 2.",
            ),
            (
                8 * P,
                "8 bytes a parameter are Adam's two float32 states; they stand with or without accumulation.",
            ),
        ),
    )


EXERCISES = (
    window_exercise(2_097_152, 4096, 4, 16),
    gradients_exercise(LLAMA_2_7B_PARAMETERS, 64),
    FunctionExercise(
        id="5.3",
        title="The weights of a window",
        right=token_weights,
        accepted=(lambda counts: torch.tensor(counts) / sum(counts),),
        probes=(([3, 17, 40, 8],), ([5, 5],), ([7],)),
        tolerance=1e-6,
        because="A token counts the same, in whichever micro-batch it stands.",
        mistakes=(
            (
                lambda counts: [1 / len(counts) for _ in counts],
                "The mean of means: a token of a short micro-batch counts more than one of a long.",
            ),
            (
                lambda counts: [1 / sum(counts) for _ in counts],
                "model(...) returns a mean over its own tokens. Turn it into a sum first: times its count.",
            ),
            (lambda counts: list(counts), "That gives the sum over all tokens. Divide by their number."),
            (
                lambda counts: [sum(counts) / count for count in counts],
                "Upside down: that gives the short micro-batches the large factors.",
            ),
            (
                lambda counts: [count / max(counts) for count in counts],
                "The largest has the factor 1, so they do not sum to 1. Divide by the sum of the counts.",
            ),
            (
                lambda counts: [count * len(counts) / sum(counts) for count in counts],
                "They sum to the number of micro-batches: the gradient is that many times too large.",
            ),
            (
                lambda counts: [count / sum(counts) / len(counts) for count in counts],
                "The shares are right; you divided by the number of micro-batches as well.",
            ),
            (
                lambda counts: [1 / count for count in counts],
                "A micro-batch's loss is a mean already; 1 ÷ its count divides a second time.",
            ),
        ),
    ),
    FunctionExercise(
        id="5.4",
        title="Repair: the last window",
        right=steps_of,
        probes=((10, 4), (8, 4), (3, 4), (9, 4), (5, 1)),
        tolerance=1e-9,
        because="The last window is short and is a mean of its own.",
        mistakes=(
            (
                lambda num_batches, N: [1 / N] * (num_batches // N),
                "The rest of the epoch is never stepped. steps_of(10, 4) has three steps.",
            ),
            (
                lambda num_batches, N: [1 / N] * -(-num_batches // N),
                "Every window is stepped, but the last of (10, 4) has 2 of them: over 4 it is half a mean.",
            ),
            (
                lambda num_batches, N: [1 / N] * (num_batches // N) + [1 / max(num_batches % N, 1)],
                "(8, 4) has no short window, and yours steps a third time, on nothing.",
            ),
            (
                lambda num_batches, N: [1 / num_batches] * -(-num_batches // N),
                "You divide by the epoch. The optimizer steps once a window.",
            ),
            (
                lambda num_batches, N: (
                    [1 / N] * (num_batches - num_batches % N) + [1 / (num_batches % N or 1)] * (num_batches % N)
                ),
                "That is one factor a micro-batch; the question asks for one per optimizer step.",
            ),
            (
                lambda num_batches, N: [1 / N] * num_batches,
                "One factor a micro-batch, and each 1 / N. Asked is one per optimizer step; the last window is short.",
            ),
            (
                lambda num_batches, N: [N] * (num_batches // N) + ([num_batches % N] if num_batches % N else []),
                "Those are the lengths of the windows. The loss is multiplied by 1 ÷ length.",
            ),
            (
                lambda num_batches, N: (
                    [1 / N] * (num_batches // N) + ([num_batches % N / N] if num_batches % N else [])
                ),
                "The short window's share of a full one: its micro-batches need 1 ÷ their own number.",
            ),
            (
                lambda num_batches, N: [
                    [1 / min(N, num_batches - i)] * min(N, num_batches - i) for i in range(0, num_batches, N)
                ],
                "The factors are right. Return each once for its optimizer step, not in a list of its own.",
            ),
        ),
    ),
    FunctionExercise(
        id="5.5",
        title="Repair: ranks and tokens",
        right=factor,
        probes=((3, 20, 50, 2), (17, 20, 50, 2), (8, 64, 512, 8)),
        tolerance=1e-9,
        because="DDP's mean over ranks and this factor give each token 1 ÷ of_all.",
        mistakes=(
            (
                lambda own, of_rank, of_all, ranks: own / of_rank,
                "The broken version: a token of the rank with fewer tokens counts more.",
            ),
            (
                lambda own, of_rank, of_all, ranks: own / of_all,
                "The right share; then DDP divides by the ranks again: the gradient is that much too small.",
            ),
            (
                lambda own, of_rank, of_all, ranks: own / (of_all * ranks),
                "DDP divides by the ranks already. Multiply it back.",
            ),
            (
                lambda own, of_rank, of_all, ranks: own * ranks / of_rank,
                "of_rank counts this rank's tokens only; the mean is over all ranks' tokens.",
            ),
            (
                lambda own, of_rank, of_all, ranks: of_rank * ranks / of_all,
                "That is the share of the whole window, given to every micro-batch of it.",
            ),
            (
                lambda own, of_rank, of_all, ranks: ranks / of_all,
                "The mean loss of a micro-batch becomes a sum by its own count: it is missing.",
            ),
            (
                lambda own, of_rank, of_all, ranks: own / (of_rank * ranks),
                "Two slips: the tokens are all ranks', and DDP divides by the ranks already.",
            ),
            (
                lambda own, of_rank, of_all, ranks: of_rank / of_all,
                "That is the rank's share of all tokens. Take this micro-batch's, and think of DDP's mean.",
            ),
        ),
    ),
    ChoiceExercise(
        id="5.6",
        title="What a rank keeps",
        right="d",
        accepted=("D", "(d)", "d."),
        because="7 B gradients of 4 bytes, whole on every rank until the last micro-batch.",
        mistakes=(
            ("a", "That is a shard, 28 GB ÷ 8. Who reduced and scattered it?"),
            ("b", "That is 1 byte a gradient. They are float32."),
            ("c", "That is bfloat16. They are kept in the dtype in which they will be reduced."),
        ),
    ),
    JudgedExercise(
        id="5.7",
        title="A window under a limit",
        judge=judge_cut,
        because="One step larger and the second micro-batch, which finds the gradients there, does not fit.",
    ),
)
