"""Lab 3: what mixed precision keeps."""

import math
from dataclasses import replace

from book.exercises import exercises_of
from course.labs.tasks import Lab, Prose, Task

CHOICES = {
    "parameters": range(1_100_000_000, 14_000_000_000, 67_000_000),
    "limit": [limit for limit in range(4310, 30_000, 151) if 0.06 < math.log2(limit) % 1 < 0.94],
    "first": [16, 17, 18, 19, 20, 21, 22],
    "interval": range(400, 3000, 100),
    "scale": [64.0, 128.0, 256.0, 512.0, 2048.0, 4096.0],
    "lr": [0.05, 0.2, 0.3, 0.4],
}


def _next_scale(mine):
    interval = mine["interval"]
    probes = tuple(
        (scale, clean, overflowed, many)
        for scale in (2.0**15, 512.0, 2.0**24, 1.0)
        for clean, many in (
            (0, interval),
            (5, interval),
            (interval - 2, interval),
            (interval - 1, interval),
            (0, 1),
        )
        for overflowed in (False, True)
    )
    return replace(exercises_of(3)["3.7"], probes=probes)


LAB = Lab(
    name="lab3",
    title="Lab 3 · What mixed precision keeps",
    chapter=3,
    goals=(
        "count what autocast leaves in float32",
        "follow a loss scale through overflows and clean steps",
        "write the step of a master copy",
    ),
    imports="import torch",
    choices=CHOICES,
    tasks=(
        Task(
            exercise_id="3.1",
            title="States under autocast",
            answer="kept_bytes",
            points=2,
            minutes=5,
            question="""A model of `mine["parameters"]` parameters is trained by AdamW under `torch.autocast` in
bfloat16. How many bytes do its weights, gradients and optimizer states take?""",
            solution='kept_bytes = mine["parameters"] * (4 + 4 + 4 + 4)',
            exercise=lambda mine: exercises_of(3)["3.1"].given(P=mine["parameters"]),
        ),
        Task(
            exercise_id="3.2",
            title="How many steps are skipped",
            answer="num_skipped",
            points=2,
            minutes=5,
            question="""A `GradScaler` starts at 2 to the power of `mine["first"]`. This model's gradients overflow
as soon as the scale is above `mine["limit"]`. How many steps are skipped before the first one that counts?""",
            solution="""scale, num_skipped = 2 ** mine["first"], 0
while scale > mine["limit"]:
    scale, num_skipped = scale / 2, num_skipped + 1""",
            exercise=lambda mine: exercises_of(3)["3.2"].given(
                limit=mine["limit"], first=mine["first"]
            ),
            worthless=("the growth interval", "the exponent of the first scale"),
        ),
        Task(
            exercise_id="3.3",
            title="A step that goes uphill",
            answer="master_step",
            points=3,
            minutes=10,
            question="""Weights are BF16, their master copy is float32, and the gradient is BF16 and still
multiplied by the loss scale. `master += lr * gradient.float() / scale; return master.bfloat16()` makes the loss
grow. Write the plain SGD step that makes it fall: it moves `master` in place and returns the new BF16 weights. It
is called with scales and learning rates such as `mine["scale"]` and `mine["lr"]`.""",
            opening='''def master_step(master, gradient, scale, lr):
    """Moves master in place; returns the BF16 weights."""''',
            solution="""master -= lr * gradient.float() / scale
return master.bfloat16()""",
            shown="""one = torch.ones(1)
weights = master_step(one, torch.tensor([8.0]).bfloat16(), 16.0, 0.5)
assert one.item() == 0.75 and weights.item() == 0.75, "1 - 0.5 * 8 / 16"
""",
            exercise=lambda mine: exercises_of(3)["3.3"].given(scale=mine["scale"], lr=mine["lr"]),
            near=(
                "multiplied by the scale",
                "by the scale twice",
                "learning rate is missing",
                "lost there",
                "Make the gradient float32 first",
                "the model needs BF16",
                "master did not move",
                "not its BF16 rounding",
            ),
            worthless=("Still uphill",),
        ),
        Task(
            exercise_id="3.7",
            title="The scale's next move",
            answer="next_scale",
            points=4,
            minutes=15,
            question="""Write what `GradScaler.update` decides. It gets the scale, the number of clean steps in a
row so far, whether this step overflowed, and the growth interval. It returns the new scale and the new number of
clean steps. It will be called with `mine["interval"]`, and with others.""",
            opening='''def next_scale(scale, clean_steps, overflowed, interval):
    """The new scale, and the new number of clean steps."""''',
            solution="""if overflowed:
    return scale / 2, 0
if clean_steps + 1 == interval:
    return scale * 2, 0
return scale, clean_steps + 1""",
            shown="""assert next_scale(1024.0, 3, False, 2000) == (1024.0, 4), "one more clean step"
""",
            exercise=_next_scale,
        ),
    ),
    prose=Prose(
        question="""A run in FP16 has skipped every one of its last 40 steps. What is going on, which two numbers
would you print to be sure, and what would you change? Four sentences at most.""",
        points=3,
        rubric=(
            "1 point: gradients are infinite or NaN whatever the scale; forty halvings from any scale end near 0.",
            "1 point: the scale, and the first parameter or activation that is not finite (or the loss).",
            "1 point: a cure that fits (a lower learning rate, clipping after unscale_, BF16, the broken layer).",
        ),
    ),
)
