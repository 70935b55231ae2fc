"""What blocks keep for the backward, drawn as one labelled bar a block: from a formula's ledger or from a real run."""

from collections.abc import Mapping

from memkit.formula.activations import Ledger
from memkit.pictures.axes import Scale
from memkit.pictures.svg import GREY, Chart, look_of, text_width


def ledger_pieces(ledger: Ledger) -> dict[str, float]:
    """Bytes per token and hidden unit of a block's ledger, by the first operation that keeps them."""
    pieces: dict[str, float] = {}
    for line in ledger.lines:
        op = line.op.partition(",")[0]
        pieces[op] = pieces.get(op, 0) + line.num_bytes / ledger.sbh
    return pieces


def saved_figure(
    bars: Mapping[str, Mapping[str, float]], unit: str = "sbh", title: str = "What a block keeps"
) -> Chart:
    """One bar a block, its pieces named by the operations that keep them and sized in ``unit``.

    A piece too narrow for its name is named above the bar.

    Raises: ValueError: no bars.
    """
    if not bars:
        raise ValueError("saved_figure needs at least one bar")
    chart = Chart(800, 50 + 80 * len(bars), title)
    longest = max(sum(pieces.values()) for pieces in bars.values())
    x = Scale(low=0, high=longest, start=10, end=790)
    names = list(dict.fromkeys(name for pieces in bars.values() for name in pieces))
    for row, (label, pieces) in enumerate(bars.items()):
        total, left, small, y = sum(pieces.values()), 0.0, [], 46 + 80 * row
        for name, size in pieces.items():
            wide, words = x(size) - x(0), f"{name}\n{size:.3g}"
            chart.rect(
                x(left),
                y + 22,
                wide,
                44,
                look_of(names.index(name)),
                shade=0.38,
                stroke="currentColor",
                stroke_opacity=0.5,
                tip=f"{name}: {size:.4g} {unit}, {label}",
                data={"name": name, "size": f"{size:.6g}"},
            )
            if text_width(words, 11) + 4 <= wide:
                chart.words(x(left + size / 2), y + 44, words, 11, anchor="middle")
            elif size / total >= 0.002:
                small.append(f"{name} {size:.3g}")
            left += size
        heading = f"{label}: {total:.1f} {unit}"
        chart.words(10, y + 9, heading, 12.5, bold=True)
        note = f"not named inside: {', '.join(small)}" if small else ""
        room = 770 - text_width(heading, 12.5, bold=True)
        while text_width(note, 10.5) > room:
            note = note.removesuffix(", …").rpartition(",")[0] + ", …"
        chart.words(790, y + 10, note, 10.5, anchor="end", shade=GREY)
    sums = "; ".join(f"{label} {sum(pieces.values()):.1f} {unit}" for label, pieces in bars.items())
    chart.alt = f"{title}, one bar each: {sums}."
    return chart
