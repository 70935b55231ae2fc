"""Rows of bars from the left: recipes, what blocks keep, streams of a GPU, the memory of a card."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from memkit.formula.activations import Ledger
from memkit.hardware.hierarchy import MemoryLevel
from memkit.pictures.axes import Scale, round_ticks
from memkit.pictures.svg import EDGED, FAINT, GREY, LOOKS, OKABE_ITO, OTHER, PAPER, Chart, look_of, text_width
from memkit.units import format_bytes


def end_to_end(sizes: Mapping[str, float]) -> Iterator[tuple[str, float, float, float]]:
    """Name, size, start and end of pieces that follow one another from 0 on.

    >>> list(end_to_end({"weight": 4, "gradient": 2}))
    [('weight', 4, 0, 4), ('gradient', 2, 4, 6)]
    """
    ends = pairwise(accumulate(sizes.values(), initial=0))
    return ((name, size, *piece) for (name, size), piece in zip(sizes.items(), ends, strict=True))


def totals_of(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """What the pieces of each row are together. Raises: ValueError: no row to draw."""
    if not rows:
        raise ValueError("rows={} have nothing to draw; allowed is at least one bar")
    return {row: sum(pieces.values()) for row, pieces in rows.items()}


def recipes_figure(recipes: Mapping[str, Mapping[str, float]], title: str = "Bytes per parameter") -> Chart:
    """Addends by recipe, in bytes per parameter, as ``bytes_per_parameter`` gives them; or claims by verdict.

    Raises: ValueError: no recipe.
    """
    totals = totals_of(recipes)
    names = list(dict.fromkeys(name for addends in recipes.values() for name in addends))
    chart = Chart(800, 0, title)
    top = chart.legend([(LOOKS.get(name, OTHER), name) for name in names], 10, 46, 780) + 8
    chart.height = top + 34 * len(recipes)
    left, largest = 24 + max(text_width(recipe, 12.5) for recipe in recipes), max(totals.values())
    x = Scale(low=0, high=largest * 1.09, start=left, end=780)
    for row, (recipe, addends) in enumerate(recipes.items()):
        y = top + 12 + 34 * row
        for name, size, start, end in end_to_end(addends):
            tells = {"tip": f"{name}: {size:g}, {recipe}", "data": {"name": name, "size": f"{size:g}"}}
            chart.bar(x(start), x(end), y, 24, LOOKS.get(name, OTHER), **tells, stroke=PAPER)
            if size >= max(1, 0.02 * largest):  # room for a number
                chart.words(x(start + size / 2), y, f"{size:g}", 12, anchor="middle", boxed=True)
        chart.words(left - 10, y, recipe, 12.5, anchor="end")
        chart.words(x(totals[recipe]) + 8, y, f"{totals[recipe]:.4g}", 12.5, bold=True)
    chart.alt = f"{title}: {'; '.join(f'{recipe} {total:.4g}' for recipe, total in totals.items())}."
    return chart


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
    totals = totals_of(bars)
    chart = Chart(800, 50 + 80 * len(bars), title)
    x = Scale(low=0, high=max(totals.values()), start=10, end=790)
    names = list(dict.fromkeys(name for pieces in bars.values() for name in pieces))
    for row, (label, pieces) in enumerate(bars.items()):
        small, y = [], 90 + 80 * row
        for name, size, start, end in end_to_end(pieces):
            look, words = look_of(names.index(name)), f"{name}\n{size:.3g}"
            tip, data = f"{name}: {size:.4g} {unit}, {label}", {"name": name, "size": f"{size:.6g}"}
            chart.bar(x(start), x(end), y, 44, look, shade=0.38, **EDGED, tip=tip, data=data)
            if text_width(words, 11) + 4 <= x(end) - x(start):
                chart.words(x(start + size / 2), y, words, 11, anchor="middle")
            elif size / totals[label] >= 0.002:
                small.append(f"{name} {size:.3g}")
        heading = f"{label}: {totals[label]:.1f} {unit}"
        chart.words(10, y - 35, heading, 12.5, bold=True)
        note = f"not named inside: {', '.join(small)}" if small else ""
        while text_width(note, 10.5) > 770 - text_width(heading, 12.5, bold=True):
            note = note.removesuffix(", …").rpartition(",")[0] + ", …"
        chart.words(790, y - 34, note, 10.5, anchor="end", shade=GREY)
    chart.alt = f"{title}, one bar each: {'; '.join(f'{label} {total:.1f} {unit}' for label, total in totals.items())}."
    return chart


def streams_figure(events: Sequence[dict], title: str = "Kernels and copies on their streams") -> Chart:
    """One row a stream, one bar an event of an execution trace with ``ts`` and ``dur`` in microseconds.

    Raises: ValueError: no event that ran on a stream.
    """
    ran = [event for event in events if event.get("ph") == "X" and "stream" in event.get("args", {})]
    if not ran:
        raise ValueError(f"{len(events)} events, none of them on a stream")
    rows = sorted({event["args"]["stream"] for event in ran})
    kinds = list(dict.fromkeys(event["cat"] for event in ran))
    bottom, spans = 44 + 44 * len(rows), []
    chart = Chart(800, bottom + 50, title)
    first, last = min(e["ts"] for e in ran), max(e["ts"] + e["dur"] for e in ran)
    x = Scale(low=first - 1, high=last + 1, start=88, end=782)
    x.ticks_below(chart, [(t, f"{t:,g}") for t in round_ticks(x.low, x.high, 8)], 38, bottom, "µs")
    for row, stream in enumerate(rows):
        chart.words(80, 64 + 44 * row, f"stream {stream}", 12, anchor="end")
    for event in ran:
        name, start, length, stream = event["name"], event["ts"], event["dur"], event["args"]["stream"]
        kind, y, left, right = kinds.index(event["cat"]), 64 + 44 * rows.index(stream), x(start), x(start + length)
        look, long = (OKABE_ITO[kind % len(OKABE_ITO)], ("", "///")[kind % 2]), f"{name}, {length:g}"
        tip, data = f"{long} µs from {start:g}", {"start": f"{start:g}", "duration": f"{length:g}"}
        chart.bar(left, right, y, 30, look, shade=0.38, **EDGED, tip=tip, data=data)
        words = long if text_width(long, 11.5) <= right - left else name
        middle, half = (left + right) / 2, text_width(words, 11.5) / 2
        if 2 * half <= right - left + 24:
            chart.place([(middle, y, words)], [(middle, y - 22, words)], [], size=11.5, boxed=kind % 2)
            chart.keep_clear(middle - half - 9, y - 8, middle + half + 9, y + 8)  # the next name begins further away
        spans.append(f"stream {stream}, {name} from {start:g} to {start + length:g} µs")
    chart.alt = f"{title}: {'; '.join(spans)}."
    return chart


def hierarchy_figure(levels: Sequence[MemoryLevel], title: str) -> Chart:
    """The levels of a card's memory from the nearest to the farthest, as bars of bandwidth on a logarithmic axis."""
    known = {level: f"{level.bandwidth / 1e9:,.0f} GB/s" for level in levels if level.bandwidth}
    chart = Chart(800, 80 + 46 * len(known), title, "a grid line is ten times the one before")
    rates = [level.bandwidth for level in known]
    x = Scale(low=min(rates) / 3, high=max(rates), start=148, end=530, is_log=True)
    for power in range(math.ceil(math.log10(x.low)), math.floor(math.log10(x.high)) + 1):
        chart.line([(x(10**power), 62), (x(10**power), chart.height - 8)], shade=FAINT)
    for row, (level, rate) in enumerate(known.items()):
        y, end, look = 84 + 46 * row, x(level.bandwidth), (OKABE_ITO[0], "")
        holds = "a link" if level.num_bytes is None else f"holds {format_bytes(level.num_bytes, 1)}"
        waits = "" if level.latency_cycles is None else f", {level.latency_cycles} cycles"
        tells = {"tip": f"{level.name}: {rate}", "data": {"rate": int(level.bandwidth)}}
        chart.bar(x.start, end, y, 30, look, shade=1 - 0.11 * row, **tells)
        chart.words(x.start - 8, y, level.name, 12.5, anchor="end")
        chart.words(end + 10, y, f"{rate}; {holds}{waits}", 12)
    told = ", ".join(f"{level.name} {rate}" for level, rate in known.items())
    chart.alt = f"{title}, bars on a logarithmic axis: {told}."
    return chart
