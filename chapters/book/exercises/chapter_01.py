"""The exercises of chapter 01: where the bytes of a training step go."""

from bisect import bisect_left
from dataclasses import replace
from numbers import Integral, Real

from book.exercises import ChoiceExercise, FunctionExercise, JudgedExercise, NumberExercise
from book.exercises.answers import NotAttempted, whole
from book.exercises.tables import rows_of
from memkit.cards import CARDS, Card
from memkit.formula.estimate import estimate_memory
from memkit.formula.parameters import count_parameters
from memkit.models import LLAMA_2_7B, LLAMA_3_8B, LLAMA_32_1B
from memkit.recipes import FP32, PURE_BF16, Precision
from memkit.setup import TrainingSetup
from memkit.units import GIB, format_bytes

CONTEXT_BYTES = 2 * GIB
ON_A100 = TrainingSetup(model=LLAMA_32_1B, precision=PURE_BF16, seq_len=1024, recomputation="full")


def llama_parameters(h: int, L: int, v: int, k: int, f: int) -> int:
    """Parameters of a Llama-style model with a head of its own."""
    return 2 * v * h + L * (2 * h * h + 2 * h * k + 3 * h * f + 2 * h) + h


def block_activation_bytes(b: int, s: int, h: int, a: int) -> int:
    """One GPT-2 block with flash attention, no dropout, 16-bit values: Korthikanti's 34 less two masks."""
    attention, mlp, norms, log_sum_exp = 11 - 1, 19 - 1, 4, 4
    return (attention + mlp + norms) * s * b * h + log_sum_exp * a * b * s


def peak_name(seq_len: int, precision: Precision = PURE_BF16) -> str:
    """Where exercise 1.5's run peaks in step 2."""
    setup = TrainingSetup(model=LLAMA_3_8B, precision=precision, seq_len=seq_len)
    return estimate_memory(setup).for_step(2).peak.name


def judge_seq_len(answer: object) -> str | None:
    """1.5: the smallest multiple of 1,024 whose peak is not in the optimizer's step."""
    answer = whole(answer)
    if isinstance(answer, bool) or not isinstance(answer, Integral) or answer < 1 or answer > 2**20:
        return f"{answer!r} is not a number of tokens."
    answer = int(answer)
    if answer <= 64:
        return f"{answer} would be very few tokens. If you counted in units of 1,024, multiply by that."
    if answer % 1024:
        return f"{answer:,} is not a multiple of 1,024."
    if "optimizer" in peak_name(answer):
        still = f"At {answer:,} tokens the peak is still inside the optimizer's step."
        if "optimizer" not in peak_name(answer, FP32) and "optimizer" in peak_name(
            answer - 1024, FP32
        ):
            return f"{still} In float32, the default, it has moved: check that your run has precision=PURE_BF16."
        return still
    if answer > 1024 and "optimizer" not in peak_name(answer - 1024):
        return f"At {answer:,} tokens the peak has moved, but at {answer - 1024:,} it had moved already."
    return None


def largest_batch(setup: TrainingSetup, room_bytes: int) -> int:
    """The largest micro-batch whose peak is at most ``room_bytes``."""

    def is_too_large(batch: int) -> bool:
        return estimate_memory(replace(setup, micro_batch_size=batch)).peak_bytes > room_bytes

    return bisect_left(range(1, 1024), True, key=is_too_large)


