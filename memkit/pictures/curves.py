"""Lines over steps or sizes, up to six of them, each with its colour, its dashes and its name at the end."""

import math
from collections.abc import Mapping, Sequence

from memkit.pictures.picture import GREY, INK, OKABE_ITO, Picture, bare

DASHES = ("-", (0, (5, 2)), "-.", (0, (1, 1.5)), (0, (8, 2)), (0, (3, 1, 1, 1)))
COLOURS = (INK, OKABE_ITO[1], OKABE_ITO[0], OKABE_ITO[3], OKABE_ITO[4], OKABE_ITO[2])


def curves_figure(
    curves: Mapping[str, Sequence[float]],
    title: str,
    *,
    x: Sequence[float] | None = None,
    x_label: str = "step",
    y_label: str = "loss",
    log_x: bool = False,
    level: float | None = None,
) -> Picture:
    """Named values over ``x`` (their numbers from 1 on, if none is given); a line ends where it is not finite.

    ``level`` draws a faint line across. Raises: ValueError: no curve, more than six, or one of another length
    than ``x``.
    """
    if not 1 <= len(curves) <= len(COLOURS):
        raise ValueError(f"{len(curves)} curves; 1 to {len(COLOURS)} can be told apart")
    picture = Picture(8.0, 3.9)
    plot = picture.add_axes((0.085, 0.145, 0.6, 0.7))
    bare(plot, x_label, y_label)
    if log_x:
        plot.set_xscale("log", base=10)
    if log_x and x is not None and all(isinstance(n, int) and n.bit_count() == 1 for n in x):  # 2, 4, 8, ...
        plot.set_xticks(list(x), [f"{n:,}" for n in x], minor=False)
        plot.set_xticks([], minor=True)
    if level is not None:
        plot.axhline(level, color=GREY, linewidth=1)
    picture.text(0.012, 0.94, title, fontsize=11.5, fontweight="bold", va="center", color=INK)
    told = []
    for row, (name, values) in enumerate(curves.items()):
        told.append(f"{name} {_draw(picture, plot, row, name, values, x)}")
    picture.alt = f"{title}: {y_label} over {x_label}; {'; '.join(told)}."
    return picture


def _draw(picture: Picture, plot, row: int, name: str, values: Sequence[float], x: Sequence[float] | None) -> str:
    """One line, its entry beside the axes, and its end in words."""
    places = list(x) if x is not None else list(range(1, len(values) + 1))
    if len(places) != len(values):
        raise ValueError(f"curve {name!r} has {len(values)} values for {len(places)} places")
    alive = next((i for i, value in enumerate(values) if not math.isfinite(value)), len(values))
    style = {"color": COLOURS[row], "linestyle": DASHES[row], "linewidth": 1.9}
    plot.plot(places[:alive], values[:alive], **style)
    end = f"{values[alive - 1]:.3f} at the end"
    if alive < len(values):
        end = f"no number after {places[alive - 1] if alive else 0:g}"
        plot.plot(places[alive - 1 : alive], values[alive - 1 : alive], "X", color=COLOURS[row], markersize=9)
    side = picture.surface((0.705, 0.72 - 0.125 * row, 0.295, 0.11))
    side.plot([0, 0.14], [0.62, 0.62], **style)
    side.text(0.18, 0.62, name, fontsize=9.5, va="center", color=INK)
    side.text(0.18, 0.12, end, fontsize=9, va="center", color=GREY)
    return end
