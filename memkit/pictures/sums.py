"""A running sum in a narrow format beside the exact one: nearest, stochastic, Kahan, and a float32 accumulator."""

import numpy as np

from memkit.formats.reading import number_text
from memkit.formats.records import get_format
from memkit.formats.rounding import round_to
from memkit.formats.running_sums import num_moving_terms, sums_by_method
from memkit.pictures.axes import COLOURS, DASHES, Curve, Scale, draw_curves, round_ticks
from memkit.pictures.svg import Chart

LOOKS = {
    "exact": (COLOURS[0], DASHES[3], ""),
    "nearest": (COLOURS[1], "", "o"),
    "stochastic": (COLOURS[2], "", "^"),
    "kahan": (COLOURS[3], DASHES[1], "s"),
    "float32 accumulator": (COLOURS[4], DASHES[2], "D"),
}
"""Colour, dashes and mark of each way to add."""
MAX_POINTS = 300


def running_totals(term: float, num_terms: int, fmt: str, seed: int = 0) -> dict[str, np.ndarray]:
    """The total after each addition of ``term`` in ``fmt``: exact, and in each way to add.

    Raises: ValueError: fewer than one addition.
    """
    fmt = get_format(fmt)
    if num_terms < 1:
        raise ValueError(f"num_terms={num_terms} leaves nothing to draw; allowed are 1 and more")
    rounded = float(round_to(float(term), fmt, overflow="saturate"))
    return {"exact": rounded * np.arange(1, num_terms + 1)} | sums_by_method(term, num_terms, fmt, seed)


def running_sum_figure(
    term: float, num_terms: int, fmt: str, seed: int = 0, totals: dict[str, np.ndarray] | None = None
) -> Chart:
    """A sum of equal terms in ``fmt``, a line a way, beside the exact one; ``totals`` are those of ``running_totals``.

    ``seed`` starts the chances of the stochastic sum.
    """
    totals = totals or running_totals(term, num_terms, fmt, seed)
    kept = np.unique(np.linspace(0, num_terms - 1, min(num_terms, MAX_POINTS)).astype(int))
    curves, ends = [], []
    for name, total in totals.items():
        moving = num_moving_terms(total)
        stops = f", stuck after {moving}" if name == "nearest" and moving < num_terms else ""  # the same sum for ever
        end = number_text(float(total[-1])) + stops
        ends.append(f"{name} {end}")
        marks = {"marks_every": max(1, kept.size // 6), "marks_from": len(curves) * kept.size // 30}
        curves.append(Curve(name, (kept + 1).tolist(), total[kept].tolist(), *LOOKS[name], note=end, **marks))
    term_text = number_text(float(totals["exact"][0]))
    chart = Chart(800, 400, f"{num_terms} × {term_text} in {get_format(fmt).name}")
    low = min(0.0, *(float(total.min()) for total in totals.values()))
    high = max(0.0, *(float(total.max()) for total in totals.values()))
    room = 0.05 * (high - low) or 1.0
    x = Scale(low=0, high=num_terms * 1.03, start=78, end=528)
    y = Scale(low=low - room * (low < 0), high=high + room, start=340, end=60)
    y.ticks_beside(chart, [(t, number_text(t, 4)) for t in round_ticks(low, high + room)], 78, 528, "total")
    whole = [tick for tick in round_ticks(0, num_terms) if tick == int(tick)]
    x.ticks_below(chart, [(t, f"{t:,.0f}") for t in whole], 60, 340, "additions")
    draw_curves(chart, curves, x, y, 548, 82, 58)
    chart.alt = f"The sum of {num_terms} terms of {term_text} in {get_format(fmt).name}: {'; '.join(ends)}."
    return chart
