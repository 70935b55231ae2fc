"""Strategies on the memory-compute plane, and the peak of each against the sequence length, in one drawing."""

from collections.abc import Sequence
from itertools import pairwise

from memkit.pictures.axes import DASHED, Curve, Scale, outline_of, point, ticks_below, ticks_beside
from memkit.pictures.svg import GREY, OKABE_ITO, Chart
from memkit.pictures.timeline import axis_top, memory_axis, tick_words
from memkit.recomputation.frontier import Point, pareto_front
from memkit.units import format_bytes

SHAPES = "osD^vP*Xh<"
COLOURS = ("currentColor", *OKABE_ITO[:7], OKABE_ITO[7], "#7FB8D8")
AROUND = ((0, 19), (0, -19), (20, 0), (-20, 0), (19, 16), (-19, 16), (19, -16), (-19, -16), (0, 34), (0, -34))
"""Where a point's number may stand, from the point; the first place that is free is taken."""
LENGTHS = (512, 1024, 2048, 4096, 8192)
WIDEST = 40
"""End of the axis of FLOPs run again, in per cent: running all of the forward again is a third of a plain step."""


def frontier_figure(
    found: Sequence[Point],
    chosen: int,
    curves: Sequence[Sequence[tuple[int, int]]],
    *,
    title: str,
    room_bytes: int | None = None,
    seq_len: int | None = None,
) -> Chart:
    """Left: overhead against peak, the front as a line, the chosen strategy ringed. Right: peak against tokens.

    A strategy has a number, a mark and a colour; the number stands beside its point and in the list of names.
    ``chosen`` is the index of a point; ``curves`` has for each (sequence, peak in bytes). A mark's ``data-pick`` is
    the index of its point.
    """
    chart = Chart(920, 430, title)
    plane = Scale(low=-2.5, high=WIDEST, start=74, end=396)
    y = Scale(low=0, high=axis_top(max(point.peak_bytes for point in found), room_bytes), start=372, end=56)
    memory_axis(chart, y, 74, 396)
    ticks_below(
        chart,
        plane,
        [(share, str(share)) for share in range(0, WIDEST, 10)],
        56,
        372,
        "FLOPs run again, % of a plain step",
    )
    _room_line(chart, y, plane, room_bytes)
    _draw_curves(chart, curves, chosen, seq_len, room_bytes)
    front = sorted(pareto_front(found), key=lambda each: each.worth)
    _draw_plane(chart, found, front, chosen, plane, y)
    _write_names(chart, found, front, chosen, room_bytes)
    own = found[chosen]
    chart.alt = (
        f"{title}: {len(found)} strategies by FLOPs run again and peak memory. Chosen: {own.strategy.name}, "
        f"{own.overhead:.1%} more FLOPs, peak {format_bytes(own.peak_bytes)}."
    )
    return chart


def _draw_plane(
    chart: Chart, found: Sequence[Point], front: Sequence[Point], chosen: int, x: Scale, y: Scale
) -> None:
    """The points with their numbers, each where it covers no point, no other number and not the front."""
    places = [(x(100 * each.overhead), y(each.peak_bytes)) for each in found]
    turns = [(x(100 * each.overhead), y(each.peak_bytes)) for each in front]
    steps = [corner for (a, b), (c, d) in pairwise(turns) for corner in ((a, b), (c, b), (c, d))]
    chart.line(steps or turns, shade=GREY, stroke_width=1.4)
    for (a, b), (c, d) in pairwise(steps):
        chart.keep_clear(min(a, c) - 2, min(b, d) - 2, max(a, c) + 2, max(b, d) + 2)
    for a, b in places:
        chart.keep_clear(a - 7, b - 7, a + 7, b + 7)
    for number, (each, (a, b)) in enumerate(zip(found, places, strict=True)):
        if number == chosen:
            chart.area([outline_of("o", a, b, 9)], stroke="currentColor", stroke_width=1.2)
        tip = f"{each.strategy.name}: {each.overhead:.1%} more FLOPs, peak {format_bytes(each.peak_bytes)}"
        point(
            chart,
            a,
            b,
            SHAPES[number],
            COLOURS[number],
            5.5,
            tip=tip,
            data={"pick": number, "bytes": each.peak_bytes},
        )
        chart.place(*([(a + dx, b + dy, str(number + 1))] for dx, dy in AROUND), size=12)


def _room_line(chart: Chart, y: Scale, x: Scale, room_bytes: int | None) -> None:
    """What a card leaves for tensors, across, where it is in view."""
    if room_bytes and y.low < room_bytes < y.high:
        ends = [(x.start, y(room_bytes)), (x.end, y(room_bytes))]
        chart.line(ends, OKABE_ITO[1], stroke_width=1.8, stroke_dasharray=DASHED)


def _draw_curves(chart: Chart, curves, chosen: int, seq_len: int | None, room_bytes: int | None) -> None:
    """The peak of each strategy over the length of a sequence, both by powers of two; the chosen one is thick."""
    peaks = [peak for curve in curves for _, peak in curve]
    low, high = min(peaks).bit_length() - 1, max(peaks).bit_length()
    tokens = Scale(low=400, high=10_500, start=470, end=662, is_log=True)
    octaves = Scale(low=2**low, high=2**high, start=372, end=56, is_log=True)
    ticks_beside(
        chart, octaves, [(2**power, tick_words(2**power)) for power in range(low, high + 1)], 470, 662
    )
    ticks_below(
        chart, tokens, [(length, f"{length:,}") for length in LENGTHS], 56, 372, "tokens in a sequence"
    )
    _room_line(chart, octaves, tokens, room_bytes)
    if seq_len:
        chart.line([(tokens(seq_len), 56), (tokens(seq_len), 372)], shade=GREY, stroke_dasharray="2 3")
    for number, curve in enumerate(curves):
        Curve(
            name="",
            xs=[n for n, _ in curve],
            ys=[peak for _, peak in curve],
            colour=COLOURS[number],
            shape=SHAPES[number],
            width=3 if number == chosen else 1.1,
        ).draw(chart, tokens, octaves)


def _write_names(chart: Chart, found, front, chosen: int, room_bytes: int | None) -> None:
    """The list of strategies: mark, number, name, and how each stands."""
    for number, each in enumerate(found):
        top = 72 + 30 * number
        point(chart, 690, top, SHAPES[number], COLOURS[number], 5, data={"pick": number})
        chart.words(
            704,
            top,
            f"{number + 1}  {each.strategy.name.replace('checkpoint_', '')}",
            11.5,
            bold=number == chosen,
        )
        standing = ["on the front"] if each in front else []
        if room_bytes:
            standing.append("fits" if each.peak_bytes <= room_bytes else "too large")
        chart.words(722, top + 14, ", ".join(standing), 10.5, shade=GREY)
