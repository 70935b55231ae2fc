"""Bars of peaks, part by part, and a card's line: a batch cut in several ways, or a run on 1, 2, 4, ... ranks."""

from collections.abc import Sequence

from memkit.pictures.over_time import name_parts_in_rows
from memkit.pictures.picture import GREY, INK, Picture
from memkit.pictures.timeline import MemoryAxis, axis_top, short, stack, stacked_patches
from memkit.timeline import Instant
from memkit.units import format_bytes

MAX_BARS = 12


PLAN_FOOT = "sequences in a micro-batch × micro-batches in a step; above the bars: peak, and time ÷ the shortest"


class PeaksPicture(Picture):
    """A bar for each peak, with two lines of text above it and below it; ``foot`` says what they are."""

    def __init__(self, foot: str):
        super().__init__(8.0, 3.9)
        self.foot = foot
        self.plot = self.add_axes((0.11, 0.2, 0.69, 0.62))
        self.memory = MemoryAxis(self, self.plot)
        self.plot.set_ylabel("peak", fontsize=9.5, color=INK)
        self.bars = stacked_patches(self.plot)
        for patch in self.bars.values():
            self.move(patch)
        style = {"axes": self.plot, "ha": "center", "fontsize": 8.5}
        self.card = self.move(self.plot.axhline(0, color=INK, linewidth=1.4, linestyle=(0, (5, 3))))
        self.tops = [self.stamp(0, 0, va="bottom", has_box=True, **style) for _ in range(MAX_BARS)]
        below = {**style, "va": "top", "transform": self.plot.get_xaxis_transform()}
        self.feet = [self.stamp(x, -0.02, **below) for x in range(MAX_BARS)]
        self.chosen = self.move(self.plot.plot([], [], "v", color=INK, markersize=7, clip_on=False)[0])
        self.title = self.heading(0.945)
        self.subtitle = self.stamp(0.012, 0.885, fontsize=9, va="center", color=GREY)
        self.text(0.11, 0.035, foot, fontsize=9, color=GREY)
        name_parts_in_rows(self, top_inches=1.0)

    def redraw(
        self, peaks: Sequence[Instant], above: Sequence[str], below: Sequence[str], chosen: int,
        capacity_bytes: int, title: str, subtitle: str,
    ) -> "PeaksPicture":  # fmt: skip
        """Above each bar its size and a second line, ``above``; ``chosen`` is an index."""
        top = axis_top(max(peak.total_bytes for peak in peaks), capacity_bytes)
        self.memory.end_at(top)
        self.plot.set_xlim(-0.65, len(peaks) - 0.35)
        places = list(range(len(peaks)))
        stack(self.bars, list(peaks), places, 0.72, len(peaks))
        for number in range(MAX_BARS):
            is_there = number < len(peaks)
            self.tops[number].set_visible(is_there)
            self.feet[number].set_visible(is_there)
            if is_there:
                self.tops[number].set_position((number, peaks[number].total_bytes + 0.01 * top))
                self.tops[number].set_text(f"{short(peaks[number].total_bytes)}\n{above[number]}")
                self.feet[number].set_text(below[number])
        self.card.set_ydata([capacity_bytes, capacity_bytes])
        self.card.set_visible(capacity_bytes < top)
        self.chosen.set_data([chosen], [peaks[chosen].total_bytes + 0.17 * top])
        self.title.set_text(title)
        self.subtitle.set_text(subtitle)
        told = [
            f"{name.replace(chr(10), ' ')}{', chosen' if number == chosen else ''}: "
            f"{format_bytes(peak.total_bytes)}, {text}"
            for number, (name, peak, text) in enumerate(zip(below, peaks, above, strict=True))
        ]
        self.alt = f"{title}. {subtitle}. {self.foot}: {'; '.join(told)}."
        return self
