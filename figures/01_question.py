"""Chapter 01's title figure: Llama-2-7B as a file, one training step of it as a question, and an H100."""

from pathlib import Path

from memkit.cards import CARDS
from memkit.formula.parameters import count_parameters
from memkit.models import LLAMA_2_7B
from memkit.pictures.colours import LOOKS
from memkit.pictures.svg import GREY, Chart, Scale
from memkit.units import GIB

file_gib = 2 * count_parameters(LLAMA_2_7B) / GIB
card_gib = CARDS["H100 SXM"].memory_bytes / GIB
chart = Chart(800, 190, "Llama-2-7B in bfloat16, and an H100 SXM")
x = Scale(low=0, high=110, start=150, end=780)
chart.words(140, 72, "the file", 13, anchor="end")
chart.bar(x(0), x(file_gib), 72, 40, LOOKS["weights"])
chart.words(x(file_gib) + 8, 72, f"{file_gib:.1f} GiB", 13)
chart.words(140, 132, "one training step", 13, anchor="end")
chart.rect(x(0), 112, x(100) - x(0), 40, stroke="currentColor", stroke_dasharray="6 5")
chart.words(x(40), 132, "?", 26, anchor="middle", bold=True)
chart.line([(x(card_gib), 44), (x(card_gib), 160)], stroke_width=1.6)
chart.words(x(card_gib), 172, f"H100 SXM: {card_gib:.1f} GiB", 12, anchor="middle")
chart.line([(x(0), 44), (x(0), 160)], shade=GREY)
chart.alt = (
    f"Two bars: Llama-2-7B's file, {file_gib:.1f} GiB, and one training step of it, dashed, of unknown length. "
    f"A line stands at an H100's {card_gib:.1f} GiB."
)
chart.write_files(Path(__file__).with_suffix(""))
