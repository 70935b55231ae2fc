"""The plane of bytes and time: strategies of recomputation (chapter 04); plans of a job are ``stepscope``'s."""

import math
from collections.abc import Sequence
from itertools import cycle, pairwise

from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import GREY, Chart, Scale, byte_ticks, draw_limit, round_ticks
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
    x = Scale(low=x_ends[0], high=x_ends[1], start=80, end=right)
    y = Scale(low=0, high=1.05 * most_bytes, start=372, end=56)
    y.ticks_beside(chart, byte_ticks(y.high), 80, right, "peak")
    ticks = [(tick, f"{tick:g}") for tick in round_ticks(*x_ends)]
    x.ticks_below(chart, ticks, y.end, y.start, x_label)
    if limit:
        draw_limit(chart, y, limit[1], 80, right, limit[0])
    return x, y


def stairs(chart: Chart, places: Sequence[tuple[float, float]]) -> None:
    """The front, where bytes and the number alone decide what is on it."""
    steps = [corner for (a, b), (c, d) in pairwise(places) for corner in ((a, b), (c, b), (c, d))]
    chart.line(steps or places, shade=GREY, stroke_width=1.4)


def frontier_figure(
    title: str,
    found: Sequence[Point],
    front: Sequence[Point],
    notes: Sequence[str],
    limit: tuple[str, int] | None,
) -> Chart:
    """Strategies by FLOPs run again and peak, their front joined, with a note below the name of each.

    ``limit`` is the room on a card. A mark's ``data-pick`` is its place in ``found``.
    """
    texts = [f"{each.strategy.name}\n{note}" for each, note in zip(found, notes, strict=True)]
    chart = Chart(800, max(430, 120 + 34 * len(texts)), title)
    most = max(*(each.peak_bytes for each in found), limit[1] if limit else 0)
    # running all of the forward again is a third of a plain step
    x, y = plane(chart, 520, (-2.5, 40), "FLOPs run again, % of a plain step", most, limit)
    places = [(x(100 * each.overhead), y(each.peak_bytes)) for each in found]
    stairs(chart, sorted(at for at, each in zip(places, found, strict=True) if each in front))
    looks = list(zip(SHAPES, cycle(COLOURS), strict=False))
    for number, (each, at) in enumerate(zip(found, places, strict=True)):
        more = f"{each.overhead:.1%} more FLOPs, peak {format_bytes(each.peak_bytes)}"
        tip, data = f"{each.strategy.name}: {more}", {"pick": number, "bytes": each.peak_bytes}
        point(chart, *at, *looks[number], 5, each in front, tip=tip, data=data)
    for number, text in enumerate(texts):
        top = 72 + 34 * number
        point(chart, 548, top + 6, *looks[number], 5, True)
        chart.words(564, top, text, 11.5, at="top")
    dashed = f"\ndashed: {limit[0]}" if limit else ""
    words = f"filled: on the front{dashed}"
    chart.words(544, 80 + 34 * len(texts), words, 11.5, shade=GREY, at="top")
    return chart
