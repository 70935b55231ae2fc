"""Chapter 07's title figure: the sum of a published post-mortem beside the card, and an open bar."""

from pathlib import Path

from memkit.pictures.colours import LOOKS, OKABE_ITO
from memkit.pictures.svg import GREY, PAPER, Chart, Scale, redrawn

# the post-mortem's
PUBLISHED_GB = {"weights": 1.55, "gradients": 1.55, "optimizer_states": 9.3, "activations": 28.0}
CARD_GB = 40

NAMES = ("weights", "gradients", "AdamW's states", "activations")


@redrawn
def published_sum(width: float = 800) -> Chart:
    """The sum's bar above an open one; a phone has their words above them."""
    chart = Chart(
        width,
        0,
        "GPT-2 large on a card of 40 GB: out of memory",
        "in GB, as a published post-mortem adds up",
    )
    entries = [(LOOKS[part], name) for part, name in zip(PUBLISHED_GB, NAMES, strict=True)]
    top = chart.legend(entries, 10, 74 + chart.lower, width - 20)
    left, high, lower = (10, 50, 20) if chart.is_narrow else (170, 60, 0)
    x = Scale(low=0, high=high, start=left, end=width - 20)
    first, second = top + 34 + lower, top + 88 + 2 * lower
    for y, words in ((first, "the published sum"), (second, "at the real peak")):
        if chart.is_narrow:
            chart.words(left, y - 26, words, 12.5)
        else:
            chart.words(160, y, words, 12.5, anchor="end")
    start = 0.0
    for part, size in PUBLISHED_GB.items():
        wide = x(size) - x(0)
        chart.rect(x(start), first - 16, wide, 32, LOOKS[part], stroke=PAPER)
        if size > 5:
            chart.words(x(start) + wide / 2, first, f"{size:g}", 12, anchor="middle", boxed=True)
        start += size
    chart.words(x(start) + 10, first, f"{start:.1f}", 12.5, bold=True)
    edge = [
        (x(high), second - 16),
        (x(0), second - 16),
        (x(0), second + 16),
        (x(high), second + 16),
    ]
    chart.line(edge, shade=GREY, stroke_dasharray="5 4")
    chart.words(x(20), second, "?", 20, anchor="middle", bold=True)
    chart.line(
        [(x(CARD_GB), first - 26), (x(CARD_GB), second + 26)],
        OKABE_ITO[1],
        stroke_width=2,
        stroke_dasharray="7 4",
    )
    chart.words(x(CARD_GB) + 6, second + 32, "the card", 12, shade=GREY)
    chart.height = second + 48
    chart.alt = (
        f"A bar of the published sum, {start:.1f} GB: weights 1.55, gradients 1.55, AdamW's states 9.3, activations "
        f"28. It ends at a dashed line, the card of {CARD_GB} GB. The bar below, what was really needed at the peak, "
        "is open."
    )
    return chart


published_sum().write_files(Path(__file__).with_suffix(""))
