"""Planes of bytes and time: strategies with what they run again (chapter 04), plans with what they give up (10)."""

import math
from collections.abc import Sequence
from itertools import cycle, pairwise

from memkit.fitting.plans import PlansFound
from memkit.pictures.axes import DASHED, Scale, byte_ticks, draw_limit, round_ticks
from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import GREY, Chart
from memkit.recomputation.frontier import Point, pareto_front
from memkit.units import GIB, format_bytes

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
"""Marks of points: corners, turned by which share of a circle, and how far in the corners between them lie."""
COLOURS = ("currentColor", *OKABE_ITO, "#7FB8D8")
AROUND = ((0, 19), (0, -19), (20, 0), (-20, 0), (19, 16), (-19, 16), (19, -16), (-19, -16), (0, 34), (0, -34))
"""Where a point's number may stand, from the point; the first place that is free is taken."""
WIDEST = 40
"""End of the axis of FLOPs run again, in per cent: running all of the forward again is a third of a plain step."""


def outline_of(shape: str, x: float, y: float, size: float) -> list[tuple[float, float]]:
    """The corners of a mark around a place."""
    corners, turn, inner = SHAPES[shape]
    angles = [2 * math.pi * (turn + number / corners) for number in range(corners)]
    if inner == 1:
        return [(x + 1.3 * size * math.sin(angle), y - 1.3 * size * math.cos(angle)) for angle in angles]
    both = [(angle + half, 1.3 * size * far) for angle in angles for half, far in ((0, 1), (math.pi / corners, inner))]
    return [(x + far * math.sin(angle), y - far * math.cos(angle)) for angle, far in both]


def point(chart: Chart, x: float, y: float, shape: str, colour: str, size: float = 4, is_filled=True, **tells):
    """A mark of a shape; hollow, it shows the ground."""
    fill = (colour if is_filled else "none", "")
    chart.area([outline_of(shape, x, y, size)], fill, stroke=colour, stroke_width=1.2, pointer_events="all", **tells)


def frontier_figure(found: Sequence[Point], chosen: int, *, title: str, room_bytes: int | None = None) -> Chart:
    """FLOPs run again against the peak: the front as a line, the chosen strategy, an index of ``found``, ringed.

    A strategy has a number, a mark and a colour; the number stands beside its point and in the list of names, and a
    mark's ``data-pick`` is its index. ``room_bytes`` is what a card leaves for tensors.

    Raises: ValueError: no point.
    """
    if not found:
        raise ValueError("found=() has no point to draw")
    chart = Chart(800, 430, title)
    x = Scale(low=-2.5, high=WIDEST, start=80, end=520)
    most = 1.08 * max(*(each.peak_bytes for each in found), room_bytes or 0)
    y = Scale(low=0, high=most, start=372, end=56)
    y.ticks_beside(chart, byte_ticks(most), 80, 520)
    shares = [(share, str(share)) for share in range(0, WIDEST, 10)]
    x.ticks_below(chart, shares, y.end, y.start, "FLOPs run again, % of a plain step")
    draw_limit(chart, y, room_bytes, 80, 520, "room")
    front = sorted(pareto_front(found), key=lambda each: each.worth)
    _draw_strategies(chart, found, front, chosen, x, y)
    for number, each in enumerate(found):
        top, name = 72 + 30 * number, f"{number + 1}  {each.strategy.name.replace('checkpoint_', '')}"
        point(chart, 550, top, _shape_of(number), COLOURS[number], 5, data={"pick": number})
        chart.words(564, top, name, 11.5, bold=number == chosen)
        standing = ["on the front"] if each in front else []
        if room_bytes:
            standing.append("fits" if each.peak_bytes <= room_bytes else "too large")
        chart.words(582, top + 14, ", ".join(standing), 10.5, shade=GREY)
    own = found[chosen]
    chart.alt = (
        f"{title}: {len(found)} strategies by FLOPs run again and peak memory. Chosen: {own.strategy.name}, "
        f"{own.overhead:.1%} more FLOPs, peak {format_bytes(own.peak_bytes)}."
    )
    return chart


def _shape_of(number: int) -> str:
    return list(SHAPES)[number % len(SHAPES)]


def _draw_strategies(chart: Chart, found: Sequence[Point], front: Sequence[Point], chosen: int, x: Scale, y: Scale):
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
            chart.area([outline_of("circle", a, b, 9)], stroke="currentColor", stroke_width=1.2)
        tip = f"{each.strategy.name}: {each.overhead:.1%} more FLOPs, peak {format_bytes(each.peak_bytes)}"
        data = {"pick": number, "bytes": each.peak_bytes}
        point(chart, a, b, _shape_of(number), COLOURS[number], 5.5, tip=tip, data=data)
        chart.place(*([(a + dx, b + dy, str(number + 1))] for dx, dy in AROUND), size=12)


def plans_figure(found: PlansFound, title: str) -> Chart:
    """Every plan by its peak and its time on paper; the front's are filled, and what is given up has its own shape.

    A mark's ``data-pick`` is the plan's place in ``found.plans``.
    """
    kinds = list(dict.fromkeys(plan.gives_up for plan in sorted(found.plans, key=lambda plan: plan.sacrifice)))
    looks = dict(zip(kinds, zip(SHAPES, cycle(("currentColor", *OKABE_ITO[:5])), strict=False), strict=False))
    heights = [16 + 13.5 * max(len(kind), 1) for kind in kinds]  # a line for each thing given up, or for nothing
    chart = Chart(800, max(410, round(126 + sum(heights))), title)
    plans, card, least = found.plans, found.plans[0].card, min(plan.seconds for plan in found.plans)
    most, slowest = max(card.memory_bytes, *(p.peak_bytes for p in plans)) / GIB, max(p.seconds for p in plans) / least
    x = Scale(low=0, high=most * 1.05, start=62, end=512)
    y = Scale(low=1, high=slowest * 1.06, start=350, end=60)
    x.ticks_below(chart, [(tick, f"{tick:g}") for tick in round_ticks(0, x.high)], 60, 350, "peak in GiB")
    y.ticks_beside(chart, [(tick, f"{tick:g}") for tick in round_ticks(1, y.high)], 62, 512, "time of a step ÷ least")
    end = x(card.memory_bytes / GIB)
    chart.line([(end, 60), (end, 350)], OKABE_ITO[1], stroke_width=2, stroke_dasharray=DASHED)
    for number, plan in enumerate(plans):
        tip = f"{format_bytes(plan.peak_bytes)}, {plan.seconds / least:.2f} × the least time: {plan.name}"
        tells = {"tip": tip, "data": {"pick": number, "bytes": plan.peak_bytes}, "is_filled": plan in found.front}
        point(chart, x(plan.peak_bytes / GIB), y(plan.seconds / least), *looks[plan.gives_up], **tells)
    place = 76.0
    for (kind, look), height in zip(looks.items(), heights, strict=True):
        point(chart, 540, place + 6, *look, 5)
        chart.words(556, place, "\n".join(kind or ["gives up nothing"]), 11.5, at="top")
        place += height
    chart.words(536, place + 14, f"filled: on the front\ndashed: {card.name}", 11.5, shade=GREY, at="top")
    chart.alt = (
        f"{title}: {len(plans)} plans by peak and time; {len(found.fitting)} fit the {card.name}, "
        f"{len(found.front)} of them are on the front, from "
        f"{format_bytes(min((p.peak_bytes for p in found.front), default=0), 1)} upwards."
    )
    return chart