def judge_fill(answer: object, setup: TrainingSetup, card: Card) -> str | None:
    """1.6: the largest micro-batch of a run that leaves ``CONTEXT_BYTES`` of a card."""
    answer = whole(answer)
    if isinstance(answer, bool) or not isinstance(answer, Integral) or answer < 1 or answer > 10**6:
        return f"{answer!r} is not a number of sequences."
    answer, label_gb, room = int(answer), card.label_gb, card.memory_bytes - CONTEXT_BYTES
    whole_card, left = card.memory_bytes, CONTEXT_BYTES
    slips = {
        "This is the answer without recomputation. Set recomputation='full'.": (room, "none"),
        "This is the answer in float32, the default. Set precision=PURE_BF16.": (
            room,
            "full",
            FP32,
        ),
        "You used the whole card. Leave 2 GiB for the context and the allocator.": (whole_card,),
        "You took the label for GiB. The card reports fewer bytes: CARDS has them.": (
            label_gb * GIB - left,
        ),
        "You took the label for 10**9 bytes. The card reports more: CARDS has them.": (
            label_gb * 10**9 - left,
        ),
        "You left 2·10⁹ bytes. 2 GiB are more.": (whole_card - 2 * 10**9,),
    }

    def batch_of(room_bytes: int, recomputation: str = "full", precision=setup.precision) -> int:
        run = replace(setup, recomputation=recomputation, precision=precision)
        return largest_batch(run, room_bytes)

    if answer == largest_batch(setup, room):
        return None
    ways = [words for words, run in slips.items() if answer == batch_of(*run)]
    if len(ways) == 1:
        return ways[0]
    peak_bytes = estimate_memory(replace(setup, micro_batch_size=answer)).peak_bytes
    fits = "fits: try one more" if peak_bytes <= room else "does not fit"
    peak = f"With {answer} the peak is {format_bytes(peak_bytes)}, the room {format_bytes(room)}. It {fits}."
    return f"{peak} One of these may be the mistake: {' Or: '.join(ways)}" if ways else peak


RUNS_BY_HAND = (
    {"h": 768, "L": 12, "heads": 12, "batch": 4, "seq": 1024},
    {"h": 768, "L": 12, "heads": 12, "batch": 1, "seq": 64, "foreach": True},
    {"h": 1280, "L": 36, "heads": 20, "batch": 2, "seq": 512, "tied": False, "foreach": True},
)
"""Calls of exercise 1.a's function, so chosen that no two sums below are alike in all of them."""


def sums_by_hand(
    h: int, L: int, heads: int, batch: int, seq: int, tied: bool = True, foreach: bool = False
) -> dict:
    """The letters of ``peak_by_hand`` for a call, in bytes; ``tables`` and ``copy`` are what the last rows may add."""
    tokens, table = batch * seq, 50257 * h
    parameters = table * (1 if tied else 2) + 1024 * h + L * (12 * h * h + 13 * h) + 2 * h
    logits = 4 * tokens * 50257
    kept = L * (64 * tokens * h + (16 + 4 * heads) * tokens) + 8 * tokens * h + logits + 24 * tokens
    weights = 4 * parameters
    return {
        "W": weights,
        "G": weights,
        "S": 2 * weights,
        "A": kept,
        "logits": logits,
        "tables": 8 * table if tied else 0,
        "copy": weights if foreach else 0,
        "table": 4 * table,
    }


SLIPS_BY_HAND = {
    "start of the backward": """
        W + S + A + logits :: Two gradients of the logits' size come on top of A; that is one.
        W + S + A :: The two gradients of the logits' size are missing: they come on top of A.
        W + S + A + 3 * logits :: A counts the log-softmax already: two more come, not 3.
        W + S + G + A + 2 * logits :: zero_grad has freed the gradients before this forward.
        W + S + G + A :: That is the sum of all. zero_grad has freed the gradients, and two of the logits' size come.
        W + A + 2 * logits :: The states are missing: from the second step on they are there.
        W + S + 2 * logits :: The activations are missing: here all of them are in memory.
    """,
    "end of the backward": """
        W + S + G :: A tied head's two tables are missing: two gradients meet their sum there.
        W + S + G + 2 * table :: You add the tables for a head of its own as well; see `tied`.
        W + S + G + tables / 4 :: table counts values; times width they are bytes.
        W + S + G + tables / 2 :: One table is not enough: two more than will stay are there.
        W + S + G + A :: The activations are gone when the backward ends.
        W + S + G + A + tables :: The activations are gone when the backward ends.
        W + S + tables :: The gradients are missing: at this end all of them are there.
        W + G + tables :: The states are missing: they stay from step to step.
    """,
    "the optimizer's step": """
        W + S + G :: With foreach one copy of the weights comes on top.
        W + S + G + W :: You add foreach's copy when it is not asked for; see `foreach`.
        W + S + G + 2 * copy :: foreach adds one value for each weight, not two.
        W + S + copy :: The gradients are there until zero_grad frees them.
        W + S + G + copy + tables :: The tables are there while the backward runs, not here.
        W + S + G + A + copy :: The activations are gone before the optimizer's step.
        W + S + G + A :: The activations are gone before the optimizer's step.
    """,
}
"""For each moment wrong sums, and what is wrong in them."""
RIGHT_BY_HAND = {
    "start of the backward": "W + S + A + 2 * logits",
    "end of the backward": "W + S + G + tables",
    "the optimizer's step": "W + S + G + copy",
}


