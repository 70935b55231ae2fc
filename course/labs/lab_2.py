"""Lab 2: what a number of few bits holds."""

from dataclasses import replace

from book.exercises import exercises_of
from book.exercises.chapter_02 import bits_to_round, upper_bits
from course.labs.tasks import Lab, Prose, Task, needs_three_digits

CHOICES = {
    "code": [
        f"0 {field:05b} {mantissa:02b}"
        for field in (*range(9, 14), *range(17, 25))
        for mantissa in (1, 2, 3)
    ],
    "parameters": [
        n
        for n in range(1_300_000_000, 13_000_000_000, 17_000_000)
        if needs_three_digits(n * 4.5 / 8)
    ],
    "term": [0.003, 0.007, 0.013, 0.03, 0.05, 0.11, 0.17, 0.23, 2.3, 2.7, 3.3],
    "cut": [11, 12, 13, 14, 15, 17, 18, 19, 20],
}


def _upper_bits(mine):
    cut = mine["cut"]
    exercise = exercises_of(2)["2.4"].given(cut=cut, right=upper_bits(cut))
    return replace(exercise, right=upper_bits(cut), probes=bits_to_round(cut))


LAB = Lab(
    name="lab2",
    title="Lab 2 · What a number holds",
    chapter=2,
    goals=(
        "read a code of eight bits, and count the bytes of a block format with its scales",
        "say where a sum in a narrow format stops growing, and why",
        "round to nearest even with whole numbers alone",
    ),
    imports="import math\n\nfrom memkit import FORMATS",
    choices=CHOICES,
    tasks=(
        Task(
            exercise_id="2.1",
            title="Read a code",
            answer="value",
            points=2,
            minutes=5,
            question="""What number is the code `mine["code"]` in FP8 E5M2: one sign bit, five exponent bits with a
bias of 15, two mantissa bits?""",
            solution="""sign, field, mantissa = (int(bits, 2) for bits in mine["code"].split())
value = 2 ** (field - 15) * (1 + mantissa / 4)""",
            exercise=lambda mine: exercises_of(2)["2.1"].given(
                code=int(mine["code"].replace(" ", ""), 2)
            ),
        ),
        Task(
            exercise_id="2.2",
            title="Bytes of a 4-bit model",
            answer="weight_bytes",
            points=2,
            minutes=5,
            question="""A model of `mine["parameters"]` parameters is stored in NVFP4: 4-bit values, one 8-bit
scale per 16 of them (leave out the one float32 per tensor). How many bytes, to three digits?""",
            solution='weight_bytes = mine["parameters"] * (4 + 8 / 16) / 8',
            exercise=lambda mine: exercises_of(2)["2.2"].given(P=mine["parameters"]),
        ),
        Task(
            exercise_id="2.3",
            title="Where it sticks",
            answer="total",
            points=3,
            minutes=10,
            question="""A float16 total starts at 0 and gets `mine["term"]` added again and again. At which total
does it stop growing?""",
            solution='total = 2.0 ** (math.ceil(math.log2(mine["term"])) + 10 + 1)',
            exercise=lambda mine: exercises_of(2)["2.3"].given(term=mine["term"]),
        ),
        Task(
            exercise_id="2.4",
            title="Round to nearest even with whole numbers",
            answer="upper_bits",
            points=4,
            minutes=20,
            question="""The bits of a float32 come as a whole number of 32 bits (no NaN). Cut the lowest
`mine["cut"]` of them off and round to the nearest value that is left, ties to the even code: cutting 16 would give
BF16, cutting 13 the 19 bits of TF32. Return the bits that are left. No floating-point arithmetic, no NumPy, no
torch.""",
            opening='''def upper_bits(bits):
    """The nearest code that is left when the lowest mine["cut"] bits go."""''',
            solution="""cut = mine["cut"]
last_kept = bits >> cut & 1
return (bits + (1 << cut - 1) - 1 + last_kept) >> cut""",
            shown="""assert upper_bits(0x3F800000) == 0x3F800000 >> mine["cut"], "1.0 is held exactly"
assert upper_bits(0x3F800001) == 0x3F800000 >> mine["cut"], "just above 1.0: down"
""",
            exercise=_upper_bits,
            worthless=("You cut the lower bits off",),
        ),
    ),
    prose=Prose(
        question="""A colleague keeps a running mean of squared gradients in BF16 and finds that it no longer
moves. Say why, and name two cures with what each costs. Four sentences at most.""",
        points=3,
        rubric=(
            "1 point: a term below half a step of the total is rounded away; BF16 has eight significant bits.",
            "1 point: two cures (float32, Kahan's second number, stochastic rounding, blocks with a scale).",
            "1 point: what each costs (2 bytes more, 2 bytes more, noise, a scale).",
        ),
    ),
)
