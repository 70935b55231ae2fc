"""The peaks of several choices side by side, part by part: optimizers, or ways to fine-tune."""

from collections.abc import Sequence

from memkit.pictures.over_time import name_parts_in_rows
from memkit.pictures.picture import GREY, INK, Picture
from memkit.pictures.stamped_text import StampedText
from memkit.pictures.timeline import axis_top, memory_axis, short, stack, stacked_patches
from memkit.timeline import Instant
from memkit.units import format_bytes


class ChoicesPicture(Picture):
    """A stacked bar for each choice, its name below and its bytes above; a triangle marks the chosen one."""

    def __init__(self, num_choices: int):
        super().__init__(8.0, 3.9)
        self.num_choices = num_choices
        self.plot = self.add_axes((0.11, 0.21, 0.69, 0.61))
        memory_axis(self.plot)
        self.plot.set_ylabel("peak", fontsize=9.5, color=INK)
        self.plot.set_xlim(-0.65, num_choices - 0.35)
        self.bars = stacked_patches(self.plot)
        for patch in self.bars.values():
            self.move(patch)
        style = {"ha": "center", "fontsize": 8.5, "color": INK, "clip_on": False}
        self.tops = [self._text(x, va="bottom", **style) for x in range(num_choices)]
        below = {**style, "va": "top", "transform": self.plot.get_xaxis_transform()}
        self.feet = [self._text(x, y=-0.02, **below) for x in range(num_choices)]
        self.card = self.move(self.plot.axhline(0, color=INK, linewidth=1.4, linestyle=(0, (5, 3))))
        self.chosen = self.move(self.plot.plot([], [], "v", color=INK, markersize=7, clip_on=False)[0])
        self.title = self.text(0.012, 0.945, "", fontsize=11.5, fontweight="bold", va="center", color=INK)
        self.subtitle = self.text(0.012, 0.885, "", fontsize=9, va="center", color=GREY)
        name_parts_in_rows(self, top_inches=1.0)
        self.top = 0

    def _text(self, x: float, y: float = 0, **style) -> StampedText:
        return self.move(self.plot.add_artist(StampedText(x, y, **style)))

    def redraw(
        self, peaks: Sequence[Instant], names: Sequence[str], chosen: int, capacity_bytes: int, title: str,
        subtitle: str,
    ) -> "ChoicesPicture":  # fmt: skip
        """``names`` may have two lines; ``chosen`` is an index, -1 for none; a card's line at ``capacity_bytes``."""
        top = axis_top(max(peak.total_bytes for peak in peaks), capacity_bytes)
        if top != self.top:
            self.top = top
            self.plot.set_ylim(0, top)
            self.forget_background()
        stack(self.bars, list(peaks), list(range(len(peaks))), 0.72, len(peaks))
        for number, (peak, name) in enumerate(zip(peaks, names, strict=True)):
            self.tops[number].set_position((number, peak.total_bytes + 0.01 * top))
            self.tops[number].set_text(short(peak.total_bytes))
            self.feet[number].set_text(name)
        self.card.set_ydata([capacity_bytes, capacity_bytes])
        self.card.set_visible(capacity_bytes < top)
        if chosen >= 0:
            self.chosen.set_data([chosen], [peaks[chosen].total_bytes + 0.11 * top])
        self.write(self.title, title)
        self.write(self.subtitle, subtitle)
        flat = (name.replace("\n", " ") for name in names)
        told = (f"{name} {format_bytes(peak.total_bytes)}" for peak, name in zip(peaks, flat, strict=True))
        self.alt = f"{title}. {subtitle}. Stacked bars: {'; '.join(told)}."
        return self


def choices_figure(peaks: dict[str, Instant], title: str, subtitle: str = "", capacity_bytes: int = 0) -> Picture:
    """The same once, for a page: peaks by name.

    Raises: ValueError: nothing to draw.
    """
    if not peaks:
        raise ValueError("choices_figure needs at least one peak")
    picture = ChoicesPicture(len(peaks))
    return picture.redraw(list(peaks.values()), list(peaks), -1, capacity_bytes or 1 << 62, title, subtitle)
