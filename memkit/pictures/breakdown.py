"""Where the bytes of a step are: a block with what it keeps on its edges, curves over batch or length, a hierarchy."""

import math
from collections.abc import Mapping, Sequence

from memkit.formula.activations import Ledger
from memkit.hardware.hierarchy import MemoryLevel
from memkit.pictures.axes import (
    COLOURS,
    DASHED,
    DASHES,
    Curve,
    Scale,
    draw_curves,
    ticks_below,
    ticks_beside,
)
from memkit.pictures.svg import FAINT, GREY, OKABE_ITO, Chart
from memkit.pictures.timeline import tick_words
from memkit.units import format_bytes

BLOCK = (
    (
        ("norm 1", ("norm 1 input",)),
        ("query, key,\nvalue", ("norm 1 output",)),
        ("scores,\nsoftmax", ("query", "key", "softmax output")),
        ("dropout", ("softmax dropout mask",)),
        ("weights\n× value", ("softmax dropout output", "value")),
        ("output\nmatrix", ("attention output",)),
        ("dropout", ("attention dropout mask",)),
    ),
    (
        ("norm 2", ("norm 2 input",)),
        ("wide\nmatrix", ("norm 2 output",)),
        ("GELU", ("GELU input",)),
        ("narrow\nmatrix", ("GELU output",)),
        ("dropout", ("mlp dropout mask",)),
    ),
)
"""The operations of a GPT-2 block, attention above and MLP below, each with the tensors it keeps, by how they begin."""
TALLEST = 115  # of a bar on an edge
PREFIXES = ("norm 1 ", "norm 2 ", "mlp ", "attention ", "softmax dropout ", "dropout ")


def block_figure(ledger: Ledger, title: str = "One GPT-2 block, and what it keeps for the backward") -> Chart:
    """The operations of a GPT-2 block in order; below each hang the tensors that it keeps, as high as their bytes."""
    words = "height of a bar: bytes; the number: bytes per token and hidden unit (sbh)"
    chart = Chart(800, 490, title, words)
    sizes = {line.name: line.num_bytes / ledger.sbh for line in ledger.lines}
    unit = TALLEST / max(sizes.values())
    sides = ((118, "attention", OKABE_ITO[0]), (368, "MLP", OKABE_ITO[3]))
    for operations, (y, label, colour) in zip(BLOCK, sides, strict=True):
        chart.words(10, y - 46, label, 13, bold=True)
        step = 720 / len(operations)
        for number, (operation, names) in enumerate(operations):
            x = 62 + step * number
            chart.rect(x - 40, y - 25, 80, 50, stroke="currentColor", rx=5)
            chart.words(x, y, operation, 11.5, anchor="middle")
            if number:
                chart.line([(x - step + 42, y), (x - 48, y)], shade=GREY)
                chart.area(
                    [[(x - 42, y), (x - 50, y - 4), (x - 50, y + 4)]], ("currentColor", ""), shade=GREY
                )
            kept = [
                (name, size) for name, size in sizes.items() if name.split(",")[0] in names and size >= 0.5
            ]
            for place, (name, size) in enumerate(kept):
                at = x - 17 * len(kept) + 34 * place + 17
                tip = f"{name}: {size:.4g} bytes per token and hidden unit"
                chart.rect(
                    at - 15,
                    y + 30,
                    30,
                    size * unit,
                    (colour, "///" if "mask" in name else ""),
                    tip=tip,
                    data={"name": name, "sbh": f"{size:.4g}"},
                )
                chart.words(at, y + 34 + size * unit, f"{size:.0f}", 12, anchor="middle", at="top")
                flat = name.split(",")[0]
                for prefix in PREFIXES:
                    flat = flat.removeprefix(prefix)
                chart.words(
                    at,
                    y + 51 + size * unit,
                    flat.replace(" ", "\n"),
                    10,
                    anchor="middle",
                    at="top",
                    shade=GREY,
                )
        chart.line([(x + 40, y), (x + 50, y)], shade=GREY)
        chart.words(x + 52, y, "+ input", 11.5)
    named = ", ".join(f"{name} {size:.3g}" for name, size in sizes.items() if size >= 0.5)
    chart.alt = f"{title}: {named} sbh; {ledger.per_sbh:.1f} sbh together."
    return chart


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
    xs: Sequence[int],
    curves: Mapping[str, Sequence[int]],
    xlabel: str,
    title: str,
    capacity: tuple[str, int] | None = None,
) -> Chart:
    """Bytes over a batch or a length, one named curve each; ``capacity`` is a card's name and bytes, as a line.

    Raises: ValueError: a curve of another length than ``xs``.
    """
    for name, values in curves.items():
        if len(values) != len(xs):
            raise ValueError(f"{name!r} has {len(values)} values for {len(xs)} places")
    chart, top = Chart(800, 370, title), max(max(values) for values in curves.values())
    x = Scale(low=xs[0] - (xs[-1] - xs[0]) * 0.03, high=xs[-1], start=92, end=590)
    y, tick = Scale(low=0, high=top * 1.12, start=310, end=50), round_step(top / 4)
    ticks = range(0, int(y.high) + 1, tick)
    ticks_beside(chart, y, [(size, tick_words(size)) for size in ticks], x.start, x.end)
    ticks_below(chart, x, [(place, f"{place:,}") for place in xs], y.end, y.start, xlabel)
    drawn = [
        Curve(
            name=name,
            xs=xs,
            ys=values,
            colour=COLOURS[number + 1],
            dashes=DASHES[number],
            shape="os^D"[number],
            note=format_bytes(values[-1], 1),
        )
        for number, (name, values) in enumerate(curves.items())
    ]
    by_end = sorted(drawn, key=lambda curve: -curve.ys[-1])
    draw_curves(chart, by_end, x, y, 602, 66, 48)
    for curve in drawn:
        for place, size in zip(xs, curve.ys, strict=True):
            tip = f"{curve.name}, {place:,} {xlabel}: {format_bytes(size)}"
            chart.rect(x(place) - 6, y(size) - 6, 12, 12, ("transparent", ""), tip=tip, data={"bytes": size})
    if capacity:
        card, num_bytes = capacity
        chart.line([(92, y(num_bytes)), (590, y(num_bytes))], stroke_width=1.5, stroke_dasharray=DASHED)
        chart.words(96, y(num_bytes) - 2, f"{card}: {format_bytes(num_bytes, 1)}", 12, at="bottom")
    told = (f"{name} from {format_bytes(v[0], 1)} to {format_bytes(v[-1], 1)}" for name, v in curves.items())
    chart.alt = f"{title}, for {xlabel} from {xs[0]:,} to {xs[-1]:,}: {'; '.join(told)}."
    return chart


