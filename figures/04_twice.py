"""Chapter 04's title figure: what the blocks of GPT-2 large keep before and after, and two open bars."""

from pathlib import Path

from memkit import models, strategies
from memkit.pictures.colours import LOOKS, OKABE_ITO
from memkit.pictures.svg import GREY, Chart, Scale
from memkit.recomputation import blocks_ledger
from memkit.setup import TrainingSetup

setup = TrainingSetup(model=models.GPT2_LARGE, micro_batch_size=8)
kept = [blocks_ledger(setup, way).num_bytes for way in (strategies.NONE, strategies.FULL)]
share = kept[1] / kept[0]

chart = Chart(
    800,
    300,
    "GPT-2 large: run every block once, or twice",
    "each bar as a share of the step that runs once",
)
x = Scale(low=0, high=1, start=330, end=730)
rows = (
    ("what the blocks keep", share),
    ("the peak of the step", None),
    ("the FLOPs of the step", None),
)
y = 84
for name, after in rows:
    chart.words(10, y + 14, name, 13, bold=True)
    chart.words(320, y, "once", 12, anchor="end")
    chart.rect(x(0), y - 11, x(1) - x(0), 22, LOOKS["activations"] if after else (OKABE_ITO[7], ""))
    chart.words(x(1) + 8, y, "100 %", 12)
    chart.words(320, y + 28, "twice", 12, anchor="end")
    if after is not None:
        chart.rect(x(0), y + 17, x(after) - x(0), 22, LOOKS["activations"])
        chart.words(x(after) + 8, y + 28, f"{100 * after:.0f} %", 12, bold=True)
    else:
        edge = [(x(1), y + 17), (x(0), y + 17), (x(0), y + 39), (x(1), y + 39)]
        chart.line(edge, shade=GREY, stroke_dasharray="5 4")
        chart.words(x(0.5), y + 28, "?", 17, anchor="middle", bold=True)
    y += 78
chart.height = y - 24
chart.alt = (
    f"Three pairs of bars for GPT-2 large. If every block runs twice, the blocks keep {share:.0%} of what they keep "
    "otherwise. The bars for the step's peak and for its FLOPs are open, with question marks."
)
chart.write_files(Path(__file__).with_suffix(""))
