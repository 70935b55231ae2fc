"""A running sum in a narrow format beside the exact one: nearest, stochastic, Kahan, and a float32 accumulator."""

import numpy as np

from memkit.formats.reading import number_text
from memkit.formats.records import get_format
from memkit.formats.rounding import round_to
from memkit.formats.running_sums import num_moving_terms, sums_by_method
from memkit.pictures.picture import GREY, INK, OKABE_ITO, Picture, Ticks, round_ticks

LINE_LOOK = {
    "exact": (INK, (0, (1, 2)), ""),
    "nearest": (OKABE_ITO[1], "-", "o"),
    "stochastic": (OKABE_ITO[0], "-", "^"),
    "kahan": (OKABE_ITO[3], "--", "s"),
    "float32 accumulator": (OKABE_ITO[4], "-.", "D"),
}
"""Colour, dashes and marker of each way to add."""
MAX_POINTS = 400


class RunningSumPicture(Picture):
    """The total after each addition, one line per method, and its end in words."""

    def __init__(self):
        super().__init__(8.0, 4.0)
        self.plot = self.add_axes((0.085, 0.14, 0.575, 0.7))
        self.plot.spines[["top", "right"]].set_visible(False)
        self.ticks = {along: Ticks(self, self.plot, along, 8) for along in "xy"}
        self.plot.set_xlabel("additions", fontsize=9.5, color=INK, labelpad=18)
        self.plot.set_ylabel("total", fontsize=9.5, color=INK, labelpad=36)
        self.title = self.heading(0.94)
        side = self.surface((0.685, 0, 0.315, 1))
        self.curves, self.ends, self.totals = {}, {}, {}
        for row, (name, (colour, dashes, marker)) in enumerate(LINE_LOOK.items()):
            y = 0.8 - 0.15 * row
            style = {
                "color": colour,
                "linestyle": dashes,
                "marker": marker,
                "markersize": 5,
                "linewidth": 1.6,
            }
            self.curves[name] = self.move(self.plot.plot([], [], **style)[0])
            side.plot([0, 0.07, 0.14], [y, y, y], **style, markevery=[1])
            side.text(0.19, y, name, fontsize=9.5, va="center", color=INK)
            self.ends[name] = self.stamp(0.19, y - 0.045, side, fontsize=9, va="center", color=GREY)

    def redraw(self, term: float, num_terms: int, fmt: str, seed: int = 0) -> "RunningSumPicture":
        """Add ``term`` to itself ``num_terms`` times in ``fmt``; ``seed`` starts the chances of the stochastic sum."""
        fmt = get_format(fmt)
        totals = sums_by_method(term, num_terms, fmt, seed)
        if num_terms < 1:
            raise ValueError(f"num_terms={num_terms} leaves nothing to draw; allowed are 1 and more")
        held = float(round_to(float(term), fmt, overflow="saturate"))
        self.totals = totals = {"exact": held * np.arange(1, num_terms + 1)} | totals
        self._set_axis(num_terms, totals)
        kept = np.unique(np.linspace(0, num_terms - 1, min(num_terms, MAX_POINTS)).astype(int))
        ends = []
        for row, (name, total) in enumerate(totals.items()):
            self.curves[name].set_data(kept + 1, total[kept])
            spacing = max(1, kept.size // 6)
            self.curves[name].set_markevery((min(row * spacing // 5, kept.size - 1), spacing))
            moving = num_moving_terms(total)
            is_stuck = name == "nearest" and moving < num_terms  # the same sum again, and so for ever
            stops = f", stuck after {moving}" if is_stuck else ""
            self.ends[name].set_text(number_text(float(total[-1])) + stops)
            ends.append(f"{name} {number_text(float(total[-1]))}{stops}")
        self.title.set_text(f"{num_terms} × {number_text(held)} in {fmt.name}")
        self.alt = f"The sum of {num_terms} terms of {number_text(held)} in {fmt.name}: {'; '.join(ends)}."
        return self

    def _set_axis(self, num_terms: int, totals: dict[str, np.ndarray]) -> None:
        low = min(0.0, *(float(total.min()) for total in totals.values()))
        high = max(0.0, *(float(total.max()) for total in totals.values()))
        margin = 0.05 * (high - low) or 1.0
        self.plot.set(xlim=(0, num_terms * 1.03), ylim=(low - margin * (low < 0), high + margin))
        self.ticks["x"].show((x, f"{x:,.0f}") for x in round_ticks(0, num_terms) if x == int(x))
        self.ticks["y"].show((y, number_text(y, 4)) for y in round_ticks(low, high + margin))
