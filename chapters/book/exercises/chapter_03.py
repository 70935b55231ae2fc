"""The exercises of chapter 03: what mixed precision keeps, and how its loops go wrong."""

import math
from dataclasses import replace

import torch

from book.exercises import ChoiceExercise, FunctionExercise, JudgedExercise, NumberExercise
from book.exercises.answers import names_in
from book.exercises.tables import filled, rows_of, value_of
from book.exercises.training_loops import (
    judge_clipping,
    judge_loop,
    near,
    without_cache,
    zeroed_first,
)
from memkit.formula.estimate import estimate_memory
from memkit.models import LLAMA_3_8B
from memkit.recipes import AUTOCAST_BF16, FUSED_ADAMW
from memkit.setup import TrainingSetup

# 3.3: a master update


def _master_case(scale: float, lr: float):
    chance = torch.Generator().manual_seed(0)
    master = 1 + torch.rand(64, generator=chance)
    gradient = (torch.randn(64, generator=chance) * 1e-3 * scale).bfloat16()
    return master, gradient, master - lr * gradient.float() / scale


_WRONG_UPDATES = """
    -right :: Still uphill: the update has the wrong sign. A step goes against the gradient.
    right * scale :: The step is {scale:,.0f} times too large: the gradient is still multiplied by the scale.
    right * scale**2 :: The step is too large by the scale twice: you multiplied where you should divide.
    right / lr :: The learning rate is missing.
    -right * scale :: Still uphill, and the gradient is still multiplied by the scale.
    right * scale / lr :: Scale and learning rate are both missing.
"""


def _judge_master_step(answer, scale: float, lr: float) -> str | None:
    master, gradient, wanted = _master_case(scale, lr)
    start = master.clone()
    given = answer(master, gradient, scale, lr)
    if not isinstance(given, torch.Tensor) or given.shape != start.shape:
        return "The function returns the new BF16 weights, a tensor of the shape of master."
    moved, right = master - start, wanted - start
    if torch.equal(master, start):
        return "master did not move: change it in place (master -= ...), or the next step starts from the old one."
    letters = {"right": right, "scale": scale, "lr": lr}
    for expression, words in rows_of(_WRONG_UPDATES):
        if near(moved, value_of(expression, letters)):
            return filled(words, letters)
    if torch.equal(master, master.bfloat16().float()):
        return "master was rounded to BF16 on the way: a small update is lost there. It has to stay float32."
    if not near(moved, right) and near(moved, right, 0.01):
        return "Nearly: the update itself was computed in BF16. Make the gradient float32 first."
    if not near(moved, right):
        return "master does not end where it should, and I cannot tell which mistake this is."
    if given.dtype != torch.bfloat16:
        return f"The weights that you return are {str(given.dtype).removeprefix('torch.')}; the model needs BF16."
    if not torch.equal(given, wanted.bfloat16()):
        return "master is right; what you return is not its BF16 rounding."
    return None


# 3.7: dynamic scaling


def next_scale(scale, clean, overflowed, interval):
    """The next scale, and the number of clean steps in a row."""
    if overflowed:
        return scale / 2, 0
    if clean + 1 == interval:
        return scale * 2, 0
    return scale, clean + 1


_SCALES = tuple(
    (scale, clean, overflowed, interval)
    for scale in (2.0**16, 1024.0, 2.0**24, 1.0)
    for clean, interval in ((0, 2000), (7, 2000), (1998, 2000), (1999, 2000), (2, 3), (0, 1))
    for overflowed in (False, True)
)


def _wrong_move(
    scale, clean, overflowed, interval, early=0, halves=2, resets=True, counts_on=False
):
    if overflowed:
        return scale / halves, 0 if resets else clean
    if clean + 1 + early == interval:
        return scale * 2, clean + 1 if counts_on else 0
    return scale, clean + 1


# 3.8: stochastic rounding on bits


