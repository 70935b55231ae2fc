"""Two runs on one axis: what each has allocated from its first event to its last."""

from matplotlib.lines import Line2D

from memkit.fitting.growth import TwoRuns, signed
from memkit.pictures.picture import FAINT, GREY, INK, OKABE_ITO, Picture
from memkit.pictures.timeline import axis_top, memory_axis
from memkit.units import format_bytes

STYLES = ((OKABE_ITO[0], "-", "o"), (OKABE_ITO[1], (0, (5, 2)), "s"))
"""Colour, dashes and mark of each run."""
MAX_POINTS = 2_000
NUM_LINES = 5


def two_runs_figure(found: TwoRuns, title: str = "Two runs, one axis") -> Picture:
    """What is allocated over each run's own events, both peaks marked, and the lines that changed most."""
    picture = Picture(8.0, 4.6)
    plot = picture.add_axes((0.11, 0.36, 0.855, 0.5))
    memory_axis(plot)
    plot.set_ylim(0, axis_top(max(found.peaks)))
    plot.set_xlim(0, 1)
    plot.set_xlabel("each run from its first event to its last", fontsize=9.5, color=INK)
    picture.text(0.012, 0.945, title, fontsize=11.5, fontweight="bold", va="center", color=INK)
    for number, (name, run) in enumerate(zip(found.names, found.runs, strict=True)):
        colour, dashes, mark = STYLES[number]
        x, y = outline(run.allocated)
        plot.plot(x, y, color=colour, linestyle=dashes, linewidth=1.6, drawstyle="steps-post")
        peak = run.peak_event / max(len(run.allocated) - 1, 1)
        plot.plot([peak], [run.allocated[run.peak_event]], mark, color=colour, markersize=7, clip_on=False)
        left = 0.11 + 0.44 * number
        line = picture.surface((left, 0.885, 0.05, 0.03))
        line.plot([0, 1], [0.5, 0.5], color=colour, linestyle=dashes, linewidth=1.8)
        line.plot([0.5], [0.5], mark, color=colour, markersize=6)
        words = f"{name}: peak {format_bytes(run.peak_allocated_bytes)}"
        picture.text(left + 0.06, 0.9, words, fontsize=9.5, va="center", color=INK)
    for row, growth in enumerate([line for line in found.lines if line.grown_bytes][:NUM_LINES]):
        y = 0.24 - 0.05 * row
        picture.text(0.19, y, signed(growth.grown_bytes), fontsize=9.5, ha="right", va="center", color=INK)
        part = f", {growth.part.replace('_', ' ')}" if growth.part else ""
        picture.text(0.21, y, f"{growth.where[:80]}{part}", fontsize=9.5, va="center", color=GREY)
    rule = {"color": FAINT, "linewidth": 0.8, "transform": picture.transFigure}
    picture.add_artist(Line2D([0.012, 0.988], [0.285, 0.285], **rule))
    picture.alt = f"{title}: allocated bytes over two runs. {found.words}"
    return picture


def outline(totals: tuple[int, ...]) -> tuple[list[float], list[int]]:
    """A run's totals over 0 to 1; of a long run the highest of each stretch, so that no peak is lost."""
    width = -(-len(totals) // MAX_POINTS)
    last = max(len(totals) - 1, 1)
    starts = range(0, len(totals), width)
    return [start / last for start in starts], [max(totals[start : start + width]) for start in starts]
