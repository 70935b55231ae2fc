"""Lab 6: training in eight bits."""

from dataclasses import replace

from book.exercises import exercises_of
from course.labs.tasks import Lab, Prose, Task

CHOICES = {
    "amax": [0.35, 0.7, 1.4, 1.75, 2.8, 3.2, 5.6, 8.96, 11.2, 17.5, 22.4, 28.0, 35.0, 44.8],
    "tokens": range(1024, 16384, 512),
    "inputs": [2048, 2560, 3072, 5120, 6144, 8192],
    "outputs": range(6400, 28_672, 512),
    "seed": range(1, 1000),
}
PRODUCT = """m_a, m_b = 448 / a.abs().max(), 448 / b.abs().max()
a8, b8 = (a * m_a).to(torch.float8_e4m3fn), (b * m_b).to(torch.float8_e4m3fn)
return (a8.float() @ b8.float().t()) / (m_a * m_b)"""

LAB = Lab(
    name="lab6",
    title="Lab 6 · Training in eight bits",
    chapter=6,
    goals=(
        "find the factor with which a tensor is cast, also as a power of two",
        "write a product of two tensors in eight bits",
        "count what eight bits save, and from where on they pay",
    ),
    imports="import math\n\nimport torch",
    choices=CHOICES,
    tasks=(
        Task(
            exercise_id="6.1",
            title="A factor",
            answer="multiplier",
            points=2,
            minutes=5,
            question="""A tensor's largest magnitude is `mine["amax"]`. It is to be held in E4M3 (torch's
`float8_e4m3fn`) with one factor for all. By which number is it multiplied before the cast?""",
            solution='multiplier = 448 / mine["amax"]',
            exercise=lambda mine: exercises_of(6)["6.1"].given(amax=mine["amax"]),
        ),
        Task(
            exercise_id="6.2",
            title="A saved input",
            answer="num_bytes",
            points=2,
            minutes=5,
            question="""A layer reads `mine["tokens"]` tokens of `mine["inputs"]` values. Transformer Engine saves its
input in MXFP8: 32 E4M3 values share one scale of eight bits. How many bytes?""",
            solution='num_bytes = mine["tokens"] * mine["inputs"] * 33 // 32',
            exercise=lambda mine: exercises_of(6)["6.2"].given(
                tokens=mine["tokens"], inputs=mine["inputs"]
            ),
        ),
        Task(
            exercise_id="6.3",
            title="A power of two",
            answer="factor",
            points=3,
            minutes=10,
            question="""Write the rule of torchao's rowwise recipe: the largest power of two that is at most
`largest / amax`. Both are positive numbers.""",
            opening='''def factor(amax, largest=448.0):
    """The largest power of two that is at most largest / amax."""''',
            solution="return 2.0 ** math.floor(math.log2(largest / amax))",
            shown='assert factor(448.0) == 1.0, "448 is where the format ends"',
            exercise=lambda mine: replace(
                exercises_of(6)["6.3"],
                probes=(
                    (mine["amax"],),
                    (3.0,),
                    (3.9,),
                    (7.0,),
                    (600.0,),
                    (2500.0,),
                    (2e-5, 57344.0),
                    (1.1, 6.0),
                ),
            ),
        ),
        Task(
            exercise_id="6.4",
            title="A product in eight bits",
            answer="fp8_product",
            points=4,
            minutes=15,
            question="""Write an FP8 product that is near `a @ b.T`: cast both tensors to `torch.float8_e4m3fn`,
each with a factor of its own, multiply them as float32, and undo the factors. The tensors it is graded on are
drawn for you; their sizes are far apart.""",
            opening='''def fp8_product(a, b):
    """a @ b.T, with both held in eight bits on the way."""''',
            solution=PRODUCT,
            shown="""ones = fp8_product(torch.ones(2, 4), torch.ones(3, 4))
assert ones.shape == (2, 3) and bool(((ones - 4).abs() < 0.3).all()), "four times one"
""",
            exercise=lambda mine: exercises_of(6)["6.4"].given(seed=mine["seed"]),
            near=(
                "only one of the two was cast",
                "times too large",
                "Right but for a factor",
                "each needs a factor",
                "without its sign",
                "is clipped",
            ),
        ),
        Task(
            exercise_id="6.6",
            title="When it pays",
            answer="tokens_to_pay",
            points=3,
            minutes=10,
            question="""A layer has `mine["inputs"]` inputs and `mine["outputs"]` outputs. Transformer Engine on
Hopper, per tensor, keeps the bf16 weight, two casts of it and the input in eight bits. From how many tokens a
micro-batch on does it keep less than bf16 does? Give the number at which both are even; scales do not count.""",
            solution='tokens_to_pay = 2 * mine["outputs"]',
            exercise=lambda mine: exercises_of(6)["6.6"].given(
                inputs=mine["inputs"], outputs=mine["outputs"]
            ),
        ),
    ),
    prose=Prose(
        question="""After a switch to FP8 a run shows the same peak as before, within one per cent. Why may that
be, and what did the switch buy all the same? Four sentences at most.""",
        points=3,
        rubric=(
            "1 point: what is saved for the backward, the weights or the states kept their dtype.",
            "1 point: casts of the weights are in memory beside the bf16 ones; the peak may be the optimizer's.",
            "1 point: faster products on cards that have them, where the layers are large.",
        ),
    ),
)
