"""Peaks side by side, part by part, and a card's line: optimizers, ways to fine-tune, cuts of a batch, ranks."""

from collections.abc import Sequence

from memkit.pictures.over_time import name_parts_in_rows
from memkit.pictures.picture import GREY, INK, Picture
from memkit.pictures.timeline import MemoryAxis, axis_top, short, stack, stacked_patches
from memkit.timeline import Instant
from memkit.units import format_bytes


class PeaksPicture(Picture):
    """A stacked bar for each of ``most`` peaks, bytes above it, a name below it; a triangle marks the chosen one.

    With ``foot``, which says what the texts are, there is a second line of text above each bar.
    """

    def __init__(self, most: int, foot: str = ""):
        super().__init__(8.0, 3.9)
        self.foot = foot
        self.plot = self.add_axes((0.11, 0.2, 0.69, 0.62) if foot else (0.11, 0.21, 0.69, 0.61))
        self.memory = MemoryAxis(self, self.plot)
        self.plot.set_ylabel("peak", fontsize=9.5, color=INK)
        self.bars = stacked_patches(self.plot)
        for patch in self.bars.values():
            self.move(patch)
        style = {"axes": self.plot, "ha": "center", "fontsize": 8.5}
        self.card = self.move(self.plot.axhline(0, color=INK, linewidth=1.4, linestyle=(0, (5, 3))))
        self.tops = [self.stamp(0, 0, va="bottom", has_box=True, **style) for _ in range(most)]
        below = {**style, "va": "top", "transform": self.plot.get_xaxis_transform()}
        self.feet = [self.stamp(x, -0.02, **below) for x in range(most)]
        self.chosen = self.move(self.plot.plot([], [], "v", color=INK, markersize=7, clip_on=False)[0])
        self.title = self.heading(0.945)
        self.subtitle = self.stamp(0.012, 0.885, fontsize=9, va="center", color=GREY)
        self.text(0.11, 0.035, foot, fontsize=9, color=GREY)
        name_parts_in_rows(self, top_inches=1.0)

    def redraw(
        self, peaks: Sequence[Instant], below: Sequence[str], chosen: int, capacity_bytes: int, title: str,
        subtitle: str, above: Sequence[str] = (),
    ) -> "PeaksPicture":  # fmt: skip
        """``below`` may have two lines each; ``chosen`` is an index, -1 for none; ``capacity_bytes`` draws a line."""
        top, told = axis_top(max(peak.total_bytes for peak in peaks), capacity_bytes), []
        self.memory.end_at(top)
        self.plot.set_xlim(-0.65, len(peaks) - 0.35)
        stack(self.bars, list(peaks), list(range(len(peaks))), 0.72, len(peaks))
        for text in (*self.tops[len(peaks) :], *self.feet[len(peaks) :]):
            text.set_text("")
        for number, (peak, name) in enumerate(zip(peaks, below, strict=True)):
            lines = [short(peak.total_bytes), *above[number : number + 1]]
            self.tops[number].set(position=(number, peak.total_bytes + 0.01 * top), text="\n".join(lines))
            self.feet[number].set_text(name)
            flat, size = name.replace("\n", " "), format_bytes(peak.total_bytes)
            mark = ", chosen" if number == chosen else ""
            told.append(f"{flat}{mark}: {size}, {above[number]}" if above else f"{flat} {size}")
        self.card.set_ydata([capacity_bytes, capacity_bytes])
        self.card.set_visible(capacity_bytes < top)
        if chosen >= 0:
            self.chosen.set_data([chosen], [peaks[chosen].total_bytes + (0.17 if above else 0.11) * top])
        self.title.set_text(title)
        self.subtitle.set_text(subtitle)
        self.alt = f"{title}. {subtitle}. {self.foot or 'Stacked bars'}: {'; '.join(told)}."
        return self


def choices_figure(peaks: dict[str, Instant], title: str, subtitle: str = "", capacity_bytes: int = 0) -> Picture:
    """The same once, for a page: peaks by name.

    Raises: ValueError: nothing to draw.
    """
    if not peaks:
        raise ValueError("choices_figure needs at least one peak")
    picture = PeaksPicture(len(peaks))
    return picture.redraw(list(peaks.values()), list(peaks), -1, capacity_bytes or 1 << 62, title, subtitle)
