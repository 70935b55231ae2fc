"""The plane of bytes and time: strategies of recomputation (chapter 04); plans of a job are ``stepscope``'s."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise

from memkit.pictures.axes import Scale, byte_ticks, draw_limit, round_ticks
from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import GREY, Chart

SHAPES = {
    "circle": (12, 0, 1),
    "square": (4, 1 / 8, 1),
    "diamond": (4, 0, 1),
    "triangle": (3, 0, 1),
    "triangle down": (3, 1 / 2, 1),
    "plus": (4, 0, 0.35),
    "star": (5, 0, 0.45),
    "cross": (4, 1 / 8, 0.35),
    "hexagon": (6, 0, 1),
    "triangle left": (3, 3 / 4, 1),
}
"""Marks: corners, turned by which share of a circle, and how far in those between them lie."""
COLOURS = ("currentColor", *OKABE_ITO[:5])


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A point of the plane; a ``kind`` has one shape and colour, and filled is on the front."""

    kind: str
    across: float
    num_bytes: int
    is_on_front: bool
    tip: str


def outline_of(shape: str, x: float, y: float, size: float) -> list[tuple[float, float]]:
    """The corners of a mark around a place."""
    corners, turn, inner = SHAPES[shape]
    angles = [2 * math.pi * (turn + number / corners) for number in range(corners)]
    if inner == 1:
        return [
            (x + 1.3 * size * math.sin(angle), y - 1.3 * size * math.cos(angle)) for angle in angles
        ]
    both = [
        (angle + half, 1.3 * size * far)
        for angle in angles
        for half, far in ((0, 1), (math.pi / corners, inner))
    ]
    return [(x + far * math.sin(angle), y - far * math.cos(angle)) for angle, far in both]


def point(
    chart: Chart,
    x: float,
    y: float,
    shape: str,
    colour: str,
    size: float = 4,
    is_filled=True,
    **tells,
):
    """A mark of a shape; hollow, it shows the ground."""
    fill = (colour if is_filled else "none", "")
    chart.area(
        [outline_of(shape, x, y, size)],
        fill,
        stroke=colour,
        stroke_width=1.2,
        pointer_events="all",
        **tells,
    )


def plane_figure(
    title: str,
    spots: Sequence[Spot],
    x_label: str,
    x_ends: tuple[float, float],
    room: tuple[str, int] | None = None,
    notes: Mapping[str, str] | None = None,
    has_stairs: bool = False,
) -> Chart:
    """Bytes over a number; ``room`` is what a card leaves for tensors, as a dashed line.

    A mark's ``data-pick`` is its place in ``spots``. ``notes`` stand below the names of kinds;
    ``has_stairs`` joins the front, where bytes and the number alone decide what is on it.
    """
    kinds, size = list(dict.fromkeys(spot.kind for spot in spots)), 5 if len(spots) < 30 else 4
    looks = dict(zip(kinds, zip(SHAPES, cycle(COLOURS), strict=False), strict=False))
    texts = {kind: kind + (f"\n{notes[kind]}" if notes else "") for kind in kinds}
    heights = [16 + 13.5 * (text.count("\n") + 1) for text in texts.values()]
    chart = Chart(800, max(430, round(126 + sum(heights))), title)
    most = 1.05 * max(*(spot.num_bytes for spot in spots), room[1] if room else 0)
    x = Scale(low=x_ends[0], high=x_ends[1], start=80, end=520)
    y = Scale(low=0, high=most, start=372, end=56)
    y.ticks_beside(chart, byte_ticks(most), 80, 520, "peak")
    x.ticks_below(
        chart, [(tick, f"{tick:g}") for tick in round_ticks(*x_ends)], y.end, y.start, x_label
    )
    if room:
        draw_limit(chart, y, room[1], 80, 520, room[0])
    if has_stairs:
        front = sorted((x(spot.across), y(spot.num_bytes)) for spot in spots if spot.is_on_front)
        steps = [
            corner for (a, b), (c, d) in pairwise(front) for corner in ((a, b), (c, b), (c, d))
        ]
        chart.line(steps or front, shade=GREY, stroke_width=1.4)
    for number, spot in enumerate(spots):
        tells = {
            "tip": spot.tip,
            "data": {"pick": number, "bytes": spot.num_bytes},
            "is_filled": spot.is_on_front,
        }
        point(chart, x(spot.across), y(spot.num_bytes), *looks[spot.kind], size, **tells)
    top = 76.0
    for (kind, text), height in zip(texts.items(), heights, strict=True):
        point(chart, 548, top + 6, *looks[kind], 5)
        chart.words(564, top, text, 11.5, at="top")
        top += height
    dashed = f"\ndashed: {room[0]}" if room else ""
    chart.words(544, top + 10, f"filled: on the front{dashed}", 11.5, shade=GREY, at="top")
    return chart