def _judge_by_chance(answer) -> str | None:
    num, low, high = 40_000, 1.0, 1 + 2**-7
    x = torch.full((num,), 1 + 0.25 * 2**-7)
    kept = x.clone()
    given = answer(x)
    if not isinstance(given, torch.Tensor) or given.dtype != torch.bfloat16:
        return "The result is to be a BF16 tensor."
    if given.shape != kept.shape:
        words = (
            " randint makes int64, 8 bytes each: give it dtype=torch.int32."
            if given.numel() == 2 * num
            else ""
        )
        return f"The result has the shape {tuple(given.shape)}; x has {tuple(kept.shape)}.{words}"
    if not torch.equal(x, kept):
        return "You changed x itself; work on a copy of its bits."
    values = given.float()
    if (values == 0).float().mean() > 0.9:
        return "Every value became 0: .to(torch.int32) converts the number. x.view(torch.int32) reads its bits."
    if bool((values < low).any()):
        return "Some values went down by a whole step: the random integer is below 0 too. It runs from 0 up to 2^16."
    if bool(((values != low) & (values != high)).any()):
        if bool((values > high).any()) and bool(
            torch.isin(values, torch.tensor([low, high, 1 + 2**-6])).all()
        ):
            return "Some values went up by two steps: the random integer is too large. It runs from 0 up to 2^16."
        return "Some values are neither of the two neighbours: clear exactly the lower 16 bits, after the addition."
    share = (values == high).float().mean().item()
    if share in (0.0, 1.0):
        many = [answer(kept[:1].expand(8).clone())[0].item() for _ in range(60)]
        if len(set(many)) > 1:
            return "One chance decides for all values: draw a random integer for each, torch.randint(..., x.shape)."
        other = (answer(torch.full((num,), 1 + 0.75 * 2**-7)).float() == high).float().mean().item()
        if 0.0 < other < 1.0:
            return f"A quarter of the way, none goes up; at three quarters {other:.0%} do: too little chance is added."
        return "Every value goes the same way, each time: that is rounding without any chance."
    if abs(share - 0.75) < 0.02:
        exact = (answer(torch.ones(num)).float() == 1.0).float().mean().item()
        if abs(exact - 0.5) < 0.05:
            return "Three quarters go up: after the addition it is rounded once more. Clear the lower 16 bits."
        return "Upside down: a quarter of the way is cut off, and three quarters go up."
    if torch.equal(answer(kept), given):
        return "The same values go up in each call: a generator seeded inside the function repeats its chance."
    if abs(share - 0.5) < 0.02:
        return "Half of them go up: a fair coin forgets how much is cut off. Add up to 2^16 to the bits."
    if abs(share - 0.25) > 0.02:
        return f"A quarter should go up, and {share:.0%} do: the random integer runs from 0 up to 2^16."
    held = torch.tensor([0.5, -3.0, 0.0]).repeat(64)
    if not torch.equal(answer(held.clone()).float(), held):
        return "A value that BF16 holds must stay as it is."
    down = (answer(-kept).float() == -high).float().mean().item()
    if abs(down - 0.25) > 0.02:
        return "Right for positive numbers, wrong for negative ones."
    if floats := {"rand", "rand_like", "bernoulli", "/"}.intersection(names_in(answer)):
        return f"Right, but by floating point ({min(floats)}): add a random integer below 2^16 to the bits."
    return None


# 3.9: where autocast saves


def autocast_share(micro_batch_size: int, seq_len: int, attention: str = "flash") -> float:
    """The peak of a step of Llama-3-8B under bf16 autocast as a share of its peak in float32."""
    setup = TrainingSetup(
        model=LLAMA_3_8B,
        optimizer=FUSED_ADAMW,
        attention=attention,
        micro_batch_size=micro_batch_size,
        seq_len=seq_len,
    )
    autocast = replace(setup, precision=AUTOCAST_BF16)
    return estimate_memory(autocast).peak_bytes / estimate_memory(setup).peak_bytes