def peak_by_hand(
    h, L, heads, batch, seq, v=50257, positions=1024, width=4, tied=True, foreach=False
):
    """Bytes of a GPT's training step at the three moments that can be its peak; a value takes ``width`` bytes."""
    tokens, table = batch * seq, v * h
    parameters = table * (1 if tied else 2) + positions * h + L * (12 * h * h + 13 * h) + 2 * h
    W = G = width * parameters
    S = 2 * W
    block = (
        16 * width * tokens * h + (16 + 4 * heads) * tokens
    )  # 16 values; norms' statistics, flash's sums
    logits = width * tokens * v
    A = (
        L * block + 2 * width * tokens * h + logits + 24 * tokens
    )  # blocks, last norm, log-softmax, ids
    return {
        "start of the backward": W + S + A + 2 * logits,
        "end of the backward": W + S + G + (2 * width * table if tied else 0),
        "the optimizer's step": W + S + G + (W if foreach else 0),
    }


def judge_by_hand(answer: object) -> str | None:
    """1.a: the three moments of ``peak_by_hand``, each held to its sum and to wrong sums that readers write."""
    if not callable(answer):
        return f"{answer!r} is not a function."
    results = [answer(**run) for run in RUNS_BY_HAND]
    if not all(
        isinstance(result, dict) and set(result) == set(RIGHT_BY_HAND) for result in results
    ):
        return f"It returns {results[0]!r:.80}. Wanted is a dictionary of three: {', '.join(RIGHT_BY_HAND)}."
    if any(value is ... for result in results for value in result.values()):
        raise NotAttempted
    letters = [sums_by_hand(**run) for run in RUNS_BY_HAND]

    def is_sum(moment: str, expression: str) -> bool:
        sums = [eval(expression, {}, of) for of in letters]
        return all(
            isinstance(result[moment], Real) and abs(result[moment] - right) <= 1e-3 * right
            for result, right in zip(results, sums, strict=True)
        )

    wrong = [
        moment for moment, expression in RIGHT_BY_HAND.items() if not is_sum(moment, expression)
    ]
    if not wrong:
        return None
    for expression, sentence in rows_of(SLIPS_BY_HAND[wrong[0]]):
        if is_sum(wrong[0], expression):
            return f"{wrong[0].capitalize()}: {sentence}"
    run, result, of = RUNS_BY_HAND[0], results[0][wrong[0]], letters[0]
    right = eval(RIGHT_BY_HAND[wrong[0]], {}, of)
    if not isinstance(result, Real):
        return f"{wrong[0].capitalize()}: {result!r} is no number of bytes."
    far = f"{result / right:.3g} times what it should be" if right else "no number of bytes"
    of_run = f"h={run['h']}, L={run['L']} and {run['batch']} × {run['seq']} tokens"
    return f"{wrong[0].capitalize()}: for {of_run} it is {far}."


