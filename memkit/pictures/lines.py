"""Lines over a number, live in a panel: bytes over sequences, and a sum that grows, or sticks.

What a chapter shows once it plots with matplotlib, in its own cell; a panel draws with what a page without a kernel
has too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memkit.pictures.axes import Scale, Ticks, byte_ticks, draw_limit
from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import GREY, Chart
from memkit.units import format_bytes

LINE_LOOKS = tuple(
    zip(("currentColor", *(OKABE_ITO[place] for place in (1, 0, 3, 4))), ("2 3", "", "7 4", "10 3 2 3", "14 4"))
)
"""Colour and dashes of the lines of a picture, in their order."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Named values over places, with a colour and dashes; ``note`` stands below its name."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    look: tuple[str, str]
    note: str = ""


def draw_lines(chart: Chart, lines: Sequence[Line], x: Scale, y: Scale, left: float, top: float, row: float) -> None:
    """Lines on two scales, and their names below one another; what lies outside runs along the picture's edge."""
    for line in lines:
        colour, dashes = line.look
        style = {"stroke_width": 2, "stroke_dasharray": dashes or "none"}
        chart.line([(x(a), y.inside(b)) for a, b in zip(line.xs, line.ys, strict=True)], colour, **style)
        chart.line([(left, top), (left + 34, top)], colour, **style)
        chart.words(left + 44, top, line.name, 12.5)
        chart.words(left + 44, top + 16, line.note, 12, shade=GREY)
        top += row


def lines_figure(
    title: str, lines: Sequence[Line], x: Ticks, y: Ticks, room: tuple[float, float], x_label: str, y_label: str = ""
) -> tuple[Chart, Scale, Scale]:
    """Lines with their names at the side over the ticks of two axes, and the two scales; ``room`` is the y axis."""
    chart, x = Chart(800, 400, title), list(x)
    ends = [value for line in lines for value in line.xs]
    across = Scale(low=min(*ends, x[0][0]), high=max(*ends, x[-1][0]), start=92, end=548)
    up = Scale(low=room[0], high=room[1], start=340, end=60)
    up.ticks_beside(chart, y, 92, 548, y_label)
    across.ticks_below(chart, x, 60, 340, x_label)
    draw_lines(chart, lines, across, up, 566, 76, 54)
    return chart, across, up


def memory_lines(
    title: str,
    xs: Sequence[int],
    curves: Mapping[str, Sequence[int]],
    x_label: str,
    limit: tuple[str, int] | None = None,
) -> Chart:
    """Bytes over a number, one named curve each; ``limit`` is a card's name and bytes, a line where it is near."""
    lines = [
        Line(name=name, xs=xs, ys=sizes, look=look, note=format_bytes(sizes[-1], 1))
        for (name, sizes), look in zip(curves.items(), LINE_LOOKS[1:], strict=False)
    ]
    top = 1.08 * max(max(sizes) for sizes in curves.values())
    if limit and limit[1] <= 1.5 * top:
        top = max(top, 1.08 * limit[1])
    ticks = [(place, f"{place:,}") for place in xs]
    chart, across, up = lines_figure(title, lines, ticks, byte_ticks(top), (0, top), x_label)
    for line in lines:
        for place, size in zip(xs, line.ys, strict=True):
            tip = f"{line.name}, {place:,} {x_label}: {format_bytes(size)}"
            box = (across(place) - 6, up(size) - 6, 12, 12)
            chart.rect(*box, ("transparent", ""), tip=tip, data={"bytes": size})
    if limit:
        draw_limit(chart, up, limit[1], 92, 548, limit[0])
        words = f"{limit[0]}: {format_bytes(limit[1], 1)}" if limit[1] < top else ""
        chart.words(544, up(limit[1]) - 9, words, anchor="end", boxed=True)
    told = (f"{name} from {format_bytes(v[0], 1)} to {format_bytes(v[-1], 1)}" for name, v in curves.items())
    chart.alt = f"{title}, for {x_label} from {xs[0]:,} to {xs[-1]:,}: {'; '.join(told)}."
    return chart
