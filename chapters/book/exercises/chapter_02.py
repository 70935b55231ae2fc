"""The exercises of chapter 02: what a number of 16, 8 or 4 bits holds."""

import math
from collections.abc import Callable, Iterable
from itertools import accumulate, repeat
from numbers import Real

import numpy as np
import torch

from book.exercises import ChoiceExercise, FunctionExercise, JudgedExercise, NumberExercise
from book.exercises.tables import function_of, rows_of
from memkit.formats.records import FORMATS
from memkit.formats.rounding import decode, encode, round_to


def to_bfloat16(bits: int) -> int:
    """The BF16 code nearest to the float32 with these bits."""
    value = decode(bits, "float32")
    return int(encode(value, "bfloat16", overflow="inf"))


def upper_bits(cut: int) -> Callable[[int], int]:
    """Rounds a float32's bits to nearest, ties to even, and cuts ``cut`` of them off: 16 leave BF16."""
    return lambda bits: (bits + (1 << cut - 1) - 1 + (bits >> cut & 1)) >> cut


def totals_of(term: float, name: str) -> list[float]:
    """The total after each of 8,192 additions of a term, in torch's own arithmetic."""
    step = torch.tensor(term, dtype=getattr(torch, name))
    return [total.item() for total in accumulate(repeat(step, 8192))]


def sticks_at(term: float, name: str) -> float:
    """The total at which a sum of this term stops growing in a format."""
    return totals_of(term, name)[-1]


def additions_until_stuck(term: float) -> int:
    """How many additions of this term move a float16 total before the last one that does."""
    totals = totals_of(term, "float16")
    return totals.index(totals[-1])


def share_moved(name: str, rounds_first: bool = True) -> float:
    """Share of the weights of exercise 2.6 that change when 1e-5 is taken off them in a format."""
    drawn = np.random.default_rng(0).normal(0, 0.02, 100_000)
    weights = round_to(drawn, name, overflow="inf")
    moved = round_to((weights if rounds_first else drawn) - 1e-5, name, overflow="inf")
    return float(np.mean(moved != weights))


def average(
    xs: Iterable, mean: object = 0.0, beta: object = 0.999, weight: object = 0.001
) -> torch.Tensor:
    """The moving average in the precision of its arguments, rounded to BF16 once more; of floats in float64."""
    for x in xs:
        mean = beta * mean + weight * x
    return torch.as_tensor(mean).bfloat16()


def moving_mean(xs: torch.Tensor) -> torch.Tensor:
    """The moving average in float64, rounded once."""
    return average(xs.tolist())


_ONES = torch.ones(2000, dtype=torch.bfloat16)
_STEPS = torch.cat([torch.ones(1500), torch.zeros(500)]).bfloat16()
_BETA, _WEIGHT = torch.tensor((0.999, 0.001), dtype=torch.bfloat16)
_WRONG_MEANS = """
    average(xs, torch.zeros_like(beta), beta, weight) :: It still stops at 0.5: as long as mean is BF16, a thousandth is
        less than half its step there.
    average(xs, torch.zeros(()), beta.float(), weight) :: mean is wide now, but beta went through BF16, where 0.999 is
        1: nothing is forgotten.
    xs.float().mean().bfloat16() :: That is the plain mean of all values. A moving average starts at 0 and forgets.
    torch.tensor(moving_mean(xs).item() / (1 - 0.999 ** len(xs))).bfloat16() :: That is the moving average with Adam's
        bias correction. Asked is the plain average.
    average(xs.tolist(), beta=0.001, weight=0.999) :: Your result is close to the last value. Are the weights turned
        round? 0.999 belongs to mean, 0.001 to x.
    average(xs.tolist(), beta=0.99, weight=0.01) :: Your mean forgets ten times as fast: 0.999 belongs to mean, 0.001 to
        x.
    average(xs.half(), torch.zeros((), dtype=torch.float16)) :: float16 has three bits more than BF16 and sticks too,
        only later. Use a wide number.
    average(xs.tolist()[1:], mean=xs[0].item()) :: You started at the first value. The average starts at 0.
"""
_LETTERS = {"torch": torch, "average": average, "moving_mean": moving_mean}
_LETTERS |= {"beta": _BETA, "weight": _WEIGHT}
_MEANS = [(function_of(row, moving_mean, _LETTERS), words) for row, words in rows_of(_WRONG_MEANS)]
"""Wrong averages with their diagnoses; on ``_STEPS`` no two of them agree."""