EXERCISES = (
    JudgedExercise(
        id="1.a",
        judge=judge_by_hand,
        right=peak_by_hand,
        because="Three sums, and the largest is the peak.",
    ),
    ChoiceExercise(
        id="1.1",
        right="c",
        because="Only tensors with a b in their shape double, and those are activations.",
        table="""
        a :: Weights, gradients and states have the shape of the parameters.
        b :: A gradient has the shape of its parameter: no b in it.
        d :: That is the sequence with stored scores. The batch is a single factor.
        """,
    ),
    NumberExercise(
        id="1.2",
        letters={
            "P": count_parameters(LLAMA_2_7B),
            "billions": "round(P / 10**9)",
            "rounded": "round(P, -8)",
        },
        formula="8 * P",
        tolerance=0.005,
        also=("2 * 4 * float(f'{P:.3g}')", "float(f'{8 * P:.3g}')", "8 * P"),
        because="Two float32 means for each parameter, 4 bytes each: {8 * P:,}.",
        table="""
        8 :: That is right for one parameter. There are {P:,}.
        P :: That is the number of parameters. Each has two means, and a mean takes 4 bytes.
        2 * P :: You counted the two means, not their bytes: each has 4.
        4 * P :: 4 bytes a parameter: one float32 mean where AdamW keeps two, or two means in bfloat16 where the run
            is float32.
        12 * P :: Several ways lead to 12 bytes: a master copy counted with the states, or the weights, or the
            gradients. In float32 the weights are the master, and the states alone are the two means.
        20 * P :: 20 bytes are a whole recipe, with a master copy and a second gradient. Asked are two float32 means.
        16 * P :: You counted weights and gradients too. The states alone are half.
        16 * billions * 10**9 :: {16 * billions} GB is often quoted: 16 bytes for each of {billions} billion,
            which is weights, gradients and states together.
        8 * billions * 10**9 :: {billions}B is a name. The count is {P:,}.
        8 * rounded :: You rounded the count to {rounded / 10 ** 9:.1f} billion. Three digits need three of the count.
        """,
    ),
    FunctionExercise(
        id="1.3",
        letters={"count": llama_parameters},
        right=llama_parameters,
        unit="parameters",
        probes=(
            (4096, 32, 32000, 4096, 11008),
            (4096, 32, 128256, 1024, 14336),
            (2048, 16, 1000, 512, 3000),
        ),
        because="It gives Llama-2-7B's 6,738,415,616 and Llama-3-8B's 8,030,261,248.",
        parts="""
        v * h :: one table of v times h (token embedding and head are two tensors)
        L * h * h :: the query or the output matrix, h times h
        L * h * k :: the key or the value matrix, h times k
        L * h * f :: one of the MLP's three matrices (gate, up and down)
        L * h :: one of the two norms of a block
        h :: the norm after the last block
        """,
        extras="""
        L * (2 * h + 2 * k) :: biases of the attention's matrices
        L * (2 * f + h) :: biases of the MLP
        """,
        table="""
        count(h, L, v, h, f) :: You made keys and values as wide as the queries. Their width is k.
        count(h, L, v, k, f) - L * 2 * h - h :: The norms are missing: two vectors of h in each block, and one at the
            end.
        count(h, L, v, k, f) + L * 2 * h + h :: You gave the norms a bias. An RMSNorm is one vector.
        count(h, L, v, k, 4 * h) :: You made the MLP 4h wide, as in GPT-2. Its width is f.
        count(h, L, v, k, f) - L * h * h :: Your answer is what one gets with the query or the output matrix, h times
            h missing.
        count(h, 1, v, k, f) :: You counted one block. There are L.
        count(h, L, 0, k, f) :: Both tables of v times h are missing.
        count(h, L, v, k, f) + L * h * (k - h) :: Three attention matrices of width k. Two are: query and output are h
            by h.
        count(h, L, v, k, f) + L * h * (h - k) :: One attention matrix of width k. Two are: the keys' and the values'.
        count(h, L, v, k, f) + L * 2 * k * (k - h) :: Keys and values from k to k. Their matrices take the hidden
            state: h by k.
        count(h, L, v, k, f) + (L - 1) * h :: You counted the last norm in each block. It comes once, after the blocks.
        v * h + L * (12 * h * h + 13 * h) + 2 * h :: That is GPT-2's count. A Llama has no biases, a gated MLP, keys
            of width k and a head of its own.
        12 * h * h * L :: That is GPT-2's short formula: the matrices of its blocks alone. A Llama's are others, and
            tables and norms come besides.
        2 * count(h, L, v, k, f) :: That is twice the count. If you multiplied by 2 bytes: the exercise
            asks for parameters.
        """,
    ),
    FunctionExercise(
        id="1.4",
        right=block_activation_bytes,
        unit="bytes",
        probes=((8, 1024, 1280, 20), (4, 512, 768, 12), (1, 2048, 4096, 16)),
        because="Two norms, the linear layers' inputs, q, k, v, the MLP's two wide tensors, and the log-sum-exp.",
        parts="""
        4 * a * b * s :: the log-sum-exp, 4abs,
        2 * s * b * h :: one tensor of 2sbh (a norm's input or output, q, k, v or attention's output)
        8 * s * b * h :: one of the MLP's two wide tensors, 8sbh,
        """,
        extras="""
        s * b * h :: a dropout mask of sbh
        2 * a * s**2 * b :: the softmax, 2as²b,
        a * s**2 * b :: dropout's mask of the scores, as²b,
        16 * b * s :: the two norms' statistics, 16bs,
        """,
        table="""
        b * a * s**2 * 2 + b * s * 4 * h * 2 :: This is the function as published. It has one score tensor, and one
            MLP tensor of two.
        b * s * 4 * h * 2 :: You struck the scores and kept the published MLP tensor. The ledger has nine more lines.
        34 * s * b * h :: You struck the scores from 34sbh + 5as²b. Two of the 34 are dropout masks, and flash keeps
            one float32 number per head and token, 4abs.
        34 * s * b * h + 4 * a * b * s :: You counted two dropout masks, a byte a value each. There is no dropout
            here.
        33 * s * b * h + 4 * a * b * s :: Your answer is what one gets with a dropout mask of sbh counted too.
        32 * s * b * h :: Your answer is what one gets with the log-sum-exp, 4abs, missing.
        34 * s * b * h + 5 * a * s**2 * b :: This is Korthikanti's formula, for stored scores and dropout.
        32 * s * b * h + 2 * a * s**2 * b :: You kept the softmax. Flash attention never stores the scores.
        64 * s * b * h + 4 * a * b * s :: These are float32 activations. The question has 16-bit values.
        32 * s * b * h + 2 * a * b * s :: The log-sum-exp is one float32 number per head and token: 4 bytes, not 2.
        32 * s * b * h + 4 * a * b * s**2 :: One number per head and token, not per pair of tokens: 4abs.
        16 * s * b * h + 4 * a * b * s :: Two ways lead there: the MLP's two wide tensors alone; or all tensors,
            without their 2 bytes a value.
        16 * s * b * h :: The MLP's two wide tensors and nothing else: half of 32sbh is missing, and the log-sum-exp.
        16 * s * b * h + a * b * s :: You counted values: 2 bytes for one of 16 bits, 4 for the log-sum-exp's.
        32 * s * b * h + 4 * b * s :: The log-sum-exp is one number for each head and token: 4abs, not 4bs.
        32 * s * b * h + 4 * a * s :: The log-sum-exp is one number for each head and token of every sequence: 4abs,
            not 4as.
        28 * s * b * h + 4 * a * b * s :: Two tensors of 2sbh are missing. The inputs of the two norms are often
            forgotten.
        26 * s * b * h + 4 * a * b * s :: Three tensors of 2sbh are missing: query, key and value, if you kept the
            norms' inputs.
        """,
    ),
    JudgedExercise(
        id="1.5",
        judge=judge_seq_len,
        because="From here on the activations at the start of the backward outweigh the optimizer's temporaries.",
    ),
    JudgedExercise(
        id="1.6",
        letters={"setup": ON_A100, "card": CARDS["A100 SXM 40 GB"]},
        judge=judge_fill,
        also=(37.0,),
        because="One more and the logits and their gradient no longer fit beside weights and states.",
    ),
    ChoiceExercise(
        id="1.7",
        right="b",
        because="Step 1 runs its forward without them; step 2 has them from the start.",
        table="""
        a :: Possible in general, but equal shapes find their old blocks again.
        c :: zero_grad frees them by default. They are gone before step 2 begins.
        d :: The batch has the same shape, so its activations have the same bytes.
        """,
    ),
)
