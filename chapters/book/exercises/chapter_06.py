"""The exercises of chapter 06: what eight bits hold, and what they save."""

import math

import numpy as np
import torch

from book.exercises import ChoiceExercise, FunctionExercise, JudgedExercise, NumberExercise
from memkit.formats.blocks import scale_to


def power_of_two(amax: float, largest: float = 448.0) -> float:
    """The largest power of two that is at most largest / amax."""
    return 2.0 ** math.floor(math.log2(largest / amax))


_IS_LARGE = np.arange(1024) % 256 == 0


def _outliers(size: float = 100.0) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(64, 1024))
    x[:, _IS_LARGE] *= size
    return x


def share_lost(
    element: str, counts_all: bool = False, scaling: str = "tensor", size: float = 100.0
) -> float:
    """Share of the ordinary values of exercise 6.5 that become 0."""
    held = scale_to(_outliers(size), element, scaling).dequantize()
    return float(np.mean((held if counts_all else held[:, ~_IS_LARGE]) == 0))


def share_cut_off() -> float:
    """The same where a value is cut off and not rounded."""
    x = np.abs(_outliers())
    return float(np.mean(x[:, ~_IS_LARGE] < x.max() / 127))


def fp8_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b' with one factor for each."""
    m_a, m_b = 448 / a.abs().max(), 448 / b.abs().max()
    a8, b8 = _cast(a * m_a), _cast(b * m_b)
    return (a8 @ b8.t()) / (m_a * m_b)


