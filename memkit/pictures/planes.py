"""The plane of bytes and time: strategies of recomputation (chapter 04); plans of a job are ``stepscope``'s."""

import math
from collections.abc import Sequence
from itertools import cycle, pairwise

from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import (
    GREY,
    WIDE,
    Chart,
    Scale,
    byte_ticks,
    draw_limit,
    redrawn,
    round_ticks,
)
from memkit.recomputation import Point
from memkit.units import format_bytes

SHAPES = (  # corners, turned by which share of a circle, and how far in those between them lie
    (12, 0, 1),  # a circle
    (4, 1 / 8, 1),  # a square
    (4, 0, 1),  # a diamond
    (3, 0, 1),  # a triangle
    (3, 1 / 2, 1),
    (4, 0, 0.35),  # a plus
    (5, 0, 0.45),  # a star
    (4, 1 / 8, 0.35),  # a cross
    (6, 0, 1),
)
COLOURS = ("currentColor", *OKABE_ITO[:5])


def point(
    chart: Chart, x: float, y: float, shape: tuple, colour: str, size: float, filled, **tells
):
    """A mark of a shape; hollow, it shows the ground."""
    corners, turn, inner = shape
    spokes = [(turn + number / corners, 1) for number in range(corners)]
    if inner < 1:
        half = 1 / 2 / corners
        spokes = [spoke for at, _ in spokes for spoke in ((at, 1), (at + half, inner))]
    outline = []
    for at, far in spokes:
        angle, radius = 2 * math.pi * at, 1.3 * size * far
        outline.append((x + radius * math.sin(angle), y - radius * math.cos(angle)))
    style = {"stroke": colour, "stroke_width": 1.2, "pointer_events": "all", **tells}
    chart.area([outline], (colour if filled else "none", ""), **style)


def plane(
    chart: Chart,
    right: float,
    x_ends: tuple[float, float],
    x_label: str,
    most_bytes: int,
    limit: tuple[str, int] | None,
) -> tuple[Scale, Scale]:
    """The axes: a number across, up to ``right``, and peaks upwards; ``limit`` is the room on a card, a dashed line."""
    left = 68 if chart.is_narrow else 80
    x = Scale(low=x_ends[0], high=x_ends[1], start=left, end=right)
    y = Scale(low=0, high=1.05 * most_bytes, start=372 + chart.lower, end=56 + chart.lower)
    y.ticks_beside(chart, byte_ticks(y.high), left, right, "peak")
    ticks = [(tick, f"{tick:g}") for tick in round_ticks(*x_ends)]
    x.ticks_below(chart, ticks, y.end, y.start, x_label)
    if limit:
        draw_limit(chart, y, limit[1], left, right, limit[0])
    return x, y


def stairs(chart: Chart, places: Sequence[tuple[float, float]]) -> None:
    """The front, where bytes and the number alone decide what is on it."""
    steps = [corner for (a, b), (c, d) in pairwise(places) for corner in ((a, b), (c, b), (c, d))]
    chart.line(steps or places, shade=GREY, stroke_width=1.4)


@redrawn
def frontier_figure(
    title: str,
    found: Sequence[Point],
    front: Sequence[Point],
    notes: Sequence[str],
    limit: tuple[str, int] | None,
    width: float = WIDE,
) -> Chart:
    """Strategies by FLOPs run again and peak, their front joined, with a note below the name of each.

    ``limit`` is the room on a card. A mark's ``data-pick`` is its place in ``found``. On a narrow page the names stand
    below.
    """
    texts = [f"{each.strategy.name}\n{note}" for each, note in zip(found, notes, strict=True)]
    chart = Chart(width, max(430, 120 + 34 * len(texts)), title)
    left, first, tall, right = 548, 72, 34, 520
    if chart.is_narrow:
        left, first, tall, right = 12, 430 + chart.lower, 20, width - 10
        chart.height = first + tall * len(texts) + 44
    most = max(*(each.peak_bytes for each in found), limit[1] if limit else 0)
    # running all of the forward again is a third of a plain step
    x, y = plane(chart, right, (-2.5, 40), "FLOPs run again, % of a plain step", most, limit)
    places = [(x(100 * each.overhead), y(each.peak_bytes)) for each in found]
    stairs(chart, sorted(at for at, each in zip(places, found, strict=True) if each in front))
    looks = list(zip(SHAPES, cycle(COLOURS), strict=False))
    for number, (each, at) in enumerate(zip(found, places, strict=True)):
        more = f"{each.overhead:.1%} more FLOPs, peak {format_bytes(each.peak_bytes)}"
        tip, data = f"{each.strategy.name}: {more}", {"pick": number, "bytes": each.peak_bytes}
        point(chart, *at, *looks[number], 5, each in front, tip=tip, data=data)
    for number, text in enumerate(texts):
        top = first + tall * number
        point(chart, left, top + 6, *looks[number], 5, True)
        if chart.is_narrow:
            text, _, note = text.partition("\n")
            chart.words(width - 4, top, note, 11, at="top", anchor="end", shade=GREY)
        chart.words(
            left + 16 - 4 * chart.is_narrow, top, text, 11.5 - 0.5 * chart.is_narrow, at="top"
        )
    dashed = f"\ndashed: {limit[0]}" if limit else ""
    words = f"filled: on the front{dashed}"
    chart.words(left - 4, first + 8 + tall * len(texts), words, 11.5, shade=GREY, at="top")
    return chart
