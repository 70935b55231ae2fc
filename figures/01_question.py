"""Chapter 01's title figure: Llama-2-7B as a file, one training step of it as a question, and an H100."""

from pathlib import Path

from memkit.cards import CARDS
from memkit.formula.parameters import count_parameters
from memkit.models import LLAMA_2_7B
from memkit.pictures.colours import LOOKS
from memkit.pictures.svg import GREY, Chart, Scale, redrawn
from memkit.units import GIB

file_gib = 2 * count_parameters(LLAMA_2_7B) / GIB
card_gib = CARDS["H100 SXM"].memory_bytes / GIB


@redrawn
def question(width: float = 800) -> Chart:
    """Two bars and a card's line; a phone has their words above them."""
    chart = Chart(width, 0, "Llama-2-7B in bfloat16, and an H100 SXM")
    first, tall, left = (90, 70, 10) if chart.is_narrow else (72, 60, 150)
    end, second = first + tall + 28, first + tall
    chart.height = end + 30
    x = Scale(low=0, high=110, start=left, end=width - 20)
    for y, words in ((first, "the file"), (second, "one training step")):
        if chart.is_narrow:
            chart.words(left + 5, y - 29, words, 13)
        else:
            chart.words(140, y, words, 13, anchor="end")
    chart.bar(x(0), x(file_gib), first, 40, LOOKS["weights"])
    chart.words(x(file_gib) + 8, first, f"{file_gib:.1f} GiB", 13)
    chart.rect(x(0), second - 20, x(100) - x(0), 40, stroke="currentColor", stroke_dasharray="6 5")
    chart.words(x(40), second, "?", 26, anchor="middle", bold=True)
    chart.line([(x(card_gib), first - 28), (x(card_gib), end)], stroke_width=1.6)
    chart.words(x(card_gib), end + 12, f"H100 SXM: {card_gib:.1f} GiB", 12, anchor="middle")
    chart.line([(x(0), first - 28), (x(0), end)], shade=GREY)
    chart.alt = (
        f"Two bars: Llama-2-7B's file, {file_gib:.1f} GiB, and one training step of it, dashed, of unknown length. "
        f"A line stands at an H100's {card_gib:.1f} GiB."
    )
    return chart


question().write_files(Path(__file__).with_suffix(""))
