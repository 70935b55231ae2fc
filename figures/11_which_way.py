"""Lesson 11: which way to spread a run over several cards, as questions with a way back."""

from pathlib import Path

from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import GREY, Chart

QUESTION, TAKEN, CURE = (OKABE_ITO[5], ""), (OKABE_ITO[2], ""), (OKABE_ITO[4], "")
LEFT, RIGHT, WIDE, TALL, STEP = 175, 575, 320, 52, 72
ROWS = (
    ("Does DDP fit?", "yes", "DDP", TAKEN),
    (
        "Would ZeRO-3 on\n512 ranks fit?",
        "no",
        "it is the activations: recompute, one\nsequence at a time; ask from the top again",
        CURE,
    ),
    (
        "Does it fit on your ranks\nwith weights kept gathered?",
        "yes",
        "fully_shard, with\nreshard_after_forward=False",
        TAKEN,
    ),
    (
        "Does ZeRO-3 fit\non your ranks?",
        "no",
        "recompute, and ask 3 again; more cards;\nthe host; tensor parallel in a node",
        CURE,
    ),
    (
        "Enough tokens a rank\nto hide the sending?",
        "no",
        "between nodes: HSDP, gradients summed\nat the end; in a node: more tokens",
        TAKEN,
    ),
    ("fully_shard\nwith its defaults", "", "", TAKEN),
)
"""A question, the answer that leads to the right, what stands there and in which colour."""


def box(chart: Chart, x: float, y: float, words: str, look: tuple[str, str]) -> None:
    """Words in a box around a place."""
    style = {"shade": 0.35, "stroke": "currentColor", "rx": 6}
    chart.bar(x - WIDE / 2, x + WIDE / 2, y, TALL, look, **style)
    chart.words(x, y, words, 14, anchor="middle")


def arrow(chart: Chart, a: float, b: float, x: float, y: float) -> None:
    """A line to the right or down that ends in a head."""
    chart.line([(a, b), (x, y)], shade=GREY, stroke_width=1.6)
    dx, dy = (9, 0) if y == b else (0, 9)
    head = [(x, y), (x - dx - dy / 2, y - dy - dx / 2), (x - dx + dy / 2, y - dy + dx / 2)]
    chart.area([head], ("currentColor", ""), shade=GREY)


chart = Chart(750, 46 + STEP * len(ROWS), "Which way to spread a run over several cards")
for number, (question, answer, told, look) in enumerate(ROWS):
    y = 72 + STEP * number
    is_last = not answer
    box(
        chart,
        LEFT,
        y,
        f"{number + 1}. {question}" if answer else question,
        look if is_last else QUESTION,
    )
    if is_last:
        continue
    box(chart, RIGHT, y, told, look)
    arrow(chart, LEFT + WIDE / 2, y, RIGHT - WIDE / 2 - 1, y)
    chart.words((LEFT + RIGHT) / 2, y - 12, answer, 13, anchor="middle", bold=True)
    arrow(chart, LEFT, y + TALL / 2, LEFT, y + STEP - TALL / 2 - 1)
    other = "no" if answer == "yes" else "yes"
    chart.words(LEFT + 10, y + STEP / 2, other, 13, bold=True)
told = "; ".join(
    f"{number}. {question} {answer}: {told}"
    for number, (question, answer, told, _) in enumerate(ROWS[:-1], 1)
)
chart.alt = f"Questions in order. {told}. Else fully_shard with its defaults.".replace("\n", " ")
chart.write_files(Path(__file__).with_suffix(""))