def hierarchy_figure(levels: Sequence[MemoryLevel], title: str) -> Chart:
    """The levels of a card's memory from the nearest to the farthest, as bars of bandwidth on a logarithmic axis."""
    known = [level for level in levels if level.bandwidth]
    chart = Chart(800, 80 + 46 * len(known), title, "a grid line is ten times the one before")
    rates = [level.bandwidth for level in known]
    x = Scale(low=min(rates) / 3, high=max(rates), start=148, end=530, is_log=True)
    for power in range(math.ceil(math.log10(x.low)), math.floor(math.log10(x.high)) + 1):
        chart.line([(x(10**power), 62), (x(10**power), chart.height - 8)], shade=FAINT)
    for row, level in enumerate(known):
        y, rate = 84 + 46 * row, f"{level.bandwidth / 1e9:,.0f} GB/s"
        holds = "a link" if level.num_bytes is None else f"holds {format_bytes(level.num_bytes, 1)}"
        waits = "" if level.latency_cycles is None else f", {level.latency_cycles} cycles"
        chart.rect(
            x.start,
            y - 15,
            x(level.bandwidth) - x.start,
            30,
            (OKABE_ITO[0], ""),
            shade=1 - 0.11 * row,
            tip=f"{level.name}: {rate}",
            data={"rate": int(level.bandwidth)},
        )
        chart.words(x.start - 8, y, level.name, 12.5, anchor="end")
        chart.words(x(level.bandwidth) + 10, y, f"{rate}; {holds}{waits}", 12)
    told = ", ".join(f"{level.name} {level.bandwidth / 1e9:,.0f} GB/s" for level in known)
    chart.alt = f"{title}, bars on a logarithmic axis: {told}."
    return chart
