"""The peaks of several choices side by side, part by part: optimizers, or ways to fine-tune."""

from collections.abc import Sequence

from memkit.pictures.over_time import name_parts_in_rows
from memkit.pictures.picture import GREY, INK, Picture
from memkit.pictures.timeline import MemoryAxis, axis_top, short, stack, stacked_patches
from memkit.timeline import Instant
from memkit.units import format_bytes


class ChoicesPicture(Picture):
    """A stacked bar for each choice, its name below and its bytes above; a triangle marks the chosen one."""

    def __init__(self, num_choices: int):
        super().__init__(8.0, 3.9)
        self.num_choices = num_choices
        self.plot = self.add_axes((0.11, 0.21, 0.69, 0.61))
        self.memory = MemoryAxis(self, self.plot)
        self.plot.set_ylabel("peak", fontsize=9.5, color=INK)
        self.plot.set_xlim(-0.65, num_choices - 0.35)
        self.bars = stacked_patches(self.plot)
        for patch in self.bars.values():
            self.move(patch)
        style = {"axes": self.plot, "ha": "center", "fontsize": 8.5}
        self.tops = [self.stamp(x, 0, va="bottom", has_box=True, **style) for x in range(num_choices)]
        below = {**style, "va": "top", "transform": self.plot.get_xaxis_transform()}
        self.feet = [self.stamp(x, -0.02, **below) for x in range(num_choices)]
        self.card = self.move(self.plot.axhline(0, color=INK, linewidth=1.4, linestyle=(0, (5, 3))))
        self.chosen = self.move(self.plot.plot([], [], "v", color=INK, markersize=7, clip_on=False)[0])
        self.title = self.heading(0.945)
        self.subtitle = self.stamp(0.012, 0.885, fontsize=9, va="center", color=GREY)
        name_parts_in_rows(self, top_inches=1.0)

    def redraw(
        self, peaks: Sequence[Instant], names: Sequence[str], chosen: int, capacity_bytes: int, title: str,
        subtitle: str,
    ) -> "ChoicesPicture":  # fmt: skip
        """``names`` may have two lines; ``chosen`` is an index, -1 for none; a card's line at ``capacity_bytes``."""
        top = axis_top(max(peak.total_bytes for peak in peaks), capacity_bytes)
        self.memory.end_at(top)
        stack(self.bars, list(peaks), list(range(len(peaks))), 0.72, len(peaks))
        for number, (peak, name) in enumerate(zip(peaks, names, strict=True)):
            self.tops[number].set_position((number, peak.total_bytes + 0.01 * top))
            self.tops[number].set_text(short(peak.total_bytes))
            self.feet[number].set_text(name)
        self.card.set_ydata([capacity_bytes, capacity_bytes])
        self.card.set_visible(capacity_bytes < top)
        if chosen >= 0:
            self.chosen.set_data([chosen], [peaks[chosen].total_bytes + 0.11 * top])
        self.title.set_text(title)
        self.subtitle.set_text(subtitle)
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