def _judge_moving_mean(answer) -> str | None:
    given = [answer(_STEPS), answer(_ONES)]
    if not all(
        isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 for value in given
    ):
        return "The result is to be a BF16 tensor: round once, at the end."
    if any(value.numel() != 1 for value in given):
        return f"The result has {given[0].numel():,} values. Asked is the mean after the last one: one number."
    if given == [moving_mean(_STEPS), moving_mean(_ONES)]:
        return None
    for mean, diagnosis in _MEANS:
        if given == [mean(_STEPS), mean(_ONES)]:
            return diagnosis
    if given[1] == moving_mean(_ONES):
        return "Right for ones, not for ones followed by zeros: an average has to forget."
    if given[1] in (0.25, 0.5):
        return f"It stops at {given[1].item():g}: mean is still BF16, and an update is less than half its step there."
    exact = 1 - 0.999 ** len(_ONES)
    return (
        f"2,000 ones give {given[1].item():.4g}; in exact arithmetic it is {exact:.4g}, which BF16 holds as "
        f"{moving_mean(_ONES).item():.4g}. I cannot tell which mistake this is."
    )


def _judge_scale(answer) -> str | None:
    answer = answer.item() if getattr(answer, "shape", None) == () else answer
    if isinstance(answer, bool) or not isinstance(answer, Real):
        return f"{answer!r} is not a number."
    if not 0 < answer < math.inf:
        return f"{answer!r} is no scale. It is a power of two, above 0."
    largest = FORMATS["float16"].max
    right = 2 ** math.floor(math.log2(FORMATS["float16"].max / 3.0))
    known = {
        math.log2(right): "That is the exponent. The scale is 2 to that power.",
        1
        / right: "That is one over the scale. The gradients are multiplied by it, so that small ones survive.",
        largest: "That is FP16's largest value. Three times the scale has to stay below it.",
        2**16: "That is where PyTorch's GradScaler starts. Here it overflows at once.",
    }
    if answer in known:
        return known[answer]
    if 3 * answer > largest + 16:  # half a step beyond the largest value
        return f"3 · {answer:,.7g} is {3 * answer:,.7g}: beyond FP16's largest value of 65,504."
    if math.frexp(answer)[0] != 0.5:
        return "Nothing overflows, but this is no power of two: scaling would round."
    return None if answer == right else "Safe, but not the largest: twice as much still fits."


def round_by_chance(x: np.ndarray, gap: float, rng: np.random.Generator) -> np.ndarray:
    """Stochastic rounding to multiples of ``gap``."""
    below = np.floor(x / gap)
    return (below + (rng.random(x.shape) < x / gap - below)) * gap


