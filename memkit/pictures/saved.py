"""What blocks keep for the backward, drawn as one labelled bar a block: from a formula's ledger or from a real run."""

from collections.abc import Mapping

from matplotlib.patches import Rectangle

from memkit.formula.ledger import Ledger
from memkit.pictures.picture import GREY, INK, OKABE_ITO, Picture, hatched, mix

HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "++", "oo")
MIN_LABEL_SHARE = 0.045
"""A piece narrower than this share of the longest bar has its name in the list below the bar, not inside."""


def ledger_pieces(ledger: Ledger) -> dict[str, float]:
    """Bytes per token and hidden unit of a block's ledger, by the first operation that keeps them."""
    pieces: dict[str, float] = {}
    for line in ledger.lines:
        op = line.op.partition(",")[0]
        pieces[op] = pieces.get(op, 0) + line.num_bytes / ledger.sbh
    return pieces


def saved_figure(
    bars: Mapping[str, Mapping[str, float]], unit: str = "sbh", title: str = "What a block keeps"
) -> Picture:
    """One bar a block, its pieces named by the operations that keep them and sized in ``unit``.

    Raises: ValueError: no bars.
    """
    if not bars:
        raise ValueError("saved_figure needs at least one bar")
    picture = Picture(height_inches=0.62 + 0.72 * len(bars))
    height = picture.get_figheight()
    plot = picture.surface((0.012, 0.02, 0.976, 1 - 0.55 / height))
    longest = max(sum(pieces.values()) for pieces in bars.values())
    plot.set(xlim=(0, longest * 1.005), ylim=(len(bars) - 0.55, -0.5))
    names = list(dict.fromkeys(name for pieces in bars.values() for name in pieces))
    for row, (label, pieces) in enumerate(bars.items()):
        total, left, small = sum(pieces.values()), 0.0, []
        for name, size in pieces.items():
            look = names.index(name)
            colour = mix(OKABE_ITO[look % len(OKABE_ITO)], 0.375)
            patch = hatched(
                Rectangle, (left, row - 0.12), size, 0.5, facecolor=colour, linewidth=1.0,
                hatch=HATCHES[(look + look // len(OKABE_ITO)) % len(HATCHES)],
            )  # fmt: skip
            plot.add_patch(patch)
            if size / longest >= MIN_LABEL_SHARE * (1 + len(name) / 12):
                words = f"{name}\n{size:.3g}"
                plot.text(left + size / 2, row + 0.13, words, fontsize=8, ha="center", va="center", color=INK)
            elif size / total >= 0.002:
                small.append(f"{name} {size:.3g}")
            left += size
        heading = f"{label}: {total:.1f} {unit}"
        plot.text(0, row - 0.27, heading, fontsize=9.5, va="center", color=INK, fontweight="bold")
        if small:
            note = f"not named inside: {', '.join(small)}"
            plot.text(longest, row - 0.27, note, fontsize=8, va="center", ha="right", color=GREY)
    picture.text(0.012, 1 - 0.3 / height, title, fontsize=11.5, fontweight="bold", va="center", color=INK)
    sums = "; ".join(f"{label} {sum(pieces.values()):.1f} {unit}" for label, pieces in bars.items())
    picture.alt = f"{title}, one bar each: {sums}."
    return picture
