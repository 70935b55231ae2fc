"""Two runs on one axis: what each has allocated from its first event to its last."""

from memkit.fitting.growth import TwoRuns, signed
from memkit.pictures.axes import COLOURS, DASHES, Curve, Scale, point
from memkit.pictures.svg import GREY, Chart
from memkit.pictures.timeline import axis_top, memory_axis
from memkit.units import format_bytes

MAX_POINTS = 2_000
NUM_LINES = 5


def two_runs_figure(found: TwoRuns, title: str = "Two runs, one axis") -> Chart:
    """What is allocated over each run's own events, both peaks marked, and the lines that changed most."""
    chart = Chart(800, 470, title)
    x, y = (
        Scale(low=0, high=1, start=92, end=772),
        Scale(low=0, high=axis_top(max(found.peaks)), start=300, end=80),
    )
    memory_axis(chart, y, 92, 772)
    chart.words(432, 316, "each run from its first event to its last", 12, anchor="middle")
    for number, (name, run) in enumerate(zip(found.names, found.runs, strict=True)):
        colour, shape = COLOURS[1 + number], "os"[number]
        xs, ys = outline(run.allocated)
        curve = Curve(
            name=f"{name}: peak {format_bytes(run.peak_allocated_bytes)}",
            xs=xs,
            ys=ys,
            colour=colour,
            dashes=DASHES[number],
            is_stepped=True,
            width=1.6,
        )
        curve.draw(chart, x, y)
        curve.entry(chart, 92 + 350 * number, 52)
        peak = x(run.peak_event / max(len(run.allocated) - 1, 1))
        for place, height in ((peak, y(run.allocated[run.peak_event])), (109 + 350 * number, 52)):
            point(chart, place, height, shape, colour, 5)
    chart.line([(10, 336), (790, 336)], shade=GREY)
    for row, growth in enumerate([line for line in found.lines if line.grown_bytes][:NUM_LINES]):
        part = f", {growth.part.replace('_', ' ')}" if growth.part else ""
        chart.words(150, 358 + 22 * row, signed(growth.grown_bytes), 12.5, anchor="end")
        chart.words(166, 358 + 22 * row, f"{growth.where[:80]}{part}", 12.5, shade=GREY)
    chart.alt = f"{title}: allocated bytes over two runs. {found.words}"
    return chart


def outline(totals: tuple[int, ...]) -> tuple[list[float], list[int]]:
    """A run's totals over 0 to 1; of a long run the highest of each stretch, so that no peak is lost."""
    width = -(-len(totals) // MAX_POINTS)
    last = max(len(totals) - 1, 1)
    starts = range(0, len(totals), width)
    return [start / last for start in starts], [max(totals[start : start + width]) for start in starts]