def _judge_stochastic(answer) -> str | None:
    gap, num = 0.25, 20_000
    x = np.full(num, 0.3)
    given = np.asarray(answer(x, gap, np.random.default_rng(1)))
    if given.shape != x.shape:
        return f"The result has the shape {given.shape}; x has {x.shape}."
    if np.all(np.isin(given, (1, 2))):
        return "These are numbers of gaps, 1 or 2. Multiply by gap."
    if not np.all(np.isin(given, (0.25, 0.5))):
        return "0.3 with a gap of 0.25 can become 0.25 or 0.5, nothing else: the results are multiples of gap."
    if np.all(given == given[0]):
        if np.ptp(
            [float(np.asarray(answer(x, gap, np.random.default_rng(i)))[0]) for i in range(40)]
        ):
            return "One coin decides for all values. Each value needs a chance of its own: rng.random(x.shape)."
        way = ("down", "up")[int(given[0] > 0.3)]
        return f"Every 0.3 goes {way}, each time: nothing is left to chance."
    if np.array_equal(given, answer(x, gap, np.random.default_rng(2))):
        return "Another rng gives the same values. Draw from the one that is handed in."
    if not np.array_equal(given, answer(x, gap, np.random.default_rng(1))):
        return "The same rng gives other values the second time. Draw from the one that is handed in, and only from it."
    if abs(given.mean() - 0.3) > 0.005:  # ten standard deviations
        coin = ""
        if abs(given.mean() - 0.375) < 0.005:
            coin = " A fair coin forgets how near the neighbours are."
        elif abs(given.mean() - 0.45) < 0.005:
            coin = " You go up where you should go down: the sign of the comparison is turned."
        return f"On average 0.3 became {given.mean():.3f}: the chance of going up is what is left over, 0.2.{coin}"
    try:
        shape = np.shape(answer(x.reshape(100, -1), gap, np.random.default_rng(1)))
    except (TypeError, ValueError):
        shape = None
    if shape != (100, num // 100):
        return "Right for a row, not for a matrix: x needs a chance for each of its values, rng.random(x.shape)."
    mixed = np.asarray(answer(np.resize([0.3, -0.3], num), gap, np.random.default_rng(1)))
    positive, negative = mixed[::2].mean(), mixed[1::2].mean()
    if abs(positive - 0.3) > 0.005:
        return f"Beside −0.3, 0.3 became {positive:.3f} on average: each value has a chance of its own."
    if abs(negative + 0.3) > 0.005:
        return f"Right for 0.3, but −0.3 became {negative:.3f} on average: below is np.floor, also left of 0."
    return None


def bits_to_round(cut: int) -> tuple[tuple[int], ...]:
    """float32 codes around one, with ties to both sides, a carry, a negative number, the largest and a subnormal."""
    one, half = 0x3F800000, 1 << cut - 1
    near_one = (one, one + half, one + 3 * half, one + 2 * half * 0x7F + half + 1, one + half + 1)
    return tuple((bits,) for bits in (*near_one, 0xC0490FDB, 0x7F7FFFFF, half - 1))


EXERCISES = (
    NumberExercise(
        id="2.1",
        letters={
            "decode": decode,
            "code": 0b0_10010_11,
            "field": "code >> 2 & 31",
            "mantissa": "code & 3",
            "power": "2.0 ** (field - 15)",
            "significand": "1 + mantissa / 4",
            "value": "power * significand",
        },
        formula="value",
        unit="",
        also=("float(decode(code, 'float8_e5m2'))",),
        because="2^({field} − 15) is {power:g}, and {power:g} · (1 + {mantissa}/4) is {value:g}.",
        table="""
        power * mantissa / 4 :: You left out the 1 that is not stored: the significand is 1 + {mantissa}/4.
        power * (1 + mantissa / 8) :: Two mantissa bits count quarters, not eighths.
        2.0 ** (field - 7) * significand :: You took E4M3's bias of 7. E5M2's is 15.
        2.0 ** field * significand :: You did not take off the bias: the exponent is {field} − 15.
        -value :: The first bit is the sign, and 0 is plus.
        significand :: That is the significand alone. Multiply by 2^({field} − 15).
        2 * value :: Twice too much: an exponent one too high. The field is {field} and the bias 15.
        value / 2 :: Half of it: an exponent one too low. The field is {field} and the bias 15.
        power :: That is the power alone. Multiply by the significand, 1 + {mantissa}/4.
        value / 4 if power != 4 else None :: A quarter of it: divide once by 4, in {mantissa}/4. Or the exponent is two
            too low.
        power * 1.5 if mantissa == 3 else None :: You read one mantissa bit. There are two: 11 is a half and a quarter.
        float(code) :: That is the code, read as a whole number. Cut it into its three fields.
        3 * power if mantissa == 3 else None ; 4 * power if mantissa == 3 else None :: The mantissa field 3 is three
            quarters, not 3.
        2 * power if mantissa == 3 else None :: That is the next power of two. 1 + 3/4 stays below 2.
        2.0 ** (15 - field) * significand if field != 11 else None :: The exponent is {field} − 15, not its negative.
        power + mantissa / 4 if power >= 4 else None :: You added. The power is multiplied by 1 + {mantissa}/4.
        (field - 15) * significand if field not in (17, 19) else None :: {field} − 15 is an exponent, no factor.
        """,
    ),
    NumberExercise(
        id="2.2",
        letters={"P": 7_000_000_000, "nvfp4_bits": 4 + 8 / 16, "mxfp4_bits": 4 + 8 / 32},
        formula="int(P * nvfp4_bits / 8)",
        tolerance=0.005,
        also=("float(f'{4.5 * P / 8:.2e}')", "P * 4.5 / 8"),
        because="4.5 bits per value: an eighth more than 4.",
        table="""
        P * 4 // 8 :: The scales are missing: half a bit for each value.
        int(P * mxfp4_bits / 8) :: That is MXFP4, with blocks of 32. NVFP4's blocks are half as long.
        P * 12 // 8 :: You gave every value its own scale. Sixteen share one.
        P * 6 // 8 :: You gave each block a scale of 32 bits. NVFP4's has eight.
        P * 20 // 8 :: You added 16 bits a value. The 16 is the length of a block; it shares 8 bits.
        P // 16 :: That is the scales alone.
        P * 45 // 10 :: That is the number of bits. The answer is in bytes.
        P * 2 :: That is 16 bits a value, as before the model was put into NVFP4.
        P :: That is the number of values, or a byte for each. A value takes half a byte and its share of a scale.
        P * 9 // 8 :: Twice too much: that is 9 bits a value, not 4.5.
        P * 5 // 8 :: A scale of 16 bits a block, or of 8 bits for 8 values. It is 8 bits for 16.
        4e9 if P == 7 * 10**9 else None :: Rounded to one digit. Three are asked.
        float(f'{4.5 * P / 8:.1e}') :: Rounded to two digits. Three are asked: {float(format(4.5 * P / 8,
            ".2e")):,.0f}.
        """,
    ),
    NumberExercise(
        id="2.3",
        letters={
            "sticks": sticks_at,
            "log2": math.log2,
            "term": 0.1,
            "total": "sticks(term, 'float16')",
            "step": "total / 2**10",
            "count": additions_until_stuck,
        },
        formula="total",
        unit="",
        also=("int(total)", "total"),
        because="From {total:g} on float16's step is {step:g}, and {term} is less than half of it.",
        table="""
        total / 2 :: You compared the term with the whole step. Rounding to nearest loses it at half a step.
        sticks(term, 'bfloat16') :: That is where BF16 sticks, with seven mantissa bits. float16 has ten.
        2048.0 :: That is where a sum of ones sticks. A smaller term sticks earlier.
        65504.0 :: That is where float16 ends. The sum stops long before.
        term * 2**11 ; float(f'{term * 2**11:.0e}') :: That is where half a step would equal the term. Steps change only
            at powers of two: take the next.
        total * 2 :: The sum sticks one power of two earlier: at {total:g} half a step is {step / 2:g}, more
            than {term}.
        total - term :: {total - term:g} is no float16 number: below {total:g} the step is {step / 2:g}, and the last
            term carries the sum to {total:g}.
        term * 2**10 :: That is where a whole step would equal the term. Half a step counts, and steps change at powers
            of two.
        count(term) ; count(term) + 1 :: That is how many terms it took. Asked is the total.
        log2(total) :: That is the exponent. The total is 2 to that power.
        term :: That is one term. Asked is where the sum of many stops.
        step :: That is float16's step at {total:g}. Asked is the total.
        total + term :: At {total:g} the term is lost: the total stays there.
        total / term :: That is how many terms it would take without rounding. Asked is the total.
        1024.0 if total < 2**9 else None :: float16 has 1,024 steps between two powers of two; that is no total. There
            a step is 1.
        """,
    ),
    FunctionExercise(
        id="2.4",
        letters={
            "cut": 16,
            "half": "1 << cut - 1",
            "right": to_bfloat16,
            "decode": decode,
            "torch": torch,
        },
        right=to_bfloat16,
        probes=bits_to_round(16),
        forbidden=("torch", "np", "numpy", "struct", "float", "round_to", "encode", "decode", "/"),
        shows=lambda value: f"{value:#x}",
        because="A carry out of the lower bits is what rounding up is, also into the exponent and into infinity.",
        table="""
        bits >> cut :: You cut the lower bits off: that rounds toward zero.
        (bits + half) >> cut :: Your ties always go up. They go to the even code: down where the last kept bit is 0.
        (bits + half - 1) >> cut :: Your ties always go down. Where the last kept bit is 1 they go up.
        bits & 2 * half - 1 :: These are the lower {cut} bits. Asked are the upper ones of a float32.
        torch.tensor(decode(bits, 'float32')).bfloat16().view(torch.int16).item() :: Your function uses torch, and the
            exercise asks to do without it.
        bits >> cut << cut :: You cleared the lower bits and left 32. The result has {32 - cut}: shift once more.
        right(bits) << cut :: You cleared the lower bits and left 32. The result has {32 - cut}: shift once more.
        bits + half - 1 + (bits >> cut & 1) :: You added the right number and did not cut: the result is the upper
            bits, >> {cut}.
        (bits + half - (bits >> cut & 1)) >> cut :: Your ties go to the odd code. They go to the even one.
        (bits + 2 * half - 1) >> cut :: You round everything up that does not end in zeros.
        """,
    ),
    JudgedExercise(
        id="2.5",
        judge=_judge_moving_mean,
        because="A long recursion needs a wide number, or two narrow ones as Kahan has; its constants are wide too.",
    ),
    NumberExercise(
        id="2.6",
        letters={"moved": share_moved, "share": "moved('bfloat16')"},
        formula="share",
        unit="share",
        tolerance=0.01,
        also=("round(share, 3)",),
        because="Only weights so near zero that their step is below 2e-5 take the update.",
        table="""
        1 - share :: That is the share that stays. Asked is what moves.
        moved('float16') :: That is float16: its steps here are an eighth of BF16's. Or 1e-4 was taken off, not 1e-5.
        1.0 :: You compared BF16 with float64, and there every weight differs. Round the weights first,
            and the difference after.
        0.5 :: Half of the weights are larger than 0.0135. There a step is 6e-5 at least, and 1e-5 is less than half of
            it. Count what moves.
        0.0 :: Some do move: those near zero, where BF16's values are closer together.
        moved('bfloat16', rounds_first=False) :: You took 1e-5 off before the weights were BF16.
        round(share, 2) :: Rounded to two digits. Three are asked.
        share / 2 ; 2 * share :: Off by a factor of two: half a step is enough to round to the next value.
        100 * share :: That is the number of percent. The answer is a share, from 0 to 1.
        100_000 * share :: That is how many of the 100,000 move. Divide by all of them.
        """,
    ),
    JudgedExercise(
        id="2.7",
        judge=_judge_scale,
        also=(2**14, 2.0**14, np.float64(16384)),
        because="3 · 16,384 is 49,152; twice that is beyond 65,504.",
    ),
    JudgedExercise(
        id="2.8",
        judge=_judge_stochastic,
        because="The error of each value is larger than with rounding to nearest. Its average is zero.",
    ),
    ChoiceExercise(
        id="2.9",
        letters={
            "fp16": FORMATS["float16"],
            "bf16": FORMATS["bfloat16"],
            "e5m2": FORMATS["float8_e5m2"],
        },
        right="b",
        because="BF16 reaches {bf16.max:.2g}, is off by {bf16.eps / 2:.1%} at most, and an A100 multiplies it.",
        table="""
        a :: FP16 ends at {fp16.max:,.0f}: a cast makes 70,000 infinite.
        c :: FP8 E5M2 fails all three tests. It ends at {e5m2.max:,.0f}, it is off by up to {e5m2.eps / 2:.1%}, and an
            A100 does not multiply it.
        d :: It would serve. But TF32 only rounds the inputs of a product: in memory a value takes four bytes, and one
            of the others serves with two.
        """,
    ),
)
