"""Strategies on the memory-compute plane, and the peak of each against the sequence length, in one drawing."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from memkit.pictures.picture import GREY, INK, OKABE_ITO, Picture, Ticks, bare, mix
from memkit.pictures.timeline import axis_top, tick_words
from memkit.recomputation.frontier import Point, pareto_front
from memkit.units import format_bytes

MARKERS = "osD^vP*Xh<"
COLOURS = (INK, *OKABE_ITO[:7], GREY, mix(OKABE_ITO[0], 0.5))
OFFSETS = ((0, 14), (0, -14), (15, 0), (-15, 0), (14, 12), (-14, 12), (14, -12), (-14, -12), (0, 26), (0, -26))
"""Where a point's number may stand, in points from it; the first place that is free is taken."""
LENGTHS = (512, 1024, 2048, 4096, 8192)
WIDEST = 40
"""End of the axis of FLOPs run again, in per cent: running all of the forward again is a third of a plain step."""
CLICK_PIXELS = 24  # how far from a point a click still means it


class FrontierPicture(Picture):
    """Left: overhead against peak, the front as a line, the chosen strategy ringed. Right: peak against tokens.

    A strategy has a number, a marker and a colour; the number stands beside its point and in the list of names.
    """

    def __init__(self):
        super().__init__(9.2, 4.3)
        self.title = self.heading(0.955)
        self.plane = self.add_axes((0.075, 0.125, 0.35, 0.76), xlim=(-2.5, WIDEST))
        self.plane.set_xticks(range(0, WIDEST, 10))
        self.memory = Ticks(self, self.plane, "y", 5)
        self.curves = self.add_axes((0.495, 0.125, 0.22, 0.76), xscale="log", yscale="log", xlim=(400, 10_500))
        self.curves.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS])
        self.octaves = Ticks(self, self.curves, "y", 10)
        _tidy(self.plane, "FLOPs run again, % of a plain step", "peak")
        _tidy(self.curves, "tokens in a sequence", "")
        self.plane.yaxis.set_label_coords(-0.17, 0.5)
        self.names = self.surface((0.735, 0.125, 0.26, 0.76))
        dashed = {"color": "#D55E00", "linewidth": 1.4, "linestyle": "--"}
        self.cards = [self.move(axes.axhline(1, **dashed)) for axes in (self.plane, self.curves)]
        self.length = self.move(self.curves.axvline(1, color=GREY, linewidth=0.8, linestyle=":"))
        self.front = self.move(self.plane.plot([], [], drawstyle="steps-post", color=GREY, linewidth=1.2)[0])
        look = [{"color": colour, "marker": marker} for colour, marker in zip(COLOURS, MARKERS, strict=True)]
        self.lines = [self.move(self.curves.plot([], [], markersize=4, **each)[0]) for each in look]
        dot = {"markersize": 8, "markeredgecolor": INK}
        self.dots = [self.move(self.plane.plot([], [], **dot, **each)[0]) for each in look]
        ring = {"markersize": 17, "markerfacecolor": "none", "markeredgecolor": INK}
        self.ring = self.move(self.plane.plot([], [], "o", **ring)[0])
        self.numbers = [self.stamp(0, 0, fontsize=9, ha="center", va="center") for _ in MARKERS]
        self.name_rows = [self._name_row(number) for number in range(len(MARKERS))]

    def redraw(
        self,
        found: Sequence[Point],
        chosen: int,
        curves: Sequence[Sequence[tuple[int, int]]],
        *,
        title: str,
        room_bytes: int | None = None,
        seq_len: int | None = None,
    ) -> "FrontierPicture":
        """Draw the points; ``chosen`` is the index of one. ``curves``: for each point (sequence, peak in bytes)."""
        self.title.set_text(title)
        for line in self.cards:
            line.set_visible(bool(room_bytes))
            line.set_ydata([room_bytes or 1] * 2)
        self._draw_plane(found, chosen, room_bytes)
        self._draw_curves(curves, chosen, seq_len)
        self._write_names(found, chosen, room_bytes)
        point = found[chosen]
        self.alt = (
            f"{title}: {len(found)} strategies by FLOPs run again and peak memory. Chosen: {point.strategy.name}, "
            f"{point.overhead:.1%} more FLOPs, peak {format_bytes(point.peak_bytes)}."
        )
        return self

    def at(self, x: float, y: float) -> int | None:
        """Index of the point that a click means, ``None`` for a click beside all of them.

        ``x`` and ``y`` are shares of the picture's width and height, from its upper left corner.
        """
        width, height = self.bbox.size
        pixels = self.plane.transData.transform(self.places)
        distances = [math.dist((x * width, (1 - y) * height), pixel) for pixel in pixels]
        nearest = min(range(len(distances)), key=distances.__getitem__)
        return nearest if distances[nearest] <= CLICK_PIXELS else None

    def _draw_plane(self, found: Sequence[Point], chosen: int, room_bytes: int | None) -> None:
        self.places = [(100 * point.overhead, point.peak_bytes) for point in found]
        front = pareto_front(found)
        self.front.set_data([100 * point.overhead for point in front], [point.peak_bytes for point in front])
        top = axis_top(max(point.peak_bytes for point in found), room_bytes)
        self.plane.set_ylim(0, top)
        self.memory.show((top * quarter // 4, tick_words(top * quarter // 4)) for quarter in range(5))
        for number, dot in enumerate(self.dots):
            dot.set_data(*([x] for x in self.places[number])) if number < len(found) else dot.set_data([], [])
        self.ring.set_data(*([x] for x in self.places[chosen]))
        self._number_points()

    def _number_points(self) -> None:
        """Each point's number where it covers no point, no other number, no tick's words and not the front."""
        points = [tuple(pixel) for pixel in self.plane.transData.transform(self.places)]
        ticks = [tuple(self.plane.transAxes.transform((-0.03, quarter / 4))) for quarter in range(5)]
        taken, scale = points + ticks + self._along_the_front(), self.dpi / 72
        for number, (x, y) in enumerate(points):
            spots = [(x + dx * scale, y + dy * scale) for dx, dy in OFFSETS]
            others = [spot for spot in taken if spot != (x, y)]
            free = [min((math.dist(spot, other) for other in others), default=math.inf) for spot in spots]
            best = next((i for i, distance in enumerate(free) if distance > 17.5), free.index(max(free)))
            taken.append(spots[best])
            self.numbers[number].set_position(self.transFigure.inverted().transform(spots[best]))
        for number, text in enumerate(self.numbers):
            text.set_text(str(number + 1) if number < len(points) else "")

    def _along_the_front(self) -> list[tuple[float, float]]:
        """Places on the front's steps, in pixels, so near that no number fits between them."""
        corners = self.plane.transData.transform(self.front.get_xydata())
        turns = [turn for (x, y), (new_x, new_y) in pairwise(corners) for turn in ((x, y), (new_x, y), (new_x, new_y))]
        return [tuple(place) for ends in pairwise(turns) for place in np.linspace(*ends, 9)]

    def _draw_curves(self, curves, chosen: int, seq_len: int | None) -> None:
        peaks = [peak for curve in curves for _, peak in curve]
        low, high = min(peaks).bit_length() - 1, max(peaks).bit_length()
        self.curves.set_ylim(2**low, 2**high)
        self.octaves.show((2**power, tick_words(2**power)) for power in range(low, high + 1))
        for number, line in enumerate(self.lines):
            curve = curves[number] if number < len(curves) else ()
            line.set_data([length for length, _ in curve], [peak for _, peak in curve])
            line.set_linewidth(2.4 if number == chosen else 0.9)
        self.length.set_visible(bool(seq_len))
        self.length.set_xdata([seq_len or 1] * 2)

    def _name_row(self, number: int) -> tuple:
        """A strategy's mark, name and standing in the list; the two texts move."""
        y = 0.965 - 0.094 * number
        mark = self.names.plot(
            [0.03], [y - 0.005], MARKERS[number], color=COLOURS[number], markeredgecolor=INK, markersize=7
        )[0]
        texts = [
            self.stamp(x, y - down, self.names, fontsize=size, va="center", color=colour)
            for x, down, size, colour in ((0.1, 0, 8.5, INK), (0.155, 0.038, 7.5, GREY))
        ]
        return mark, *texts

    def _write_names(self, found: Sequence[Point], chosen: int, room_bytes: int | None) -> None:
        front = pareto_front(found)
        for number, (mark, name, standing) in enumerate(self.name_rows):
            point = found[number] if number < len(found) else None
            if point is None:
                name.set_text("")
                standing.set_text("")
                continue
            name.set_text(f"{number + 1}  {point.strategy.name.replace('checkpoint_', '')}")
            name.set_fontweight("bold" if number == chosen else "normal")
            words = ["on the front"] if point in front else []
            if room_bytes:
                words.append("fits" if point.peak_bytes <= room_bytes else "too large")
            standing.set_text(", ".join(words))


def _tidy(axes, x_label: str, y_label: str) -> None:
    bare(axes, x_label, y_label, labelsize=8.5, length=0)
    axes.minorticks_off()