def _cast(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def judge_product(answer, seed: int) -> str | None:
    chance = torch.Generator().manual_seed(seed)
    a, b = torch.randn(32, 64, generator=chance), 50 * torch.randn(48, 64, generator=chance)
    given = answer(a, b)
    if not isinstance(given, torch.Tensor) or given.shape != (32, 48):
        return "The result is to be a tensor with a row for each row of a and a column for each row of b."
    if given.element_size() == 1:
        return "The product itself is in eight bits: torch made it of two FP8 tensors. Cast them to float32 first."
    if not torch.isfinite(given).all():
        return "There is a NaN or an infinity in the result: a value beyond 448 became NaN in the cast."

    def error(result, x, y):
        return ((result - x @ y.t()).norm() / (x @ y.t()).norm()).item()

    size = (given.norm() / (a @ b.t()).norm()).item()
    if size > 10:
        return f"Still {size:,.0f} times too large: after the product the factors are divided out, each of them."
    if error(given / size, a, b) < 0.1 and not 0.9 < size < 1.1:
        return f"Right but for a factor of {size:.3g}: after the product both factors are divided out, each of them."
    if error(given, a, b) > 0.3:
        return "The size is about right, the values are not: b's largest, or the product, is beyond 448 and is clipped."
    if error(given, a, b) > 0.065:
        return "This is coarser than E4M3: two mantissa bits are E5M2's. Cast both to torch.float8_e4m3fn."
    small = 1e-3 * b
    tiny = answer(1e-3 * a, 1e-2 * small)
    if error(tiny, 1e-3 * a, 1e-2 * small) > 0.1:
        return "Right for these a and b. A thousand times smaller they are lost: each needs a factor from itself."
    if (found := error(given, a, b)) < 0.032:
        left = "nothing" if found < 0.01 else "only one of the two"
        return f"This is better than FP8 can be: {left} was cast to eight bits."
    if error(answer(a - 3, b), a - 3, b) > 0.1:
        return "Right for these. A large negative value is clipped: amax is the largest magnitude, without its sign."
    if error(answer(1e5 * a, small), 1e5 * a, small) > 0.1:
        return "Right where a and b are alike. With a much larger, b becomes 0: each needs a factor of its own."
    return None


EXERCISES = (
    NumberExercise(
        id="6.1",
        letters={"amax": 7.0},
        formula="448 / amax",
        unit="the multiplier",
        because="448 / {amax:g} = {448 / amax:g}: the largest magnitude lands on the largest value.",
        table="""
        amax / 448 :: That is the reciprocal: the scale that is stored, not the multiplier.
        57344 / amax :: You took E5M2, which ends at 57,344. E4M3 ends at 448.
        448.0 :: That is where the format ends. Divide it by what is to land there.
        240 / amax :: 240 is the end of IEEE's E4M3 and of AMD's first one. E4M3FN has 448.
        448.0 * amax :: Multiplied, the largest value would be {448 * amax ** 2:,.0f}: divide by amax.
        127 / amax :: 127 is the end of INT8.
        256 / amax :: You took 256, as the floor rule does. The exact factor moves amax to 448.
        448 / (2 * amax) :: Half of it: 448 / {amax:g} is a power of two already, and no rule rounds it further down.
        """,
    ),
    NumberExercise(
        id="6.2",
        letters={"tokens": 8192, "inputs": 4096, "values": "tokens * inputs"},
        formula="values + values // 32",
        tolerance=0.002,
        because="{values:,} elements and {values // 32:,} scales.",
        table="""
        values :: The scales are missing: one byte for every 32 values.
        2 * values :: That is bf16, two bytes a value.
        values // 32 :: Those are the scales alone. The elements are missing.
        values * 36 // 32 :: You gave each scale four bytes. E8M0 has eight bits.
        values * 17 // 16 :: Two ways lead there: a scale for every 16 values, as in NVFP4; or two bytes a scale.
        values * 129 // 128 :: 128 values a scale are DeepSeek's recipe. In MX a scale serves 32.
        values * 9 // 16 :: That is NVFP4, with 4.5 bits a value.
        2 * values * 33 // 32 :: You counted two casts. One is saved.
        """,
    ),
    FunctionExercise(
        id="6.3",
        letters={"ceil": math.ceil, "floor": math.floor, "log": math.log, "log2": math.log2},
        right=power_of_two,
        probes=(
            (3.0,),
            (3.5,),
            (3.9,),
            (448.0,),
            (500.0,),
            (2000.0,),
            (0.01,),
            (1e-6, 57344.0),
            (1.0, 6.0),
        ),
        because="Round down, never up; otherwise amax would land beyond the end.",
        table="""
        largest / amax :: The quotient is no power of two.
        2.0 ** ceil(log2(largest / amax)) :: You rounded up: 3 · 256 is 768, beyond 448.
        2.0 ** round(log2(largest / amax)) :: You rounded to the nearest. Where that is up, amax lands beyond the end.
        2.0 ** ceil(log2(amax / largest)) :: That is what is stored, the reciprocal.
        2.0 ** (floor(log2(largest)) - floor(log2(amax))) :: That is OCP's floor rule. 3.9 would land at 499, beyond
            448.
        2.0 ** floor(log2(448.0 / amax)) :: You took 448 whatever largest says.
        2.0 ** int(log2(largest / amax)) :: int() cuts towards zero: a negative exponent is rounded up, and 500 lands
            beyond 448.
        2.0 ** (int(largest / amax).bit_length() - 1) :: int() makes every quotient below 1 a 0, and the factor 1/2,
            whatever amax is: 2,000 would land beyond 448.
        2.0 ** floor(log2(amax / largest)) :: You divided the other way round: amax / largest is the scale that is
            stored.
        2.0 ** floor(log(largest / amax)) :: math.log is the natural logarithm. The exponent of two is math.log2's.
        floor(log2(largest / amax)) :: That is the exponent. The factor is two to that power.
        2.0 ** (ceil(log2(largest / amax)) - 1) :: Where the quotient is a power of two itself, as 448 / 3.5 is, it
            may be taken.
        """,
    ),
    JudgedExercise(
        id="6.4",
        judge=judge_product,
        letters={"seed": 0},
        because="Each operand has its own factor, and both leave the sum by division.",
    ),
    NumberExercise(
        id="6.5",
        letters={"lost": share_lost, "share_cut_off": share_cut_off},
        formula="lost('int8')",
        unit="the share",
        tolerance=0.001,
        also=(0.804, 0.8043),
        because="The step is 2.58, so everything within 1.29 standard deviations is gone.",
        table="""
        lost("float8_e4m3fn") :: That is E4M3, whose steps shrink with the value.
        lost("int8", counts_all=True) :: Two ways lead there: the four large columns counted too; or a step of amax /
            128. INT8 ends at 127.
        0.7946 ; 0.795 ; 0.79 ; 0.8072 ; 0.807 :: That is another matrix of the chapter. Here it has 64 × 1,024 values.
        0.8 :: Near. Two digits do not tell whether the four columns were counted.
        1 - lost("int8") ; round(1 - lost("int8"), 3) :: That is the share that survives.
        1.0 :: Not all of them: what is larger than half a step, in either direction, does not become 0.
        100 * lost("int8") :: That is in percent. The answer is a share of 1.
        lost("int8", scaling="row") :: You gave each row its own factor.
        lost("int8", size=1.0) :: You forgot to make the four columns larger.
        lost("int8", size=10.0) :: You made the columns 10 times larger, not 100.
        share_cut_off() :: You cut off where you should round, as astype(np.int8) does: np.round comes first.
        """,
    ),
    NumberExercise(
        id="6.6",
        letters={"inputs": 4096, "outputs": 14_336},
        formula="2 * outputs",
        unit="tokens",
        also=("float(f'{2 * outputs:.3g}')",),
        because="{2 * outputs:,} tokens: 2 bytes a weight against 1 byte a value of the input; the inputs cancel.",
        table="""
        outputs / 2 :: Turned round: it takes two values of the input to pay for the two bytes of a weight.
        outputs :: Half of it: with one cast of the weight, as on Blackwell, or an input of no bytes at all.
        2 * inputs :: The inputs cancel: both the weight and the saved input have them.
        inputs :: The inputs cancel. What does a weight cost for each of its outputs?
        4 * outputs ; 3 * outputs :: The bf16 weight is there in both. Only its two casts are paid for, a byte each.
        2 * inputs * outputs :: Those are bytes: how many tokens save as much?
        2 * (inputs + outputs) :: The output is bf16 in both: it saves nothing.
        2 * outputs + 1 :: From there on it keeps less. Asked is the number at which both are even.
        """,
    ),
    ChoiceExercise(
        id="6.7",
        right="b",
        because="What is saved for the backward has the dtype it had before.",
        table="""
        a :: Per tensor there are three scales a layer: twelve bytes.
        c :: It rounds a tensor to 512 bytes, and in bf16 as in FP8.
        d :: E5M2 has one byte too, and it exists only during the product.
        """,
    ),
)
