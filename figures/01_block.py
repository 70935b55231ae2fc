"""Chapter 01: a GPT-2 block with flash attention as a chain of operations; on each arrow, what the backward needs.

The heights are what autograd saves for the block of lesson 01, and not written here.
"""

from pathlib import Path

import torch

from memkit.by_hand import GPT2_LARGE, Block
from memkit.measure import saved_tensors
from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import GREY, Chart, Scale

OPERATIONS = (
    "norm 1",
    "query,\nkey, value",
    "attention",
    "output\nmatrix",
    "norm 2",
    "wide\nmatrix",
    "GELU",
    "narrow\nmatrix",
)
KEPT_BY = (1, 1, 3, 1, 1, 1, 4, 4)
"""Values for each token and hidden unit that an operation keeps of what comes in; the drawing checks them."""

block = Block(256, 4)
x_in = torch.randn(2, 128, 256, requires_grad=True)
saved = saved_tensors(lambda: block(x_in), elsewhere=block.parameters())
sizes = [x.untyped_storage().nbytes() / (4 * x_in.numel()) for x in saved]
assert (
    sorted(KEPT_BY) == sorted(round(size) for size in sizes if size > 0.5)
    and 16 < sum(sizes) < 16.1
)
scores = GPT2_LARGE["heads"] * 1024 / GPT2_LARGE["h"]

title = "One GPT-2 block with flash attention, and what it keeps for the backward"
chart = Chart(
    800,
    330,
    title,
    "on an arrow: values for each token and hidden unit; dashed: the scores, if they were stored",
)
y = Scale(low=0, high=scores * 1.12, start=215, end=62)
step = 92
for number, (operation, kept) in enumerate(zip(OPERATIONS, KEPT_BY, strict=True)):
    left = 34 + step * number
    colour = OKABE_ITO[0] if number < 4 else OKABE_ITO[3]
    if operation == "attention":
        chart.rect(
            left - 1, y(scores), 28, y(0) - y(scores), stroke="currentColor", stroke_dasharray="4 4"
        )
        chart.words(left + 32, y(scores) + 8, f"{scores:.0f}, with 1,024 tokens", 11, shade=GREY)
    chart.rect(
        left,
        y(kept),
        26,
        y(0) - y(kept),
        (colour, ""),
        tip=f"{operation}: {kept}",
        data={"kept": kept},
    )
    chart.words(left + 13, y(kept) - 9, f"{kept}", 13, anchor="middle", bold=True)
    chart.line([(left - 6, 240), (left + 24, 240)], shade=GREY)
    chart.area(
        [[(left + 32, 240), (left + 23, 235), (left + 23, 245)]], ("currentColor", ""), shade=GREY
    )
    chart.rect(left + 34, 218, 50, 44, stroke="currentColor", rx=5)
    chart.words(left + 59, 240, operation, 10, anchor="middle")
for number, word in ((0, "attention"), (4, "MLP")):
    chart.line([(34 + step * number, 282), (118 + step * (number + 3), 282)], shade=GREY)
    chart.words(
        76 + step * (number + 1.5),
        296,
        f"{word}: {sum(KEPT_BY[number : number + 4])}",
        13,
        anchor="middle",
    )
chart.words(
    400,
    318,
    f"together {sum(KEPT_BY)} values for each token and hidden unit",
    13,
    anchor="middle",
    bold=True,
)
chart.alt = (
    f"Eight operations of a block in a row. Kept on the arrows: {', '.join(map(str, KEPT_BY))} values for each token "
    f"and hidden unit, {sum(KEPT_BY)} together. "
    f"Stored scores would be {scores:.0f} more in GPT-2 large with 1,024 tokens."
)
chart.write_files(Path(__file__).with_suffix(""))
