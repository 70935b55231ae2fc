"""The exercises of lesson 09: the highest moment, states in few bits, steps elsewhere, plans."""

from operator import itemgetter

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from book.exercises import ChoiceExercise, FunctionExercise, JudgedExercise, NumberExercise
from memkit.cards import CARDS
from memkit.measure import saved_bytes
from memkit.models import GPT2_XL, LLAMA_2_7B, LLAMA_2_13B, LLAMA_3_8B, LLAMA_32_1B
from memkit.program.hooks import tensors_in
from memkit.setup import TrainingSetup
from memkit.strategies import NONE
from memkit.units import GIB, format_bytes
from stepscope.planner.plan import TrainingPlan, plan_of

PRICES = {"T4": 1, "RTX 3090": 2, "RTX 4090": 3, "A100 SXM 40 GB": 5, "A100 SXM 80 GB": 9}
BUDGET = 20
JOBS = {
    "a": (GPT2_XL, 1024),
    "b": (LLAMA_32_1B, 4096),
    "c": (LLAMA_2_7B, 2048),
    "d": (LLAMA_3_8B, 2048),
    "e": (LLAMA_2_13B, 1024),
}
"""The design game: what a card costs, what there is to spend, and five jobs as (model, tokens of a sequence)."""


def standing(sizes, n, alone=None):
    """Gradient values in memory together with n micro-batches; ``alone``: those of a step in the backward."""
    return sum(sizes) if n > 1 else max(sizes) if alone is None else alone


def rest(sizes, states):
    """Bytes of weights in 16 bits and of states."""
    return (2 + states) * sum(sizes)


def model_bytes(sizes, states, n):
    """Bytes of weights, states and gradients at their highest, with n micro-batches."""
    return rest(sizes, states) + 2 * standing(sizes, n)


TOKENS, WORDS, WIDTH, PIECES = 64, 512, 16, 8


