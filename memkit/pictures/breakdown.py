"""Where the bytes of a step are: a block with what it keeps on its edges, curves over batch or length, a hierarchy."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.ticker import MultipleLocator

from memkit.formula.ledger import Ledger
from memkit.hardware.hierarchy import MemoryLevel
from memkit.pictures.picture import GREY, INK, OKABE_ITO, Picture, bare, hatched, mix
from memkit.pictures.timeline import memory_axis
from memkit.units import format_bytes

BLOCK = (
    ("norm 1", ("norm 1 input",)),
    ("query, key,\nvalue", ("norm 1 output",)),
    ("scores,\nsoftmax", ("query", "key", "softmax output")),
    ("dropout", ("softmax dropout mask",)),
    ("weights\n× value", ("softmax dropout output", "value")),
    ("output\nmatrix", ("attention output",)),
    ("dropout", ("attention dropout mask",)),
), (
    ("norm 2", ("norm 2 input",)),
    ("wide\nmatrix", ("norm 2 output",)),
    ("GELU", ("GELU input",)),
    ("narrow\nmatrix", ("GELU output",)),
    ("dropout", ("mlp dropout mask",)),
)  # fmt: skip
"""The operations of a GPT-2 block, attention above and MLP below, each with the tensors it keeps, by how they begin."""

TALLEST_INCHES = 1.15  # of a bar on an edge


def block_figure(ledger: Ledger, title: str = "One GPT-2 block, and what it keeps for the backward") -> Picture:
    """The operations of a GPT-2 block in order; below each hang the tensors that it keeps, as high as their bytes."""
    picture = Picture(height_inches=4.9)
    plot = picture.surface((0, 0, 1, 1), xlim=(0, 8), ylim=(0.7, 5.6))
    sizes = {line.name: line.num_bytes / ledger.sbh for line in ledger.lines}
    unit = TALLEST_INCHES / max(sizes.values())
    plot.text(0.1, 5.38, title, fontsize=11.5, fontweight="bold", va="center", color=INK)
    words = "height of a bar: bytes; the number: bytes per token and hidden unit (sbh)"
    plot.text(0.1, 5.14, words, fontsize=9, va="center", color=GREY)
    for row, (y, label, colour) in zip(
        BLOCK, ((4.42, "attention", OKABE_ITO[0]), (1.92, "MLP", OKABE_ITO[3])), strict=True
    ):
        plot.text(0.1, y + 0.48, label, fontsize=9.5, fontweight="bold", color=INK)
        step = 7.2 / len(row)
        for number, (operation, names) in enumerate(row):
            x = 0.62 + step * number
            _box(plot, x, y, operation, follows=number > 0, step=step)
            kept = [(name, size) for name, size in sizes.items() if name.split(",")[0] in names]
            _hang(plot, x, y - 0.3, kept, unit, colour)
        end = x + 0.43
        plot.annotate(
            "+ input", (end, y), (end + 0.14, y), fontsize=8.5, va="center", color=INK,
            arrowprops={"arrowstyle": "-", "color": GREY},
        )  # fmt: skip
    named = ", ".join(f"{name} {size:.3g}" for name, size in sizes.items() if size >= 0.5)
    picture.alt = f"{title}: {named} sbh; {ledger.per_sbh:.1f} sbh together."
    return picture


def _box(plot, x: float, y: float, words: str, follows: bool, step: float) -> None:
    style = {"boxstyle": "round,pad=0.04", "facecolor": "white", "edgecolor": INK, "linewidth": 1}
    plot.add_patch(FancyBboxPatch((x - 0.36, y - 0.21), 0.72, 0.42, **style))
    plot.text(x, y, words, fontsize=8.5, ha="center", va="center", color=INK, linespacing=0.95)
    if follows:
        ends = {"arrowstyle": "-|>", "mutation_scale": 9, "color": GREY, "shrinkA": 0, "shrinkB": 0}
        plot.add_patch(FancyArrowPatch((x - step + 0.42, y), (x - 0.42, y), **ends))


def _hang(plot, x: float, top: float, kept: list, unit: float, colour: str) -> None:
    """Bars side by side, each with its number below and its name beside the box."""
    wide = [(name, size) for name, size in kept if size >= 0.5]
    for number, (name, size) in enumerate(wide):
        left = x - 0.17 * len(wide) + 0.34 * number
        hatch = "///" if "mask" in name else ""
        bar = hatched(
            Rectangle, (left + 0.02, top - size * unit), 0.3, size * unit, facecolor=mix(colour, 0.625), hatch=hatch
        )
        plot.add_patch(bar)
        number_y = top - size * unit - 0.05
        plot.text(left + 0.17, number_y, f"{size:.0f}", fontsize=9, ha="center", va="top", color=INK)
        short = name.split(",")[0].replace("softmax dropout ", "").replace("dropout ", "")
        for prefix in ("norm 1 ", "norm 2 ", "mlp ", "attention "):
            short = short.removeprefix(prefix)
        plot.text(
            left + 0.17, number_y - 0.17, short.replace(" ", "\n"), fontsize=7.5, ha="center", va="top", color=GREY,
            linespacing=1.15,
        )  # fmt: skip


LINES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))


def round_step(num_bytes: float) -> int:
    """The nearest of 1, 2 or 5 times a power of ten MiB or GiB at or above ``num_bytes``; a quarter or half of a GiB.

    >>> round_step(3.2 * 2**30) // 2**30, round_step(0.3 * 2**30) // 2**20, round_step(0.1 * 2**30) // 2**20
    (5, 512, 200)
    """
    if 200 * 2**20 < num_bytes <= 2**30:  # a scale that reaches into GiB
        return 1 << (math.ceil(num_bytes) - 1).bit_length()
    unit = 2**30 if num_bytes >= 2**30 else 2**20
    power = 10 ** max(0, math.floor(math.log10(max(num_bytes / unit, 1))))
    return next(factor * power * unit for factor in (1, 2, 5, 10) if factor * power * unit >= num_bytes)


def memory_curves_figure(
    xs: Sequence[int], curves: Mapping[str, Sequence[int]], xlabel: str, title: str,
    capacity: tuple[str, int] | None = None,
) -> Picture:  # fmt: skip
    """Bytes over a batch or a length, one named curve each; ``capacity`` is a card's name and bytes, as a line.

    Raises: ValueError: a curve of another length than ``xs``.
    """
    picture = Picture(height_inches=3.7)
    plot = picture.add_axes((0.11, 0.15, 0.66, 0.7))
    memory_axis(plot)
    for number, (name, values) in enumerate(curves.items()):
        if len(values) != len(xs):
            raise ValueError(f"{name!r} has {len(values)} values for {len(xs)} places")
        line, marker = LINES[number % len(LINES)]
        colour = OKABE_ITO[number % len(OKABE_ITO)]
        plot.plot(xs, values, linestyle=line, marker=marker, markersize=5, color=colour, linewidth=1.8, label=name)
    top = max(max(values) for values in curves.values())
    ends = sorted(((values[-1], name) for name, values in curves.items()))
    low = -top
    grouped: dict[str, list[str]] = {}
    for value, name in ends:
        grouped.setdefault(format_bytes(value, 1), []).append(name)
    for size, names in grouped.items():
        low = max(next(value for value, name in ends if name in names), low + top * 0.14)
        words = f"  {' and '.join(names)}\n  {size}"
        plot.text(xs[-1], low, words, fontsize=9, va="center", color=INK, clip_on=False, linespacing=1.0)
    if any(len(names) > 1 for names in grouped.values()):  # curves that end together are told apart by a key
        plot.legend(loc="lower right", fontsize=9, frameon=False, handlelength=3)
    if capacity:
        card, num_bytes = capacity
        plot.axhline(num_bytes, color=INK, linewidth=1.3, linestyle=(0, (5, 3)))
        words = f"{card}: {format_bytes(num_bytes, 1)}"
        plot.text(xs[0], num_bytes + top * 0.015, words, fontsize=9, va="bottom", color=INK)
    plot.yaxis.set_major_locator(MultipleLocator(round_step(top / 4)))
    plot.set(ylim=(0, top * 1.12), xlim=(xs[0] - (xs[-1] - xs[0]) * 0.03, xs[-1]))
    plot.set_xticks(xs, [f"{x:,}" for x in xs])
    plot.tick_params(axis="x", labelsize=9, colors=GREY)
    plot.set_xlabel(xlabel, fontsize=9.5, color=INK)
    picture.text(0.012, 0.94, title, fontsize=11.5, fontweight="bold", va="center", color=INK)
    told = (f"{name} from {format_bytes(v[0], 1)} to {format_bytes(v[-1], 1)}" for name, v in curves.items())
    picture.alt = f"{title}, for {xlabel} from {xs[0]:,} to {xs[-1]:,}: {'; '.join(told)}."
    return picture


def hierarchy_figure(levels: Sequence[MemoryLevel], title: str) -> Picture:
    """The levels of a card's memory from the nearest to the farthest, as bars of bandwidth on a logarithmic axis."""
    known = [level for level in levels if level.bandwidth]
    picture = Picture(height_inches=0.95 + 0.48 * len(known))
    height = picture.get_figheight()
    plot = picture.add_axes((0.17, 0.06, 0.5, 1 - 0.75 / height))
    plot.set_xscale("log")
    low = min(level.bandwidth for level in known) / 3
    for row, level in enumerate(known):
        colour = mix(OKABE_ITO[0], 1 - 0.11 * row)
        plot.add_patch(Rectangle((low, row - 0.32), level.bandwidth - low, 0.64, facecolor=colour))
        plot.text(low * 0.85, row, level.name, fontsize=9.5, ha="right", va="center", color=INK)
        holds = "a link" if level.num_bytes is None else f"holds {format_bytes(level.num_bytes, 1)}"
        waits = "" if level.latency_cycles is None else f", {level.latency_cycles} cycles"
        rate = level.bandwidth / 1e9
        words = f"  {rate:,.0f} GB/s; {holds}{waits}"
        plot.text(level.bandwidth, row, words, fontsize=9, va="center", color=INK, clip_on=False)
    plot.set(xlim=(low, max(level.bandwidth for level in known)), ylim=(len(known) - 0.5, -0.5))
    bare(plot, grid="x", hides=plot.spines, which="both", length=0, labelbottom=False, labelleft=False)
    picture.text(0.012, 1 - 0.25 / height, title, fontsize=11.5, fontweight="bold", va="center", color=INK)
    picture.text(
        0.012, 1 - 0.48 / height, "a grid line is ten times the one before", fontsize=9, va="center", color=GREY
    )
    told = ", ".join(f"{level.name} {level.bandwidth / 1e9:,.0f} GB/s" for level in known)
    picture.alt = f"{title}, bars on a logarithmic axis: {told}."
    return picture