EXERCISES = (
    NumberExercise(
        id="3.1",
        letters={"P": 1_500_000_000},
        formula="16 * P",
        tolerance=3e-3,
        because="Weights 4, gradients 4, two moments of 4: autocast changes none of them.",
        table="""
        8 * P :: That is pure bf16, or the two moments alone. Autocast leaves weights, gradients and states in float32.
        12 * P :: 12 bytes: one of the four is missing, or weights and gradients were halved.
        14 * P :: You halved one of the copies. Weights and gradients both stay float32.
        18 * P :: You added the casts. They are in memory from forward to backward only, so they are no state.
        6 * P :: That is a weight and its cast, 4 + 2. The cast is no state, and gradients and moments are missing.
        2 * P :: That is the casts alone, and they are no state: they go with the backward.
        20 * P :: That is bf16 with a master copy and a second gradient, another recipe.
        4 * P :: That is the weights alone.
        P :: That is the number of parameters. How many bytes has each, with its gradient and its states?
        10 * P :: That is 10 bytes for each, as pure bf16 with Kahan's sum takes. Autocast leaves all four in float32.
        16 * P / 10**9 :: That is the number of GB. The answer is in bytes.
        16 :: Those are the bytes of one parameter. There are {P:,} of them.
        float(f'{16 * P / 2**30:.3g}') :: That is the number of GiB. The answer is in bytes.
        """,
    ),
    NumberExercise(
        id="3.2",
        letters={
            "log2": math.log2,
            "ceil": math.ceil,
            "first": 16,
            "limit": 6_000,
            "exact": "first - log2(limit)",
            "steps": "ceil(exact)",
            "last": "first - steps + 1",
            "settled": "2 ** (first - steps)",
        },
        formula="steps",
        unit="skipped steps",
        because="Scales from 2^{first} down to 2^{last} are above {limit:,}; at {settled:,} the step counts.",
        table="""
        steps - 1 :: 2^{last} is {2 ** last:,}, still above {limit:,}: that step is skipped too.
        steps + 1 :: That counts the step that succeeds, at {settled:,}.
        first - steps :: That is the exponent at which it settles. Asked is how many steps it took.
        last :: That is the last exponent that overflows. Asked is how many steps were skipped.
        settled :: That is the scale at which it settles.
        2000 :: That is the growth interval; it says when the scale doubles.
        round(exact, 1) ; round(exact, 2) ; round(exact, 3) ; exact :: log2({2 ** first:,} / {limit:,}) is about
            {exact:.1f}; a step is skipped whole, so round up.
        2 if (first, limit) == (16, 6_000) else None :: A halving is one power of two: 2^{first} halved twice is {2
            ** (first - 2):,}, still above {limit:,}.
        first :: That is the exponent of the first scale. Count the halvings down to {limit:,}.
        2**first / limit ; 11 if (first, limit) == (16, 6_000) else None :: Too large by that factor: count halvings.
        limit :: That is where gradients overflow. Asked is a number of steps.
        0 :: The first scale, {2 ** first:,}, is above {limit:,}: its step is skipped already.
        """,
    ),
    JudgedExercise(
        id="3.3",
        judge=_judge_master_step,
        letters={"scale": 1024.0, "lr": 0.1},
        because="Against the gradient, unscaled, in float32; the weights are its rounding.",
    ),
    JudgedExercise(
        id="3.4",
        judge=judge_loop,
        also=(without_cache,),
        because="The casts are made anew in each step, from the weights as they are.",
    ),
    JudgedExercise(
        id="3.5",
        judge=judge_clipping,
        also=(zeroed_first,),
        because="The norm of the true gradients is compared with max_norm.",
    ),
    ChoiceExercise(
        id="3.6",
        right="b",
        because="10 bytes per parameter, and no update is lost.",
        table="""
        a :: It fits with 8 bytes, but it does not learn: at 1e-6 nearly every update is rounded away.
        c :: It trains, with 16 bytes per parameter: autocast saves none of the states.
        d :: It trains, with 16 bytes per parameter: 2 + 2 + 4 + 4 + 4.
        """,
    ),
    FunctionExercise(
        id="3.7",
        letters={"move": _wrong_move, "next": next_scale},
        right=next_scale,
        hides_results=True,
        probes=_SCALES,
        because="Half at once, double rarely: the scale stays just below what overflows.",
        table="""
        (scale / 2, 0) if overflowed else (scale * 2, 0) :: Your scale doubles after every clean step. It waits for
            the interval.
        move(scale, clean, overflowed, interval, early=-1) :: Your scale doubles late or never: this step counts too.
        move(scale, clean, overflowed, interval, early=1) :: Your scale doubles one step early.
        move(scale, clean, overflowed, interval, halves=1) :: An overflow must halve the scale, or the next step
            overflows again.
        move(scale, clean, overflowed, interval, resets=False) :: After an overflow counting starts again at 0.
        (scale / 2, clean + 1) if overflowed else next(scale, clean, False, interval) :: A step that overflowed is not
            clean: counting starts again at 0.
        next(scale, clean, overflowed, interval)[0] :: The scale is right. Return the number of clean steps with it,
            as a pair.
        scale / 2 if overflowed else scale :: The function returns a pair: the scale, and the number of clean steps in a
            row.
        next(scale, clean, overflowed, interval)[::-1] :: Right, in the other order: first the scale, then the number
            of clean steps.
        (scale, clean) if not overflowed and clean + 1 < interval else next(scale, clean, overflowed, interval) :: A
            clean step is counted: one more clean step in a row.
        move(scale, clean, overflowed, interval, counts_on=True) :: After doubling counting starts again at 0.
        (scale * 2, 1) if clean + 1 == interval and not overflowed else next(scale, clean, overflowed, interval) :: The
            step after which the scale doubles is not counted again: counting starts at 0.
        (scale / 2, 1) if overflowed else next(scale, clean, False, interval) :: After an overflow no step in a row is
            clean: the count is 0.
        (scale * 2, 0) if overflowed else (scale / 2, 0) if clean + 1 == interval else (scale, clean + 1) :: Halving and
            doubling are exchanged: an overflow halves.
        (scale // 2, 0) if overflowed else next(scale, clean, False, interval) :: Right for a scale above 1: // rounds
            1 / 2 down to 0, and no loss is left.
        (max(scale / 2, 1), 0) if overflowed else next(scale, clean, False, interval) :: Your scale stops at 1.
            PyTorch's has no lower bound: at 1 an overflow halves it too.
        (min(next(scale, clean, overflowed, interval)[0], 2.0**24), next(scale, clean, overflowed, interval)[1]) :: Your
            scale stops at 2^24. PyTorch's has no upper bound: what overflows halves it again.
        next(scale, clean, not overflowed, interval) :: You took overflowed the other way round.
        (scale / 4, 0) if overflowed else next(scale, clean, False, interval) :: An overflow halves the scale, once.
        """,
    ),
    JudgedExercise(
        id="3.8",
        judge=_judge_by_chance,
        because="On average nothing is lost, and no master copy is needed.",
    ),
    ChoiceExercise(
        id="3.9",
        letters={"share": autocast_share},
        right="c",
        because="Four tokens for each hidden unit save more than the casts take: it falls by {1 - share(4, 4096):.0%}.",
        table="""
        a :: With a quarter of a token for each hidden unit there are few activations, and the casts are gone when the
            peak comes. It falls by {1 - share(1, 1024):.1%}.
        b :: With as many tokens as hidden units the casts take most of what the activations save. The peak falls by
            {1 - share(1, 4096):.1%}.
        d :: With stored scores it rises by {share(4, 4096, "stored") - 1:.0%}: softmax gives a float32 result, which is
            kept, and the next product keeps a 16-bit copy of it.
        """,
    ),
)
