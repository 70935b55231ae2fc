"""Strategies on the memory-compute plane, and the peak of each against the sequence length, in one drawing."""

import math
from collections.abc import Sequence

from memkit.pictures.picture import FAINT, GREY, INK, OKABE_ITO, Picture, mix
from memkit.pictures.stamped_text import StampedText
from memkit.recomputation.frontier import Point, pareto_front
from memkit.units import format_bytes

MARKERS = "osD^vP*Xh<"
COLOURS = (INK, *OKABE_ITO[:7], GREY, mix(OKABE_ITO[0], 0.5))
OFFSETS = ((0, 12), (0, -12), (14, 0), (-14, 0), (13, 11), (-13, 11), (13, -11), (-13, -11), (0, 25), (0, -25))
"""Where a point's number may stand, in points from it; the first place that is free is taken."""
CLICK_PIXELS = 24  # how far from a point a click still means it


class FrontierPicture(Picture):
    """Left: overhead against peak, the front as a line, the chosen strategy ringed. Right: peak against tokens.

    A strategy has a number, a marker and a colour; the number stands beside its point and in the list of names.
    """

    def __init__(self):
        super().__init__(9.2, 4.3)
        self.plane = self.add_axes((0.065, 0.125, 0.36, 0.76))
        self.curves = self.add_axes((0.48, 0.125, 0.23, 0.76))
        self.names = self.add_axes((0.735, 0.125, 0.26, 0.76), xlim=(0, 1), ylim=(0, 1))
        self.names.axis("off")
        self.numbers = [self._number() for _ in MARKERS]
        self.name_rows = [self._name_row(number) for number in range(len(MARKERS))]
        self.drawn_curves = None
        self.title = self.text(0.012, 0.955, "", fontsize=11.5, fontweight="bold", va="center", color=INK)

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
        self.plane.clear()
        self.title.set_text(title)
        self._draw_plane(found, chosen, room_bytes)
        self._draw_curves(curves, chosen, room_bytes, seq_len)
        self._write_names(found, chosen, room_bytes)
        self.forget_background()
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
        plane, front = self.plane, pareto_front(found)
        self.places = [(100 * point.overhead, point.peak_bytes / 2**30) for point in found]
        gib = [point.peak_bytes / 2**30 for point in found]
        plane.step(
            [100 * point.overhead for point in front], [point.peak_bytes / 2**30 for point in front], where="post",
            color=GREY, linewidth=1.2, zorder=1,
        )  # fmt: skip
        for number, (point, y) in enumerate(zip(found, gib, strict=True)):
            x = 100 * point.overhead
            colour = COLOURS[number]
            plane.plot([x], [y], MARKERS[number], color=colour, markersize=8, markeredgecolor=INK, zorder=3)
            if number == chosen:
                plane.plot([x], [y], "o", markersize=17, markerfacecolor="none", markeredgecolor=INK, zorder=4)
        top = max(gib)
        if room_bytes:
            _card_line(plane, room_bytes)
            top = max(top, room_bytes / 2**30) if room_bytes / 2**30 < 2.5 * top else top
        widest = max(100 * point.overhead for point in found)
        plane.set(xlim=(-0.07 * widest - 0.5, widest * 1.1 + 1), ylim=(0, top * 1.1))
        _tidy(plane, "FLOPs run again, % of a plain step", "peak, GiB")
        self._number_points()

    def _number_points(self) -> None:
        """Each point's number where it covers neither a point nor another number."""
        points = [tuple(pixel) for pixel in self.plane.transData.transform(self.places)]
        taken, scale = list(points), self.dpi / 72
        for number, (x, y) in enumerate(points):
            spots = [(x + dx * scale, y + dy * scale) for dx, dy in OFFSETS]
            others = [spot for spot in taken if spot != (x, y)]
            free = [min((math.dist(spot, other) for other in others), default=math.inf) for spot in spots]
            best = next((i for i, distance in enumerate(free) if distance > 15), free.index(max(free)))
            taken.append(spots[best])
            self.numbers[number].set_position(self.transFigure.inverted().transform(spots[best]))
        for number, text in enumerate(self.numbers):
            text.set_text(str(number + 1) if number < len(points) else "")

    def _number(self) -> StampedText:
        text = StampedText(0, 0, "", transform=self.transFigure, fontsize=9, color=INK, ha="center", va="center")
        text.set_figure(self)
        return self.move(text)

    def _draw_curves(self, curves, chosen: int, room_bytes: int | None, seq_len: int | None) -> None:
        """The peaks against the length: axes and ticks stay while model, batch and card do."""
        axes, drawn = self.curves, (tuple(map(tuple, curves)), room_bytes)
        if drawn != self.drawn_curves:
            axes.clear()
            self.curve_lines = [self._curve(number, curve) for number, curve in enumerate(curves)]
            self.length_line = axes.axvline(curves[0][0][0], color=GREY, linewidth=0.8, linestyle=":")
            if room_bytes:
                _card_line(axes, room_bytes)
            lengths = [length for length, _ in curves[0]]
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            ticks = lengths[:: max(1, len(lengths) // 3)]
            axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            axes.minorticks_off()
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            _tidy(axes, "tokens in a sequence", "")
            self.drawn_curves = drawn
        for number, line in enumerate(self.curve_lines):
            line.set(linewidth=2.4 if number == chosen else 0.9, zorder=3 if number == chosen else 2)
        self.length_line.set_visible(bool(seq_len))
        if seq_len:
            self.length_line.set_xdata([seq_len, seq_len])

    def _curve(self, number: int, curve: Sequence[tuple[int, int]]):
        x, y = [length for length, _ in curve], [peak / 2**30 for _, peak in curve]
        return self.curves.plot(x, y, color=COLOURS[number], marker=MARKERS[number], markersize=4)[0]

    def _name_row(self, number: int) -> tuple:
        """A strategy's mark, name and standing in the list; the two texts move."""
        y = 0.965 - 0.094 * number
        mark = self.names.plot(
            [0.03], [y - 0.005], MARKERS[number], color=COLOURS[number], markeredgecolor=INK, markersize=7
        )[0]
        texts = [
            self.move(self.names.add_artist(StampedText(x, y - down, "", fontsize=size, va="center", color=colour)))
            for x, down, size, colour in ((0.1, 0, 8.5, INK), (0.155, 0.038, 7.5, GREY))
        ]
        return mark, *texts

    def _write_names(self, found: Sequence[Point], chosen: int, room_bytes: int | None) -> None:
        front = pareto_front(found)
        for number, (mark, name, standing) in enumerate(self.name_rows):
            point = found[number] if number < len(found) else None
            mark.set_visible(point is not None)
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


def _card_line(axes, room_bytes: int) -> None:
    axes.axhline(room_bytes / 2**30, color="#D55E00", linewidth=1.4, linestyle="--", zorder=1)


def _tidy(axes, x_label: str, y_label: str) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, colors=GREY, length=0)
    axes.set_xlabel(x_label, fontsize=9, color=INK)
    axes.set_ylabel(y_label, fontsize=9, color=INK)
