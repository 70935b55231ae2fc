"""Lab 7: from an error message to a plan; chapters 07 to 10."""

from dataclasses import replace

from book.exercises import exercises_of
from course.labs.tasks import Lab, Prose, Task

CHOICES = {
    "in_use": [22.5, 22.7],
    "allocated": [19.1, 19.3, 19.5, 19.7, 19.9, 20.1, 20.3, 20.6],
    "cached": [0.4, 0.7],
    "hidden": [3072, 4608, 5120, 6144],
    "tokens": [512, 1536, 3072],
    "billions": [8, 9, 11, 13, 15, 32, 34, 70],
}

LAB = Lab(
    name="lab7",
    title="Lab 7 · From a message to a plan",
    chapter=10,
    goals=(
        "read an OOM message, and say what of a process lies outside PyTorch's allocator",
        "count what frozen layers keep, and what a rank holds at rest",
        "say what a step sends, and what a card has to spare",
    ),
    imports="",
    choices=CHOICES,
    tasks=(
        Task(
            exercise_id="7.2",
            title="What the message does not name",
            answer="outside_gib",
            points=2,
            minutes=5,
            question="""An OOM message says: *GPU 0 has a total capacity of 23.64 GiB; this process has*
`mine["in_use"]` *GiB memory in use. Of the allocated memory* `mine["allocated"]` *GiB is allocated by PyTorch, and*
`mine["cached"]` *GiB is reserved by PyTorch but unallocated.* How many **GiB** of this
process lie outside PyTorch's allocator?""",
            solution='outside_gib = mine["in_use"] - mine["allocated"] - mine["cached"]',
            exercise=lambda mine: exercises_of(7)["7.2"].given(
                in_use=mine["in_use"], allocated=mine["allocated"], cached=mine["cached"]
            ),
        ),
        Task(
            exercise_id="10.2",
            title="What frozen layers keep",
            answer="kept_values",
            points=3,
            minutes=10,
            question="""Linear layers follow one another, and the gradient must reach the input of the first.
`layers` is a list of triples: number of inputs, number of outputs, and whether the weight is trained. Return how many
**input values** autograd keeps for all of them, for `tokens` tokens. Weights do not count.""",
            opening='''def kept_values(tokens, layers):
    """Input values that are kept for the backward."""''',
            solution="return sum(tokens * inputs for inputs, outputs, is_trained in layers if is_trained)",
            shown='assert kept_values(1, [(1, 1, True)]) == 1, "one trained layer of one input"',
            exercise=lambda mine: replace(
                exercises_of(10)["10.2"],
                probes=(
                    (mine["tokens"], ((64, 256, True), (256, 32, False))),
                    (100, ((3, 5, False), (5, 7, True), (7, 4, True))),
                    (
                        mine["tokens"],
                        ((mine["hidden"], 11008, False), (11008, mine["hidden"], False)),
                    ),
                ),
            ),
        ),
        Task(
            exercise_id="11.1",
            title="At rest on sixteen",
            answer="rest_gb",
            points=2,
            minutes=5,
            question="""A model has `mine["billions"]` billion parameters in the recipe 2 + 2 + 12 bytes and is
trained by ZeRO-2 on 16 ranks. How many **GB** (10⁹ bytes) does a rank keep at rest?""",
            solution='rest_gb = 2 * mine["billions"] + 14 * mine["billions"] / 16',
            exercise=lambda mine: replace(
                exercises_of(11)["11.1"].given(P=mine["billions"]),
                also=(),
                because="2 B stay whole, 14 B are divided.",
            ),
        ),
        Task(
            exercise_id="11.4",
            title="The traffic of a window",
            answer="moved",
            points=3,
            minutes=10,
            question="""`moved(stage, micro_batches, syncs_each)` returns what a step moves, in units of M, the bytes
of the weights, for stage 0 (DDP) and stage 3. An all-reduce counts twice. Every group is gathered twice per
micro-batch. With `syncs_each=False` the gradients are sent only after the last micro-batch.""",
            opening='''def moved(stage, micro_batches, syncs_each):
    """Weights' bytes that a step moves."""''',
            solution="""times = micro_batches if syncs_each else 1
return 2 * times if stage == 0 else 2 * micro_batches + times""",
            shown='assert moved(0, 1, True) == 2, "one all-reduce"',
            exercise=lambda mine: exercises_of(11)["11.4"],
            worthless=("This is still the broken version",),
        ),
        Task(
            exercise_id="9.8",
            title="What a card has to spare",
            answer="spare_bytes",
            points=3,
            minutes=10,
            question="""A card reports `card_bytes`; a step's peak is `peak_bytes`, and the CUDA context takes
`context_bytes`. Of what the context leaves, a hundredth (rounded down to a byte) is kept free for fragments.
`spare_bytes(peak_bytes, card_bytes, context_bytes)` returns what is left then; below zero the step does not fit.""",
            opening='''def spare_bytes(peak_bytes, card_bytes, context_bytes):
    """Bytes to spare; below zero the step does not fit."""''',
            solution="""room = card_bytes - context_bytes
return room - room // 100 - peak_bytes""",
            shown="assert spare_bytes(0, 100, 0) == 99, 'a hundredth is kept free'",
            exercise=lambda mine: exercises_of(9)["9.8"],
            worthless=("That is the broken version",),
        ),
    ),
    prose=Prose(
        question="""A run of your own, or this one: LoRA on a 13B model dies with *CUDA out of memory* in step 40 of
500, on one card of 24 GiB; nothing else runs there. Which two things would you look at first, what would you change
first, and what does that cost? Four sentences at most.""",
        points=3,
        rubric=(
            "1 point: what differs in step 40 (the longest batch, an evaluation, a checkpoint), or what grows.",
            "1 point: the message or a snapshot: what is allocated, by which line, and what is only cached.",
            "1 point: a change that fits the cause (a cap on length, recomputation, 4 bits) with its price.",
        ),
    ),
)
