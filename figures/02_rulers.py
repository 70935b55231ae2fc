"""Chapter 02's title figure: bfloat16's marks near 0.125, 0.25 and 0.5 on one scale, and a step of 0.001 from each."""

import math
from pathlib import Path

import torch

from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import GREY, Chart

TERM, PER_UNIT = 0.001, 640 / 0.0044  # pixels for each unit of the number line
up = torch.tensor(math.inf, dtype=torch.bfloat16)
term = torch.tensor(TERM, dtype=torch.bfloat16).item()

chart = Chart(
    800,
    300,
    "Three totals in bfloat16, and 0.001 more: will it arrive?",
    "ticks: the values that bfloat16 has; dotted: half way to the next",
)
for row, start in enumerate((0.125, 0.25, 0.5)):
    y, left = 108 + 72 * row, 116
    chart.words(left - 16, y, f"{start:g}", 15, anchor="end", bold=True)
    chart.line([(left, y), (left + 0.0044 * PER_UNIT, y)], stroke_width=1.4)
    mark = torch.tensor(start, dtype=torch.bfloat16)
    step = torch.nextafter(mark, up).item() - start
    while (at := left + (mark.item() - start) * PER_UNIT) <= left + 0.0044 * PER_UNIT:
        chart.line([(at, y - 12), (at, y + 12)], stroke_width=2)
        mark = torch.nextafter(mark, up)
    half = left + step / 2 * PER_UNIT
    chart.line([(half, y - 26), (half, y + 16)], shade=GREY, stroke_dasharray="2 3")
    end = left + term * PER_UNIT
    chart.line([(left, y - 20), (end - 8, y - 20)], colour=OKABE_ITO[1], stroke_width=3)
    chart.area([[(end, y - 20), (end - 10, y - 25), (end - 10, y - 15)]], (OKABE_ITO[1], ""))
    chart.words(end + 6, y - 22, "+ 0.001", 11, shade=GREY)
chart.alt = (
    "Number lines of bfloat16 from 0.125, 0.25 and 0.5 on: the ticks are twice as far apart on each. "
    "An arrow of length 0.001 starts at each of the three."
)
chart.write_files(Path(__file__).with_suffix(""))
