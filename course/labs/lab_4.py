"""Lab 4: what recomputation keeps and costs."""

from dataclasses import replace

from book.exercises import exercises_of
from course.labs.tasks import Lab, Prose, Task
from memkit import models

CHOICES = {
    "layers": [24, 48, 72, 96, 120, 168],
    "segments": [4, 6, 8],
    "model": ["LLAMA_2_7B", "LLAMA_2_13B", "LLAMA_3_8B", "LLAMA_3_70B", "MISTRAL_7B"],
    "tokens": range(1792, 16384, 512),
}


def _groups(mine):
    layers = mine["layers"]
    return replace(
        exercises_of(4)["4.3"], probes=((layers, 5, 48, 3), (layers, 7, 34, 2), (layers, 1, 20, 4))
    )


LAB = Lab(
    name="lab4",
    title="Lab 4 · Computing twice",
    chapter=4,
    goals=(
        "say what is kept and what runs again under full recomputation and in segments",
        "find the worst moment of groups of blocks",
        "choose the operations that a selective policy keeps",
    ),
    imports="from math import ceil\n\nfrom memkit import models",
    choices=CHOICES,
    tasks=(
        Task(
            exercise_id="4.1",
            title="The segment that is spared",
            answer="layers_run_twice",
            points=2,
            minutes=5,
            question="""`checkpoint_sequential` with `mine["segments"]` segments on `mine["layers"]` layers. How many
**layers** run a second time?""",
            solution='layers_run_twice = mine["layers"] - mine["layers"] // mine["segments"]',
            exercise=lambda mine: exercises_of(4)["4.1"].given(
                L=mine["layers"], S=mine["segments"]
            ),
        ),
        Task(
            exercise_id="4.2",
            title="What full recomputation keeps",
            answer="kept_bytes",
            points=2,
            minutes=5,
            question="""The model `mine["model"]` of `memkit.models`, bfloat16, one sequence of `mine["tokens"]`
tokens, each block checkpointed. How many bytes do all its blocks keep? Three per cent either way will do.""",
            solution="""model = getattr(models, mine["model"])
kept_bytes = model.num_layers * 2 * mine["tokens"] * model.hidden_size""",
            exercise=lambda mine: exercises_of(4)["4.2"].given(
                model=getattr(models, mine["model"]), s=mine["tokens"]
            ),
        ),
        Task(
            exercise_id="4.3",
            title="The peak of groups",
            answer="peak_of_groups",
            points=4,
            minutes=15,
            question="""Write the bytes of activations at the worst moment with *g* blocks a group: one input per
group, and the blocks of one group. *L* is the number of blocks (`mine["layers"]`, and others); `block` and
`inputs` are the bytes of one block and of one input. The last group may be shorter, but a full one is the worst.""",
            opening='''def peak_of_groups(L, g, block, inputs):
    """Bytes at the worst moment, with g blocks a group."""''',
            solution="return ceil(L / g) * inputs + g * block",
            shown='assert peak_of_groups(4, 2, 10, 1) == 22, "two inputs, and two blocks of ten"',
            exercise=_groups,
        ),
        Task(
            exercise_id="4.4",
            title="A list that saves nothing",
            answer="saved_ops",
            points=3,
            minutes=10,
            question="""Someone took `["mm", "attention"]` from a Llama recipe for GPT-2 large, as the operations
whose results a selective policy keeps. It runs more FLOPs again than hoped. Give the list that does what was
meant: no matrix product runs again, and nothing cheap is kept.""",
            solution='saved_ops = ["addmm", "attention"]',
            shown="""assert saved_ops is not ..., "not attempted yet"
assert all(isinstance(name, str) for name in saved_ops), "names in quotes"
""",
            exercise=lambda mine: exercises_of(4)["4.4"],
            near=("These still run again", "You save the output of gelu"),
        ),
    ),
    prose=Prose(
        question="""Your run of task 2 fits with full recomputation and 20 GiB to spare. What would you do with
them, in which order, and how would you find out whether it pays? Four sentences at most.""",
        points=3,
        rubric=(
            "1 point: keep more (selective, or recompute only some blocks), or a larger micro-batch.",
            "1 point: the order follows bytes kept per FLOP spared: products and attention before cheap operations.",
            "1 point: it is measured: tokens a second, and the peak, before and after.",
        ),
    ),
)
