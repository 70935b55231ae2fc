"""Strategies on the memory-compute plane, and the peak of each against the sequence length, in one drawing."""

import math
from collections.abc import Sequence

from memkit.pictures.picture import FAINT, GREY, INK, OKABE_ITO, Picture
from memkit.recomputation.frontier import Point, pareto_front
from memkit.units import format_bytes

MARKERS = "osD^vP*Xh<"
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
        for axes in (self.plane, self.curves, self.names):
            axes.clear()
        self.names.set(xlim=(0, 1), ylim=(0, 1))
        self.names.axis("off")
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
            colour = OKABE_ITO[number % len(OKABE_ITO)]
            plane.plot([x], [y], MARKERS[number], color=colour, markersize=8, markeredgecolor=INK, zorder=3)
            offset = (0, -15) if number % 2 else (0, 8)
            plane.annotate(
                str(number + 1), (x, y), offset, textcoords="offset points", fontsize=9, color=INK, ha="center"
            )
            if number == chosen:
                plane.plot([x], [y], "o", markersize=17, markerfacecolor="none", markeredgecolor=INK, zorder=4)
        top = max(gib)
        if room_bytes:
            _card_line(plane, room_bytes)
            top = max(top, room_bytes / 2**30) if room_bytes / 2**30 < 2.5 * top else top
        widest = max(100 * point.overhead for point in found)
        plane.set(xlim=(-0.07 * widest - 0.5, widest * 1.1 + 1), ylim=(0, top * 1.1))
        _tidy(plane, "FLOPs run again, % of a plain step", "peak, GiB")

    def _draw_curves(self, curves, chosen: int, room_bytes: int | None, seq_len: int | None) -> None:
        axes = self.curves
        for number, curve in enumerate(curves):
            x, y = [length for length, _ in curve], [peak / 2**30 for _, peak in curve]
            width = 2.4 if number == chosen else 0.9
            axes.plot(
                x, y, color=OKABE_ITO[number % len(OKABE_ITO)], linewidth=width, marker=MARKERS[number], markersize=4,
                zorder=3 if number == chosen else 2,
            )  # fmt: skip
        if room_bytes:
            _card_line(axes, room_bytes)
        if seq_len:
            axes.axvline(seq_len, color=GREY, linewidth=0.8, linestyle=":")
        lengths = [length for length, _ in curves[0]]
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        ticks = lengths[:: max(1, len(lengths) // 3)]
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        _tidy(axes, "tokens in a sequence", "")

    def _write_names(self, found: Sequence[Point], chosen: int, room_bytes: int | None) -> None:
        front = pareto_front(found)
        for number, point in enumerate(found):
            y = 0.965 - 0.094 * number
            colour = OKABE_ITO[number % len(OKABE_ITO)]
            self.names.plot([0.03], [y - 0.005], MARKERS[number], color=colour, markeredgecolor=INK, markersize=7)
            weight = "bold" if number == chosen else "normal"
            name = f"{number + 1}  {point.strategy.name.replace('checkpoint_', '')}"
            self.names.text(0.1, y, name, fontsize=8.5, va="center", color=INK, weight=weight)
            marks = ["on the front"] if point in front else []
            if room_bytes:
                marks.append("fits" if point.peak_bytes <= room_bytes else "too large")
            self.names.text(0.155, y - 0.038, ", ".join(marks), fontsize=7.5, va="center", color=GREY)


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
