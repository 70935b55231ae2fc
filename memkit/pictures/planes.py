"""Planes of bytes against time: strategies with what they run again, and plans with what they give up."""

from collections.abc import Sequence
from itertools import cycle, pairwise

from memkit.fitting.plans import PlansFound
from memkit.pictures import axes
from memkit.pictures.axes import DASHED, Curve, Scale, outline_of, point, round_ticks
from memkit.pictures.svg import GREY, OKABE_ITO, Chart
from memkit.pictures.timeline import axis_top, memory_axis, tick_words
from memkit.recomputation.frontier import Point, pareto_front
from memkit.units import GIB, format_bytes

NAMES_TOP = 76.0
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

    Raises: ValueError: not a curve for each point, with a place at least.
    """
    if not found or len(curves) != len(found) or not all(curves):
        raise ValueError(f"{len(found)} points and {len(curves)} curves: each point wants one, with a place at least")
    chart = Chart(920, 430, title)
    plane = Scale(low=-2.5, high=WIDEST, start=74, end=396)
    y = Scale(low=0, high=axis_top(max(point.peak_bytes for point in found), room_bytes), start=372, end=56)
    memory_axis(chart, y, 74, 396)
    shares = [(share, str(share)) for share in range(0, WIDEST, 10)]
    plane.ticks_below(chart, shares, y.end, y.start, "FLOPs run again, % of a plain step")
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


def _draw_plane(chart: Chart, found: Sequence[Point], front: Sequence[Point], chosen: int, x: Scale, y: Scale) -> None:
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
        data = {"pick": number, "bytes": each.peak_bytes}
        point(chart, a, b, SHAPES[number], COLOURS[number], 5.5, tip=tip, data=data)
        chart.place(*([(a + dx, b + dy, str(number + 1))] for dx, dy in AROUND), size=12)


def _room_line(chart: Chart, y: Scale, x: Scale, room_bytes: int | None) -> None:
    """What a card leaves for tensors, across, where it is in view."""
    if room_bytes and y.low < room_bytes < y.high:
        ends = [(x.start, y(room_bytes)), (x.end, y(room_bytes))]
        chart.line(ends, OKABE_ITO[1], stroke_width=1.8, stroke_dasharray=DASHED)


def _draw_curves(chart: Chart, curves, chosen: int, seq_len: int | None, room_bytes: int | None) -> None:
    """The peak of each strategy over the length of a sequence, both by powers of two; the chosen one is thick."""
    peaks = [peak for curve in curves for _, peak in curve]
    if not peaks:
        raise ValueError("curves=[] has no curve to draw: a (tokens, bytes) pair at least")
    low, high = min(peaks).bit_length() - 1, max(peaks).bit_length()
    tokens = Scale(low=400, high=10_500, start=470, end=662, is_log=True)
    octaves = Scale(low=2**low, high=2**high, start=372, end=56, is_log=True)
    octaves.ticks_beside(chart, [(2**power, tick_words(2**power)) for power in range(low, high + 1)], 470, 662)
    tokens.ticks_below(chart, [(length, f"{length:,}") for length in LENGTHS], 56, 372, "tokens in a sequence")
    _room_line(chart, octaves, tokens, room_bytes)
    if seq_len:
        chart.line([(tokens(seq_len), 56), (tokens(seq_len), 372)], shade=GREY, stroke_dasharray="2 3")
    for number, curve in enumerate(curves):
        width = 3 if number == chosen else 1.1
        drawn = Curve("", *zip(*curve, strict=True), COLOURS[number], shape=SHAPES[number], width=width)
        drawn.draw(chart, tokens, octaves)


def _write_names(chart: Chart, found, front, chosen: int, room_bytes: int | None) -> None:
    """The list of strategies: mark, number, name, and how each stands."""
    for number, each in enumerate(found):
        top = 72 + 30 * number
        point(chart, 690, top, SHAPES[number], COLOURS[number], 5, data={"pick": number})
        name = f"{number + 1}  {each.strategy.name.replace('checkpoint_', '')}"
        chart.words(704, top, name, 11.5, bold=number == chosen)
        standing = ["on the front"] if each in front else []
        if room_bytes:
            standing.append("fits" if each.peak_bytes <= room_bytes else "too large")
        chart.words(722, top + 14, ", ".join(standing), 10.5, shade=GREY)


def plans_figure(found: PlansFound, title: str) -> Chart:
    """Every plan by its peak and its time on paper; the front's are filled, and what is given up has its own shape.

    A mark's ``data-pick`` is the plan's place in ``found.plans``.
    """
    kinds = list(dict.fromkeys(plan.gives_up for plan in sorted(found.plans, key=lambda plan: plan.sacrifice)))
    looks = dict(zip(kinds, zip(axes.SHAPES, cycle(axes.COLOURS), strict=False), strict=False))
    names_end = NAMES_TOP + sum(_height_of(kind) for kind in kinds)
    chart = Chart(800, max(410, round(names_end + 50)), title)
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
    _name_kinds(chart, looks, card.name)
    chart.alt = (
        f"{title}: {len(plans)} plans by peak and time; {len(found.fitting)} fit the {card.name}, "
        f"{len(found.front)} of them are on the front, from "
        f"{format_bytes(min((p.peak_bytes for p in found.front), default=0), 1)} upwards."
    )
    return chart


def _height_of(kind: tuple[str, ...]) -> float:
    """What the name of a kind takes beside the picture: a line for each thing that it gives up, or for nothing."""
    return 16 + 13.5 * max(len(kind), 1)


def _name_kinds(chart: Chart, looks: dict, card: str) -> None:
    """What each mark gives up, in words."""
    place = NAMES_TOP
    for kind, look in looks.items():
        point(chart, 540, place + 6, *look, 5)
        chart.words(556, place, "\n".join(kind or ["gives up nothing"]), 11.5, at="top")
        place += _height_of(kind)
    chart.words(536, place + 14, f"filled: on the front\ndashed: {card}", 11.5, shade=GREY, at="top")
