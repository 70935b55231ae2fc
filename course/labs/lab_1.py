"""Lab 1: where the bytes of a training step go."""

from dataclasses import replace

from book.exercises import exercises_of
from course.labs.tasks import Lab, Prose, Task, needs_three_digits, with_part
from memkit.cards import CARDS

CHOICES = {
    "parameters": [
        number
        for number in range(1_387_456_384, 6_000_000_000, 7_904_384)
        if needs_three_digits(number) and abs(number - round(number, -9)) > 10**8
    ],
    "head": ["of its own", "tied to the embedding"],
    "dropout": ["none", "on both outputs"],
    "seq_len": range(768, 3840, 128),
    "card": ["L40S", "A100 SXM 40 GB", "A100 SXM 80 GB"],
}
COUNT = """tables = 2 if mine["head"] == "of its own" else 1
attention, mlp = 2 * h * h + 2 * h * k, 3 * h * f
return tables * v * h + L * (attention + mlp + 2 * h) + h"""
BLOCK = """masks = 2 if mine["dropout"] == "on both outputs" else 0
attention, mlp, norms = (11 - 1) * s * b * h, (19 - 1) * s * b * h, 4 * s * b * h
return attention + mlp + norms + masks * s * b * h + 4 * a * b * s"""
FILL = """room = CARDS[mine["card"]].memory_bytes - 2 * GIB
setup = TrainingSetup(
    model=models.LLAMA_32_1B, precision=PURE_BF16, seq_len=mine["seq_len"], recomputation="full"
)
fits = [
    batch for batch in range(1, 150)
    if estimate_memory(replace(setup, micro_batch_size=batch)).peak_bytes <= room
]
largest_batch = max(fits)"""


def _count(mine):
    exercise = replace(
        exercises_of(1)["1.3"], probes=((1536, 24, 50_000, 512, 4000), (640, 7, 1_000, 320, 3000))
    )
    if mine["head"] == "of its own":
        return exercise
    words = "You counted two tables of v times h. Your head is tied to the embedding: there is one."
    because = f"With a tied head Llama-2-7B has {6_738_415_616 - 32_000 * 4096:,}."
    return replace(with_part(exercise, "-v * h", words), because=because)


def _block(mine):
    exercise = replace(
        exercises_of(1)["1.4"], probes=((3, 640, 1536, 16), (5, 384, 640, 10), (1, 1280, 2048, 32))
    )
    if mine["dropout"] == "none":
        return exercise
    words = "You left the dropout out. Each of your two outputs keeps a mask, a byte a value: 2sbh."
    return with_part(exercise, "2 * s * b * h", words)


def _fill(mine):
    exercise = exercises_of(1)["1.6"]
    setup = replace(exercise.values["setup"], seq_len=mine["seq_len"])
    return exercise.given(setup=setup, card=CARDS[mine["card"]])


LAB = Lab(
    name="lab1",
    title="Lab 1 · Where the bytes go",
    chapter=1,
    goals=(
        "say what weights, gradients, states and activations take, in bytes, from a model's sizes",
        "find the largest run that a card holds, by formula",
        "say in words what would have to change for a larger one",
    ),
    imports="""from dataclasses import replace

from memkit import CARDS, TrainingSetup, estimate_memory, models
from memkit.recipes import PURE_BF16
from memkit.units import GIB""",
    choices=CHOICES,
    tasks=(
        Task(
            exercise_id="1.2",
            title="The optimizer's states",
            answer="state_bytes",
            points=2,
            minutes=5,
            question="""A model of `mine["parameters"]` parameters trains in float32 with AdamW. How many bytes are
the **optimizer states** alone, to three digits?""",
            solution='state_bytes = mine["parameters"] * (4 + 4)',
            shown="""assert state_bytes is not ..., "not attempted yet"
assert state_bytes > 10**9, "a number of bytes"
""",
            exercise=lambda mine: exercises_of(1)["1.2"].given(P=mine["parameters"]),
        ),
        Task(
            exercise_id="1.3",
            title="Count the parameters",
            answer="parameters_of",
            points=3,
            minutes=15,
            question="""Write the parameter count of a Llama-style model: *h* hidden size, *L* layers, *v* vocabulary,
*k* width of all key heads together (and of all value heads), *f* MLP width. No biases; a norm is one vector of *h*.
The output head of your model is `mine["head"]`.""",
            opening='''def parameters_of(h, L, v, k, f):
    """Parameters of a Llama-style model with the head that you drew."""''',
            solution=COUNT,
            shown="""own, tied = 6_738_415_616, 6_607_343_616  # Llama-2-7B with a head of its own, and with a tied one
known = own if mine["head"] == "of its own" else tied
assert parameters_of(4096, 32, 32000, 4096, 11008) == known, f"Llama-2-7B has {known:,}"
""",
            exercise=_count,
        ),
        Task(
            exercise_id="1.4",
            title="Mend a published estimator",
            answer="block_bytes",
            points=3,
            minutes=15,
            question="""The activations that one GPT-2 block keeps with 16-bit values have been published as
`b * a * s**2 * 2 + b * s * 4 * h * 2` bytes. Mend it for flash attention. Leave out the norms' statistics; count the
one float32 number that flash keeps per head and token. Dropout in your block: `mine["dropout"]`
(the outputs of attention and of the MLP); a mask has a byte a value. The flash kernel itself drops nothing.""",
            opening='''def block_bytes(b, s, h, a):
    """Bytes that a block keeps: b sequences of s tokens, hidden size h, a heads."""''',
            solution=BLOCK,
            shown="""none = 12_607_488  # GPT-2 small, 512 tokens, without dropout
known = none + (786_432 if mine["dropout"] != "none" else 0)
assert block_bytes(1, 512, 768, 12) == known, f"512 tokens of GPT-2 small keep {known:,} bytes"
""",
            exercise=_block,
            worthless=("This is the function as published",),
        ),
        Task(
            exercise_id="1.6",
            title="Fill a card",
            answer="largest_batch",
            points=4,
            minutes=20,
            question="""Llama-3.2-1B in pure bfloat16, AdamW, `mine["seq_len"]` tokens, flash attention, full
recomputation (`recomputation="full"`), on `mine["card"]`. Leave 2 GiB for the context and the allocator. What is the
largest micro-batch that fits by formula?""",
            solution=FILL,
            shown="""assert largest_batch is not ..., "not attempted yet"
assert 0 < largest_batch < 200, "a number of sequences"
""",
            exercise=_fill,
            near=("without recomputation", "whole card", "the label for", "2·10⁹ bytes"),
        ),
    ),
    prose=Prose(
        question="""Your run of task 4 is to take **one sequence more** on the same card. Name two changes that would
make room, say for each which part of the memory it takes bytes from, and what it costs. Four sentences at most.""",
        points=3,
        rubric=(
            "1 point: two changes that lower this run's peak (8-bit states, a loss in chunks, a shorter sequence).",
            "1 point: the part that each takes from is named, and is in memory at the peak (states, logits).",
            "1 point: what each costs (accuracy, time, less context).",
        ),
    ),
)
