"""The exercises of chapter 10: from "it does not fit" to a run."""

from dataclasses import replace
from operator import itemgetter

from book.exercises import ChoiceExercise, FunctionExercise, JudgedExercise, NumberExercise
from memkit.cards import CARDS
from memkit.models import GPT2_XL, LLAMA_2_7B, LLAMA_2_13B, LLAMA_3_8B, LLAMA_32_1B
from memkit.recipes import AUTOCAST_BF16, FUSED_ADAMW, PURE_BF16, OptimizerConfig
from memkit.setup import TrainingSetup
from memkit.strategies import NONE
from memkit.units import GIB, format_bytes
from stepscope.optimizers import OPTIMIZERS
from stepscope.planner.plan import TrainingPlan, plan_of
from stepscope.setup import AdapterConfig, Job, linear_layers

SMALL = OptimizerConfig(record=OPTIMIZERS["torchao 8-bit AdamW"], implementation="fused")
START = Job(model=LLAMA_2_7B, seq_len=2048, micro_batch_size=4)
_autocast = replace(START, precision=AUTOCAST_BF16)
_accumulated = replace(_autocast, micro_batch_size=1, grad_accum_steps=4)
_again = replace(_accumulated, recomputation="full")
_fused = replace(_again, optimizer=FUSED_ADAMW)
_small = replace(_fused, optimizer=SMALL)
_pure = replace(_small, precision=PURE_BF16)
_lora = replace(
    _pure, optimizer=FUSED_ADAMW, adapter=AdapterConfig(rank=16, targets=linear_layers(LLAMA_2_7B))
)
_qlora = replace(_lora, adapter=replace(_lora.adapter, base="nf4"))
STAIR = {
    "fp32": START,
    "autocast bf16": _autocast,
    "in four pieces": _accumulated,
    "blocks twice": _again,
    "fused AdamW": _fused,
    "8-bit states": _small,
    "pure bf16": _pure,
    "LoRA r = 16": _lora,
    "QLoRA r = 16": _qlora,
}
"""The chapter's stair: each setup is the one before it with one change."""


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
        id="10.1",
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
    NumberExercise(
        id="10.2",
        letters={"linear": 6_476_005_376, "others": 262_410_240},
        formula="round(linear * 4.127 / 8) + 2 * others",
        tolerance=0.01,
        because="6,476,005,376 values of 4.127 bits are 3.34 GB; the other 262,410,240 stay in bf16: 0.52 GB.",
        table="""
        round((linear + others) * 4.127 / 8) :: Embedding, head and norms are not made 4-bit ones: 2 bytes each.
        linear // 2 + 2 * others :: You left the scales out: 0.127 bits a value with double quantisation.
        round(linear * 4.127 / 8) :: Embedding, head and norms stay in bf16: you left them out, or took half a byte
            for all parameters.
        2 * (linear + others) :: Those are bf16 weights: LoRA's base, not QLoRA's.
        round(linear * 4.25 / 8) + 2 * others :: 4.25 bits are MXFP4's, a scale of 8 bits for 32 values. NF4: 4.127.
        round(linear * 4.5 / 8) + 2 * others :: 4.5 bits is one float32 scale a block. Double quantised: 4.127.
        round(linear * 4.127) + 2 * others :: 4.127 is in bits, and a byte has 8 of them.
        round(linear * 4.127 / 8) + others :: What is not in 4 bits is in bf16: 2 bytes, not 1.
        round(linear * 4.127 / 8) + 4 * others :: What is not in 4 bits is in bf16: 2 bytes, not 4.
        """,
    ),
    FunctionExercise(
        id="10.3",
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
        id="10.4",
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
        c - c // 100 - k - p :: The hundredth is of what the context leaves, not of the card.
        """,
    ),
    ChoiceExercise(
        id="10.5",
        right="c",
        because="Weights, gradients and states are in memory at that moment, and only LoRA shrinks any of them.",
        table="""
        a :: The activations are gone at that moment, whatever the batch was.
        b :: It shrinks activations, and none are left at that moment.
        d :: Selective recomputation shrinks activations, and none are left at that moment.
        e :: It lowers fragments, a few percent; here states are 50 GiB too many.
        """,
    ),
    JudgedExercise(
        id="10.6",
        judge=judge_game,
        score=score,
        because="Many purchases are right. A better one gives up less for the same price.",
    ),
)
