"""The picture that ends lessons 01 to 06: the peak of GPT-2 large on 8 × 1,024 tokens, a bar longer in each."""

from pathlib import Path

from memkit.cards import CARDS
from memkit.formula.estimate import estimate_memory
from memkit.models import GPT2_LARGE
from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import GREY, Chart, Scale, redrawn
from memkit.recipes import AUTOCAST_BF16, FUSED_ADAMW
from memkit.setup import TrainingSetup
from memkit.units import GIB

LINES = (
    ("H100 SXM", "H100"),
    ("A100 SXM 40 GB", "A100 40 GB"),
    ("RTX 4090", "RTX 4090"),
    ("T4", "T4"),
)
base = {"model": GPT2_LARGE, "micro_batch_size": 8, "seq_len": 1024, "optimizer": FUSED_ADAMW}
autocast = base | {"precision": AUTOCAST_BF16}
full = autocast | {"recomputation": "full"}
BARS = (
    (1, "scores stored, dropout", base | {"attention": "stored", "dropout": 0.1}),
    (1, "scores stored", base | {"attention": "stored"}),
    (1, "flash attention", base),
    (3, "autocast", autocast),
    (4, "and every block again", full),
    (5, "and 8 times 1 sequence", full | {"micro_batch_size": 1, "grad_accum_steps": 8}),
    (6, "and FP8 by torchao: the same", full | {"micro_batch_size": 1, "grad_accum_steps": 8}),
)
"""Lesson, words and setup of each bar. torchao's FP8 keeps what bf16 keeps (lesson 06): the bar before."""
sizes = [estimate_memory(TrainingSetup(**setup)).peak_bytes / GIB for _, _, setup in BARS]


@redrawn
def so_far(lesson: int, width: float = 800) -> Chart:
    """The bars up to a lesson; that lesson's own are filled in another colour. A phone has their words above them."""
    shown = [
        (of, words, size) for (of, words, _), size in zip(BARS, sizes, strict=True) if of <= lesson
    ]
    chart = Chart(width, 0, "The run so far: GPT-2 large, 8 × 1,024 tokens, peak of a step")
    tall, left, over = (46, 10, 20) if chart.is_narrow else (34, 212, 0)
    first = 48 + chart.lower + over
    x = Scale(low=0, high=96, start=left, end=width - 10)
    bottom = first + 2 + tall * len(shown)
    chart.height = bottom + 34
    for number, (card, label) in enumerate(LINES):
        at = x(CARDS[card].memory_bytes / GIB)
        chart.line([(at, first - 6 - over), (at, bottom)], shade=GREY, stroke_dasharray="3 3")
        low = bottom + 12 + 13 * (number % 2 * chart.is_narrow)
        chart.words(at, low, label, 11 if chart.is_narrow else 10.5, anchor="middle", shade=GREY)
    for number, (of, words, size) in enumerate(shown):
        y, look = first + 13 + tall * number, {"bold": of == lesson, "boxed": True}
        chart.bar(x(0), x(size), y, 26, (OKABE_ITO[0] if of == lesson else "#999999", ""))
        if chart.is_narrow:
            chart.words(left, y - 22, f"{words}: {size:.1f} GiB", 12, **look)
            continue
        chart.words(204, y, words, 12, anchor="end")
        chart.words(x(size) + 6, y, f"{size:.1f} GiB", 12, **look)
    chart.alt = (
        "The run so far: " + "; ".join(f"{words} {size:.1f} GiB" for _, words, size in shown) + "."
    )
    return chart


for lesson in (1, 3, 4, 5, 6):
    so_far(lesson).write_files(Path(__file__).with_name(f"0{lesson}_so_far"))
