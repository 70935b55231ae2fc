"""Lines over steps or sizes, up to six of them, each with its colour, its dashes and its name at the end."""

import math
from collections.abc import Mapping, Sequence

from memkit.pictures.axes import COLOURS, DASHES, Curve, Scale, point, round_ticks, ticks_below, ticks_beside
from memkit.pictures.svg import GREY, Chart


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
    places = {
        name: list(x) if x is not None else list(range(1, len(values) + 1)) for name, values in curves.items()
    }
    for name, values in curves.items():
        if len(values) != len(places[name]):
            raise ValueError(f"curve {name!r} has {len(values)} values for {len(places[name])} places")
    lasting = {name: finite_length(values) for name, values in curves.items()}
    shown = [value for name, values in curves.items() for value in values[: lasting[name]]] + [
        level or 0.0
    ] * (level is not None)
    chart = Chart(800, 390, title)
    across, up = _scales([a for row in places.values() for a in row], shown or [0.0, 1.0], log_x)
    ticks_beside(
        chart, up, [(tick, f"{tick:g}") for tick in round_ticks(up.low, up.high, 7)], 68, 548, y_label
    )
    ticks_below(chart, across, _ticks(x, across), up.end, up.start, x_label)
    if level is not None:
        chart.line([(68, up(level)), (548, up(level))], shade=GREY)
    told = []
    for number, (name, values) in enumerate(curves.items()):
        alive = lasting[name]
        end = f"{values[alive - 1]:.3f} at the end"
        if alive < len(values):
            end = f"no number after {places[name][alive - 1] if alive else 0:g}"
        curve = Curve(
            name=name,
            xs=places[name][:alive],
            ys=values[:alive],
            colour=COLOURS[number],
            dashes=DASHES[number],
            note=end,
        )
        curve.draw(chart, across, up)
        curve.entry(chart, 562, 66 + 48 * number)
        if 0 < alive < len(values):
            point(chart, across(places[name][alive - 1]), up(values[alive - 1]), "X", COLOURS[number], 6)
        told.append(f"{name} {end}")
    chart.alt = f"{title}: {y_label} over {x_label}; {'; '.join(told)}."
    return chart


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
