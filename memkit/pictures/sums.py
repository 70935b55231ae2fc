"""The rounding lab's picture (chapter 02): a running sum in a narrow format beside the exact one, in four ways."""

import numpy as np

from memkit.formats.reading import number_text
from memkit.formats.records import get_format
from memkit.formats.rounding import round_to
from memkit.formats.running_sums import num_moving_terms, sums_by_method
from memkit.pictures.axes import round_ticks
from memkit.pictures.lines import LINE_LOOKS, Line, lines_figure
from memkit.pictures.svg import Chart

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


def running_sum_figure(totals: dict[str, np.ndarray], fmt: str) -> Chart:
    """The totals of ``running_totals`` as lines; a sum that has stuck says after how many additions."""
    num_terms = totals["exact"].size
    kept = np.unique(np.linspace(0, num_terms - 1, min(num_terms, MAX_POINTS)).astype(int))
    lines, ends = [], []
    for (name, total), look in zip(totals.items(), LINE_LOOKS, strict=True):
        moving = num_moving_terms(total)
        stops = f", stuck after {moving}" if name == "nearest" and moving < num_terms else ""  # the same sum for ever
        end = number_text(float(total[-1])) + stops
        ends.append(f"{name} {end}")
        lines.append(Line(name=name, xs=(kept + 1).tolist(), ys=total[kept].tolist(), look=look, note=end))
    low = min(0.0, *(float(total.min()) for total in totals.values()))
    high = max(0.0, *(float(total.max()) for total in totals.values()))
    room = 0.05 * (high - low) or 1.0
    up = [(tick, number_text(tick, 4)) for tick in round_ticks(low, high + room)]
    across = [(tick, f"{tick:,.0f}") for tick in round_ticks(0, num_terms) if tick == int(tick)]
    term = number_text(float(totals["exact"][0]))
    name = get_format(fmt).name
    ends_of_axis = (low - room * (low < 0), high + room)
    title = f"{num_terms} × {term} in {name}"
    chart, *_ = lines_figure(title, lines, across, up, ends_of_axis, "additions", "total")
    chart.alt = f"The sum of {num_terms} terms of {term} in {name}: {'; '.join(ends)}."
    return chart
