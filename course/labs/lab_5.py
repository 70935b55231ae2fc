"""Lab 5: a large batch in small pieces."""

from dataclasses import replace

from book.exercises import exercises_of
from course.labs.tasks import Lab, Prose, Task
from memkit.units import GIB

CHOICES = {
    "tokens": [1_966_080 * prime for prime in (7, 11, 13, 17)],
    "seq_len": [2048, 4096],
    "micro_batch": [3, 5],
    "ranks": [8, 16, 32],
    "parameters": range(1_204_000_000, 13_000_000_000, 61_000_000),
    "window": range(6, 60, 2),
    "sequences": [32, 64, 128],
    "room_gib": [10.5, 11.0, 12.0, 13.0, 15.0, 18.0, 21.0, 24.0, 30.0],
}
CUT = """fused = OptimizerConfig(implementation="fused")
fits = []
for b in (1, 2, 4, 8, 16, 32, 64, 128):
    steps = mine["sequences"] // b
    setup = TrainingSetup(
        model=models.GPT2_MEDIUM, optimizer=fused, seq_len=1024, micro_batch_size=b, grad_accum_steps=max(steps, 1)
    )
    if steps and estimate_memory(setup).for_step(2).peak_bytes <= mine["room_gib"] * GIB:
        fits.append((b, steps))
cut = fits[-1]"""


def _cut(mine):
    card_bytes = int((mine["room_gib"] + 0.5) * GIB)
    return exercises_of(5)["5.7"].given(num_sequences=mine["sequences"], card_bytes=card_bytes)


LAB = Lab(
    name="lab5",
    title="Lab 5 · A large batch in small pieces",
    chapter=5,
    goals=(
        "turn tokens a step into accumulation steps, and say what they add to the peak",
        "weight micro-batches so that every token counts the same, to the end of the epoch",
        "cut a window for a card with the fewest forwards",
    ),
    imports="""from memkit import GIB, OptimizerConfig, TrainingSetup, estimate_memory, models""",
    choices=CHOICES,
    tasks=(
        Task(
            exercise_id="5.1",
            title="Steps of a window",
            answer="steps",
            points=2,
            minutes=5,
            question="""A recipe needs `mine["tokens"]` tokens between two optimizer steps. Sequences have
`mine["seq_len"]` tokens, a rank holds a micro-batch of `mine["micro_batch"]`, and there are `mine["ranks"]` ranks.
How many accumulation steps?""",
            solution='steps = mine["tokens"] // (mine["seq_len"] * mine["micro_batch"] * mine["ranks"])',
            exercise=lambda mine: exercises_of(5)["5.1"].given(
                tokens=mine["tokens"], s=mine["seq_len"], b=mine["micro_batch"], ranks=mine["ranks"]
            ),
        ),
        Task(
            exercise_id="5.2",
            title="What it adds to the peak",
            answer="more_bytes",
            points=2,
            minutes=5,
            question="""A model has `mine["parameters"]` parameters; weights and gradients are bfloat16. Its peak
without accumulation is at the start of the backward. By how many **bytes** does accumulation over `mine["window"]`
micro-batches raise it? Three digits are enough.""",
            solution='more_bytes = 2 * mine["parameters"]',
            exercise=lambda mine: exercises_of(5)["5.2"].given(
                P=mine["parameters"], steps=mine["window"]
            ),
            worthless=("It is not free",),
        ),
        Task(
            exercise_id="5.3",
            title="The weights of a window",
            answer="token_weights",
            points=3,
            minutes=10,
            question="""`token_weights(counts)` takes the target tokens of each micro-batch and returns the factor for
each micro-batch's mean loss, so that the sum of the gradients is that of all tokens' mean.""",
            opening='''def token_weights(counts):
    """One factor for each micro-batch."""''',
            solution="return [count / sum(counts) for count in counts]",
            shown="assert sum(token_weights([1, 3])) == 1 and len(token_weights([1, 3])) == 2, 'two shares of one'",
            exercise=lambda mine: replace(
                exercises_of(5)["5.3"],
                probes=(([mine["window"], 31, 5],), ([9, 9, 9, 9],), ([12],)),
            ),
            worthless=("That gives the sum over all tokens",),
        ),
        Task(
            exercise_id="5.4",
            title="The last window",
            answer="steps_of",
            points=3,
            minutes=15,
            question="""`steps_of(num_batches, N)` returns a list with one number for each optimizer step of an
epoch: the factor by which each loss of that step's window is multiplied. All micro-batches have equal lengths. The
version `[1 / N] * (num_batches // N)` divides by N and forgets the rest of the epoch. Repair it, so that every
micro-batch is trained and a short window is a mean as well.""",
            opening='''def steps_of(num_batches, N):
    """The factor of each optimizer step."""''',
            solution="""full, rest = divmod(num_batches, N)
return [1 / N] * full + ([1 / rest] if rest else [])""",
            shown='assert steps_of(6, 3) == [1 / 3, 1 / 3], "two whole windows of three"',
            exercise=lambda mine: replace(
                exercises_of(5)["5.4"],
                probes=((11, 3), (12, 3), (2, 5), (mine["window"] + 1, 6), (4, 1)),
            ),
            worthless=("The rest of the epoch is never stepped",),
        ),
        Task(
            exercise_id="5.7",
            title="A window under a limit",
            answer="cut",
            points=4,
            minutes=15,
            question="""You train GPT-2 medium in float32 with fused AdamW, on sequences of 1,024 tokens. Beside the
CUDA context `mine["room_gib"]` GiB are left. A step shall see `mine["sequences"]` sequences. Give the pair
`(micro_batch_size, grad_accum_steps)` with the **fewest forwards** whose predicted peak fits, the micro-batch a power
of two.""",
            solution=CUT,
            shown="""assert cut is not ..., "not attempted yet"
assert len(cut) == 2 and cut[0] * cut[1] == mine["sequences"], "a pair whose product is the window"
""",
            exercise=_cut,
            near=("the second has the gradients besides", "in half as many forwards"),
            worthless=("So do 2 sequences",),
        ),
    ),
    prose=Prose(
        question="""A colleague doubles the accumulation steps and halves the micro-batch, and says that the run now
needs half the memory and does the same. In which two ways is that wrong, and what becomes of the time of a step?
Four sentences at most.""",
        points=3,
        rubric=(
            "1 point: weights, gradients and states do not shrink; only activations halve.",
            "1 point: not the same everywhere: batch norm, losses averaged per micro-batch, sums in bf16.",
            "1 point: the step takes as long or longer: the same arithmetic in twice as many passes.",
        ),
    ),
)
