"""Lines over steps, and bytes over a batch or a length: each with its colour, its dashes and its name at the side."""

import math
from collections.abc import Mapping, Sequence

from memkit.pictures.axes import COLOURS, DASHES, Curve, Scale, draw_curves, point, round_ticks
from memkit.pictures.svg import GREY, Chart
from memkit.pictures.timeline import card_line, tick_words
from memkit.units import format_bytes

SIZES = tuple(zip(COLOURS[1:], DASHES, "os^D", strict=False))
"""Colour, dashes and mark of each curve of bytes."""


def curves_figure(
    curves: Mapping[str, Sequence[float]],
    title: str,
    *,
    x: Sequence[float] | None = None,
    x_label: str = "step",
    y_label: str = "loss",
    log_x: bool = False,
    level: float | None = None,
) -> Chart:
    """Named values over ``x`` (their numbers from 1 on, if none is given); a line ends where it is not finite.

    ``level`` draws a line across. Raises: ValueError: no curve, more than six, or one of another length than ``x``.
    """
    if not 1 <= len(curves) <= len(COLOURS):
        raise ValueError(f"{len(curves)} curves; 1 to {len(COLOURS)} can be told apart")
    places = {name: list(x) if x is not None else list(range(1, len(values) + 1)) for name, values in curves.items()}
    for name, values in curves.items():
        if len(values) != len(places[name]):
            raise ValueError(f"curve {name!r} has {len(values)} values for {len(places[name])} places")
    lasting = {name: finite_length(values) for name, values in curves.items()}
    shown = [value for name, values in curves.items() for value in values[: lasting[name]]] + [level or 0.0] * (
        level is not None
    )
    chart = Chart(800, 390, title)
    across, up = _scales([a for row in places.values() for a in row], shown or [0.0, 1.0], log_x)
    up.ticks_beside(chart, [(tick, f"{tick:g}") for tick in round_ticks(up.low, up.high, 7)], 68, 548, y_label)
    across.ticks_below(chart, _ticks(x, across), up.end, up.start, x_label)
    if level is not None:
        chart.line([(68, up(level)), (548, up(level))], shade=GREY)
    told = []
    for number, (name, values) in enumerate(curves.items()):
        alive = lasting[name]
        end = f"{values[alive - 1]:.3f} at the end"
        if alive < len(values):
            end = f"no number after {places[name][alive - 1] if alive else 0:g}"
        curve = Curve(name, places[name][:alive], values[:alive], COLOURS[number], DASHES[number], note=end)
        curve.draw(chart, across, up)
        curve.entry(chart, 562, 66 + 48 * number)
        if 0 < alive < len(values):
            point(chart, across(places[name][alive - 1]), up(values[alive - 1]), "X", COLOURS[number], 6)
        told.append(f"{name} {end}")
    chart.alt = f"{title}: {y_label} over {x_label}; {'; '.join(told)}."
    return chart


def memory_curves_figure(
    xs: Sequence[int],
    curves: Mapping[str, Sequence[int]],
    xlabel: str,
    title: str,
    capacity: tuple[str, int] | None = None,
) -> Chart:
    """Bytes over a batch or a length, one named curve each; ``capacity`` is a card's name and bytes, a line if near.

    Raises: ValueError: no curve, more than four, or one of another length than ``xs``.
    """
    if not 1 <= len(curves) <= len(SIZES):
        raise ValueError(f"{len(curves)} curves; 1 to {len(SIZES)} can be told apart")
    for name, values in curves.items():
        if len(values) != len(xs):
            raise ValueError(f"{name!r} has {len(values)} values for {len(xs)} places")
    chart, top = Chart(800, 370, title), max(max(values) for values in curves.values())
    if capacity and capacity[1] <= 1.5 * top:  # a card that is near is in view
        top = max(top, capacity[1])
    x = Scale(low=xs[0] - (xs[-1] - xs[0]) * 0.03, high=xs[-1], start=92, end=590)
    y, tick = Scale(low=0, high=top * 1.12, start=310, end=50), round_step(top / 4)
    ticks = range(0, int(y.high) + 1, tick)
    y.ticks_beside(chart, [(size, tick_words(size)) for size in ticks], x.start, x.end)
    x.ticks_below(chart, [(place, f"{place:,}") for place in xs], y.end, y.start, xlabel)
    drawn = [
        Curve(name, xs, values, *look, note=format_bytes(values[-1], 1))
        for (name, values), look in zip(curves.items(), SIZES, strict=False)
    ]
    by_end = sorted(drawn, key=lambda curve: -curve.ys[-1])
    draw_curves(chart, by_end, x, y, 602, 66, 48)
    for curve in drawn:
        for place, size in zip(xs, curve.ys, strict=True):
            tip = f"{curve.name}, {place:,} {xlabel}: {format_bytes(size)}"
            chart.rect(x(place) - 6, y(size) - 6, 12, 12, ("transparent", ""), tip=tip, data={"bytes": size})
            chart.keep_clear(x(place) - 6, y(size) - 6, x(place) + 6, y(size) + 6)
    if capacity:
        card, num_bytes = capacity
        card_line(chart, y, num_bytes, 92, 590, f"{card}: {format_bytes(num_bytes, 1)}")
    told = (f"{name} from {format_bytes(v[0], 1)} to {format_bytes(v[-1], 1)}" for name, v in curves.items())
    chart.alt = f"{title}, for {xlabel} from {xs[0]:,} to {xs[-1]:,}: {'; '.join(told)}."
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


def finite_length(values: Sequence[float]) -> int:
    """How many values stand before the first that is no number."""
    return next((i for i, value in enumerate(values) if not math.isfinite(value)), len(values))


def _scales(places: Sequence[float], values: Sequence[float], log_x: bool) -> tuple[Scale, Scale]:
    """A scale across and one up, with a twentieth of room around the values."""
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or abs(high) * 0.05 or 1.0
    return (
        Scale(low=min(places), high=max(places), start=76, end=542, is_log=log_x),
        Scale(low=low - room, high=high + room, start=322, end=62),
    )


def _ticks(x: Sequence[float] | None, across: Scale) -> list[tuple[float, str]]:
    """Round places; on a logarithmic axis all places if those are powers of two, else powers of ten."""
    if not across.is_log:
        return [(tick, f"{tick:,g}") for tick in round_ticks(across.low, across.high, 7)]
    if x is not None and all(isinstance(n, int) and n.bit_count() == 1 for n in x):  # 2, 4, 8, ...
        return [(n, f"{n:,}") for n in x]
    powers = range(math.ceil(math.log10(across.low)), math.floor(math.log10(across.high)) + 1)
    ticks = [10.0**power for power in powers]
    return [(tick, f"{tick:,g}") for tick in (ticks if len(ticks) > 1 else sorted({*(x or ())}))]