def whole_loss(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """The mean loss over the tokens that have a target, all logits at once."""
    return F.cross_entropy(hidden @ head.T, targets)


class LargestTensor(TorchDispatchMode):
    """The values of the largest tensor that an operation made while this is entered."""

    num_values = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.num_values = max([self.num_values, *(each.numel() for each in tensors_in(made))])
        return made


def judge_pieces(answer: object) -> str | None:
    """Whether a loss in pieces is that of all logits at once, keeps none of them, and makes a piece's at a time."""
    if not callable(answer):
        return f"{answer!r} is a {type(answer).__name__}; the answer is a function."
    generator = torch.Generator().manual_seed(0)
    hidden, head = (
        torch.randn(rows, WIDTH, generator=generator, requires_grad=True)
        for rows in (TOKENS, WORDS)
    )
    targets = torch.randint(WORDS, (TOKENS,), generator=generator)
    targets[TOKENS // 2 + 3 : -TOKENS // PIECES] = -100  # the pieces have 8, 3 and 0 targets
    given, wanted = answer(hidden, head, targets, PIECES), whole_loss(hidden, head, targets)
    if not (isinstance(given, Tensor) and given.numel() == 1):
        return f"You returned a {type(given).__name__}; the loss is a tensor of one value."
    if problem := _loss_problem(given, wanted, targets):
        return problem
    if not given.requires_grad:
        return "The loss is right, and no gradient can come from it."
    gradients = (
        torch.autograd.grad(loss, (hidden, head), allow_unused=True) for loss in (given, wanted)
    )
    for name, own, theirs in zip(("hidden", "head"), *gradients, strict=True):
        if own is None or not torch.allclose(own, theirs, rtol=1e-3, atol=1e-6):
            return f"The loss is right, and the gradient of {name} is not."
    with LargestTensor() as largest:
        answer(hidden, head, targets, PIECES)
    if largest.num_values > 2 * TOKENS * WORDS // PIECES:
        piece = f"{TOKENS * WORDS // PIECES:,}"
        return f"You make a tensor of {largest.num_values:,} values; the logits of a piece have {piece}."
    kept = saved_bytes(lambda: answer(hidden, head, targets, PIECES), (hidden, head, targets))
    if kept > TOKENS * WORDS:
        return (
            f"The loss is right, and {format_bytes(kept)} are kept for the backward: the logits of all pieces have "
            f"{format_bytes(4 * TOKENS * WORDS)}. Make each piece again there, with checkpoint."
        )
    return None


def _loss_problem(given: Tensor, wanted: Tensor, targets: Tensor) -> str | None:
    """What a loss is that is not the wanted one; ``None`` for the same."""
    count, value = (targets != -100).sum(), given.detach()
    if torch.isnan(value):
        return "Your loss is nan: a piece without a target has no mean. Add sums, and divide once."
    if torch.isclose(value, wanted, rtol=1e-5):
        return None
    if torch.isclose(value, wanted * count, rtol=1e-4):
        return f"That is the sum of the losses. Divide it once, by the {count} tokens that have a target."
    if torch.isclose(value, wanted * count / targets.numel(), rtol=1e-4):
        return f"You divided by all {targets.numel()} tokens. {targets.numel() - count} of them have no target."
    return f"The loss is {wanted:.4f}; yours is {value:.4f}. Is a piece's mean counted as much as another's?"


def fitting(plans, room):
    """The plans, each (name, bytes, seconds), that need no more than the room."""
    return [plan for plan in plans if plan[1] <= room]


def cheapest(plans, room):
    """The plan of least seconds among those that fit; ``None`` where none does."""
    return min(fitting(plans, room), key=itemgetter(2), default=[None])[0]


def spare_bytes(p, c, k):
    """What a peak of p bytes leaves of a card of c with a context of k; a hundredth of the room is for fragments."""
    room = c - k
    return room - room // 100 - p


def judge_game(answer: object) -> str | None:
    """Whether a card and a setup are named for each job, all fit, and the cards are paid for."""
    if not isinstance(answer, dict) or set(answer) != set(JOBS):
        return f"Give a dictionary with the jobs {', '.join(JOBS)}, each with (card, setup)."
    spent = 0
    for job, pair in answer.items():
        if not (
            isinstance(pair, (tuple, list))
            and len(pair) == 2
            and isinstance(pair[1], TrainingSetup)
        ):
            return f"Job {job}: give a pair, first a card's name, then a Job."
        card, setup = pair
        if card not in tuple(PRICES):
            said = repr(card) if isinstance(card, str) else f"a {type(card).__name__}"
            return f"Job {job}: {said} is not for sale; the names {', '.join(PRICES)} are."
        if problem := judge_job(job, card, setup):
            return f"Job {job}: {problem}"
        spent += PRICES[card]
    if spent > BUDGET:
        return f"All five fit, but the cards cost {spent}, and there are {BUDGET} to spend."
    return None


def judge_job(job: str, card: str, setup: TrainingSetup) -> str | None:
    """Whether the setup is the job's, runs on such a card, and fits it."""
    model, seq_len = JOBS[job]
    if setup.model != model or setup.seq_len != seq_len:
        return f"the job is {model.name} with {seq_len} tokens a sequence."
    if setup.micro_batch_size * setup.grad_accum_steps != 8:
        return f"a step has 8 sequences, and {setup.micro_batch_size} × {setup.grad_accum_steps} are others."
    if setup.device != "cuda":
        return f"device={setup.device!r} counts by the rules of another machine; a card is 'cuda'."
    dtype = setup.precision.compute_dtype
    if dtype not in CARDS[card].peak_tflops:
        return f"a {card} does not multiply {dtype}."
    plan = plan_of(setup, CARDS[card])
    return None if plan.fits else f"its peak is {format_bytes(plan.peak_bytes)}. {plan.fit}"


def given_up(plan: TrainingPlan) -> str:
    """What a plan gives up, time included, as a list in words."""
    again = () if plan.setup.recomputation == NONE else ("the time to run blocks twice",)
    return ", ".join((*plan.gives_up, *again)) or "nothing"


def score(answer: dict) -> str:
    """What a right purchase costs, where it is tightest, and what each job gives up."""
    plans = {job: plan_of(setup, CARDS[card]) for job, (card, setup) in sorted(answer.items())}
    tightest = min(plans, key=lambda job: plans[job].fit.expected_bytes)
    spent = f"{sum(PRICES[card] for card, _ in answer.values())} of {BUDGET} spent"
    spare = f"{tightest}, with {format_bytes(plans[tightest].fit.expected_bytes)} to spare"
    given = "; ".join(f"{job}: {given_up(plan)}" for job, plan in plans.items())
    return f"{spent}; tightest is {spare}. Given up: {given}."


EXERCISES = (
    NumberExercise(
        id="9.1",
        letters={"P": 8_030_261_248, "card": CARDS["A100 SXM 80 GB"].memory_bytes, "GIB": GIB},
        formula="16 * P - card",
        tolerance=0.01,
        because="16 × 8,030,261,248 = 128,484,179,968 B are needed; the card reports {card:,}.",
        table="""
        16 * P :: That is what they take. By how much does it pass the card?
        card - 16 * P :: Upside down: it is the card that is smaller.
        8 * P - card :: 8 bytes a parameter is pure bf16. Autocast with AdamW has 16.
        18 * P - card :: 18 is Megatron's recipe; torch's autocast has 16 bytes.
        2 * P - card :: You counted bf16 weights alone: gradients and states come too.
        12 * P - card :: You left 4 bytes out: weights 4, gradients 4, states 8.
        16 * 8 * 10**9 - 80 * 10**9 :: A card of 80 GB reports about 85 · 10⁹ bytes, and 8B has 8.03 · 10⁹.
        16 * P - 80 * GIB :: You took 80 GiB for a card that reports 79.25, or 8 · 10⁹ parameters for 8.03 · 10⁹.
        16 * 8 * 10**9 - 80 * GIB :: The card reports 79.25 GiB, not 80, and 8B has 8.03 · 10⁹ parameters.
        8 * P :: Those are the two means alone. Weights and gradients come on top, and the card goes off.
        20 * P - card :: 20 has a second gradient, or the optimizer's scratch; 16 stay.
        """,
    ),
    ChoiceExercise(
        id="9.2",
        right="c",
        because="Weights, gradients and states are in memory at that moment, and only LoRA shrinks any of them.",
        table="""
        a :: The activations are gone at that moment, whatever the batch was.
        b :: It shrinks activations, and none are left at that moment.
        d :: Selective recomputation shrinks activations, and none are left at that moment.
        e :: It lowers fragments, a few percent; here states are 50 GiB too many.
        """,
    ),
    NumberExercise(
        id="9.3",
        letters={"n": 4096 * 11008, "scales": "4 * n // 256"},
        formula="2 * (n + scales)",
        tolerance=0.001,
        also=(91_600_000, 91_500_000, "2.03 * n", 2.03 * 45.1e6),
        because="Two codes of one byte, and a float32 scale for each 256 of them: 2.03 B a parameter.",
        table="""
        n :: That is one byte a parameter. Adam keeps two states.
        2 * n :: The codes are right. Each block of 256 has a float32 scale as well.
        n + scales :: That is one state with its scales; Adam keeps two.
        2 * n + scales :: The scales are half of what they should be: each state has its own, and one has 4 bytes.
        8 * n :: That is AdamW in float32: 4 bytes, twice.
        16 * n :: A code has 8 bits, which is one byte, not eight.
        4 * n :: That is AdamW in bfloat16: 2 bytes, twice.
        2 * (n + scales // 4) :: A scale is a float32: 4 bytes, not one.
        2 * (n + 4 * n // 64) :: Blocks of 64 are NF4's, of weights; these are of 256.
        2 * scales :: Those are the scales alone; each value has a code of one byte, twice.
        4 * n + 2 * scales :: A code has one byte, not two; and the weight is no state.
        2 * (n + 4 * n // 2048) :: Blocks of 2,048 are the paper's; here a scale serves 256 values.
        2 * (n + 2 * scales) :: A scale is a float32: 4 bytes, not eight.
        n + 2 * scales :: A code has 8 bits, one byte; those would be 4-bit codes.
        """,
    ),
    FunctionExercise(
        id="9.4",
        letters={"rest": rest, "standing": standing, "right": model_bytes},
        right=model_bytes,
        unit="bytes",
        tolerance=1e-9,
        probes=(
            ((50, 400, 30), 2, 1),
            ((50, 400, 30), 4, 8),
            ((7, 3, 9, 5), 8, 1),
            ((7, 3, 9, 5), 2, 2),
        ),
        also=(
            "(2 + states) * sum(sizes) + 2 * (max if n == 1 else sum)(sizes)",
            "max((2 + states) * sum(sizes) + 2 * (sum(sizes) if n > 1 else g) for g in sizes)",
        ),
        because=(
            "In one pass a gradient is used and freed before the next, so the largest decides. A sum over several "
            "passes needs a place for each: accumulation takes back what the step in the backward saves."
        ),
        table="""
        rest(sizes, states) + 2 * sum(sizes) :: With one micro-batch the optimizer may step in the backward: not all
            gradients are there at once.
        rest(sizes, states) + 2 * max(sizes) :: Accumulated gradients wait for the last micro-batch, all of them. What
            can then be freed early?
        rest(sizes, states) + 2 * standing(sizes, n, 0) :: A gradient that is used at once is still there while it is
            used: the largest one counts.
        rest(sizes, states) + 2 * (max(sizes) if n > 1 else sum(sizes)) :: Turned round: it is accumulation that needs
            all gradients together.
        rest(sizes, states) + 2 * (n * sum(sizes) if n > 1 else max(sizes)) :: Micro-batches add to the same
            gradients: one set, however many there are.
        rest(sizes, states) + 2 * (sum(sizes) + max(sizes) if n > 1 else max(sizes)) :: True for a moment: the newest
            gradient is there beside the sum until it is added. Leave it out here.
        rest(sizes, states) + 2 * (2 * sum(sizes) if n > 1 else max(sizes)) :: The sum is in the gradients
            themselves: one set of them, in bfloat16.
        (4 + states) * sum(sizes) + 2 * standing(sizes, n) :: Weights are bfloat16, 2 bytes a value, and there is no
            copy of them in float32.
        right(sizes, states, n) - sum(sizes) - standing(sizes, n) :: A weight and a gradient in bfloat16 take 2 bytes
            each, not one.
        right(sizes, 0, n) :: The states are missing: `states` bytes for each value, from step to step.
        rest(sizes, states) + 4 * standing(sizes, n) :: 4 bytes a gradient are float32. Here gradients are bfloat16.
        rest(sizes, states) :: Gradients are missing: at least one is there while it is used.
        states * sum(sizes) + 2 * standing(sizes, n) :: The weights themselves are missing, 2 bytes a value.
        (4 + states) * standing(sizes, n) ; 2 * sum(sizes) + (2 + states) * standing(sizes, n) :: Weights and states
            of every tensor stay from step to step. Only gradients come and go.
        rest(sizes, states) + 2 * standing(sizes, n, sizes[0]) :: The highest moment is the largest tensor's, wherever
            it is in the order.
        rest(sizes, states) + 2 * standing(sizes, n, sizes[-1]) :: The highest moment is the largest tensor's,
            wherever it is in the order.
        rest(sizes, states) + 2 * standing(sizes, n, sum(sizes) / len(sizes)) :: That is an average gradient; the
            highest moment has the largest.
        rest(sizes, states) + 2 * (sum(sizes) / n) :: A gradient is as large as its weight, however small the
            micro-batch is.
        rest(sizes, states) + 2 * (sum(sizes) - max(sizes) * (n == 1)) :: You took the largest gradient off; it is the
            one that is left.
        right(sizes, 2 * states, n) :: Twice the states: `states` counts all that an optimizer keeps for a value, both
            of Adam's too.
        8 * sum(sizes) :: 8 bytes a value are AdamW in bfloat16 with every gradient kept; `states` says what is
            kept here.
        None if n > 1 else right(sizes, states, n) :: Accumulation is allowed; the step in the backward is not. Then
            the gradients wait, all of them.
        """,
    ),
    NumberExercise(
        id="9.5",
        letters={"P": 6_738_415_616},
        formula="4 * P",
        tolerance=0.002,
        also=(2.7e10, 26_950_000_000),
        because="2 B a parameter to the host as gradients, 2 B back as weights, whatever the batch is.",
        table="""
        2 * P :: That is one direction. Gradients go there, new weights come back.
        8 * P :: 4 B a value is float32. Here weights and gradients are bfloat16.
        P :: That is a count of values; each has 2 bytes, and both directions count.
        0 :: The step is done on the host: it needs the gradients, and the card needs the new weights.
        10 * P ; 12 * P ; 14 * P :: The states stay on the host and never cross the link.
        6 * P :: Weights need not go to the host: their copy is there already. Nor is one of the two ways in float32.
        4 * 7_000_000_000 :: 7 billion is 4 % too many: count the model's parameters as they are.
        4 * 6_700_000_000 :: Two digits of the count give two of the answer: take 6.738 billion.
        16 * P :: That is what card and host keep in float32, not what moves.
        4 * P / 31.5e9 ; 0.86 :: That is in seconds, at 31.5 GB/s. Asked are the bytes.
        """,
    ),
    JudgedExercise(
        id="9.6",
        judge=judge_pieces,
        because="Sums of pieces may be added, and means may not; and a piece that is made again keeps no logits.",
    ),
    FunctionExercise(
        id="9.7",
        letters={"fit": fitting, "size": itemgetter(1), "seconds": itemgetter(2)},
        right=cheapest,
        probes=(
            ([("a", 30, 1.0), ("b", 20, 1.2), ("c", 10, 2.0)], 24),
            ([("a", 30, 1.0), ("c", 10, 2.0), ("b", 20, 1.2)], 20),
            ([("a", 30, 1.0)], 24),
            ([("c", 10, 2.0), ("d", 12, 1.5), ("a", 24, 3.0)], 24),
        ),
        also=("(sorted((p[2], p[0]) for p in plans if p[1] <= room) or [(0, None)])[0][1]",),
        because="The fastest plan of those that fit, and None if no plan fits.",
        table="""
        min(plans, key=seconds)[0] :: You do not look at the room.
        min([p for p in plans if p[1] < room], key=seconds, default=[None])[0] :: A plan that fills the room to the
            byte fits.
        min(fit(plans, room), key=size, default=[None])[0] :: That is the smallest. Memory that is not used is of
            no use: take the fastest.
        max(fit(plans, room), key=size, default=[None])[0] :: That is the largest that fits (or the first by name):
            often the fastest, and need not be.
        max(fit(plans, room), key=seconds, default=[None])[0] :: That is the slowest.
        min(fit(plans, room), key=seconds, default=None) :: That is the whole plan. Its name is asked for.
        min(map(seconds, fit(plans, room)), default=None) :: Those are its seconds. Its name is asked for.
        min(plans, key=size)[0] :: That is the smallest of all, fitting or not.
        min([p for p in plans if p[1] >= room], key=seconds, default=[None])[0] :: The other way round: a plan fits
            whose bytes are no more than the room.
        next(iter(fit(plans, room)), [None])[0] :: That is the first of the list; nobody said that it is sorted.
        """,
    ),
    FunctionExercise(
        id="9.8",
        right=spare_bytes,
        unit="bytes",
        probes=(
            (20 * GIB, 25_294_995_456, GIB // 2),
            (25 * GIB, 25_294_995_456, GIB // 2),
            (0, 1060, 100),
        ),
        also=("c - k - int((c - k) / 100) - p",),
        because="The context goes off first. A hundredth of the rest is kept free. Then the step goes off.",
        table="""
        c - p :: That is the broken version: the context is not in it.
        (c - k) * 99 // 100 - p :: A byte short: that rounds the hundredth up, not down.
        (c - k) * 0.99 - p :: A byte has no parts: the hundredth is rounded down, room // 100.
        c - k - p :: You left no room for fragments: a hundredth.
        c - c // 100 - p :: You left the context out.
        c - k - (c - k - p) // 100 - p :: The hundredth is of the room, not of what is left over.
        c - k - p // 100 - p :: The hundredth is of the room, not of the step.
        p - (c - k) + (c - k) // 100 :: Upside down: what is left is above 0 where it fits.
        c - k - (c - k) // 100 >= p :: That says whether it fits. How many bytes are left?
        c - k - (c - k) // 100 :: That is the room. The step itself is still to come off.
        max(0, c - k - (c - k) // 100 - p) :: Below 0 says by how much it does not fit; keep it.
        c - c // 100 - k - p ; int(0.99 * c) - k - p :: The hundredth is of what the context leaves, not of the card.
        """,
    ),
    JudgedExercise(
        id="9.9",
        judge=judge_game,
        score=score,
        because="Many purchases are right. A better one gives up less for the same price.",
    ),
)
