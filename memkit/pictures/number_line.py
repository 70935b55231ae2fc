"""All values of one or two formats on a line, by size or by power of two.

Normal and subnormal values differ by colour, by height and by a line of their own in words.
"""

import math

import numpy as np

from memkit.formats.decoding import all_values
from memkit.formats.reading import number_text
from memkit.formats.records import FloatFormat, Format, get_format
from memkit.pictures.picture import FAINT, GREY, INK, OKABE_ITO, Picture

MAX_BITS = 16
COLOURS = (OKABE_ITO[0], OKABE_ITO[1])
SUBNORMAL_COLOUR = OKABE_ITO[3]
ROWS = (0.72, 0.28)
COLUMNS = 3000  # finer than the picture's pixels: values that fall on one column are drawn once


def default_range(formats: tuple[Format, ...], is_log: bool) -> tuple[float, float]:
    """What is shown unless asked otherwise: all positive values by power of two, or all values by size."""
    high = max(fmt.max for fmt in formats)
    if not is_log:
        return min(fmt.min for fmt in formats), high
    return min(float(values[values > 0][0]) for values in map(all_values, formats)), high


class NumberLinePicture(Picture):
    """One row of ticks per format; ``redraw`` moves them."""

    def __init__(self):
        super().__init__(8.0, 3.4)
        self.plot = self.add_axes((0.03, 0.17, 0.94, 0.7), ylim=(0, 1))
        self.plot.set_yticks([])
        for side in ("top", "right", "left"):
            self.plot.spines[side].set_visible(False)
        self.plot.spines["bottom"].set_color(GREY)
        self.plot.tick_params(axis="x", colors=GREY, labelsize=9)
        self.title = self.text(0.03, 0.945, "", fontsize=11.5, fontweight="bold", va="center", color=INK)
        self.axis_name = self.text(0.97, 0.945, "", fontsize=9, ha="right", va="center", color=GREY)
        self.rows, self.view = [], None
        for y, colour in zip(ROWS, COLOURS, strict=True):
            tick = {"linestyle": "", "marker": "|", "markeredgewidth": 1.0}
            line = self.move(self.plot.axhline(y, color=FAINT, linewidth=1, zorder=0))
            normal = self.move(self.plot.plot([], [], color=colour, markersize=34, **tick)[0])
            subnormal = self.move(self.plot.plot([], [], color=SUBNORMAL_COLOUR, markersize=17, **tick)[0])
            zero = self.move(self.plot.plot([], [], "o", color=INK, markersize=5, markerfacecolor="white")[0])
            style = {"transform": self.plot.transAxes, "fontsize": 9.5, "va": "bottom", "color": INK}
            words = self.move(self.plot.text(0, y + 0.115, "", **style))
            self.rows.append((line, normal, subnormal, zero, words))

    def redraw(
        self, *names: str | Format, is_log: bool = True, low: float | None = None, high: float | None = None
    ) -> "NumberLinePicture":
        """Show one or two formats between ``low`` and ``high``, by power of two if ``is_log``.

        Raises: ValueError: no format or more than two, one of more than 16 bits, or an empty range.
        """
        formats = tuple(get_format(name) for name in names)
        if not 1 <= len(formats) <= len(ROWS) or any(fmt.bits > MAX_BITS for fmt in formats):
            raise ValueError(
                f"formats={[fmt.name for fmt in formats]}: allowed are one or two of up to 16 bits"
            )
        first, last = default_range(formats, is_log)
        low, high = first if low is None else low, last if high is None else high
        if not low < high or is_log and low <= 0:
            raise ValueError(f"low={low}, high={high}: low has to be below high, and above 0 by power of two")
        self._set_axis(low, high, is_log)
        self.alt = (
            "A number line " + ("by power of two" if is_log else "by size") + f" from {number_text(low)} "
        )
        self.alt += f"to {number_text(high)}."
        for artists, fmt in zip(self.rows, (*formats, None), strict=False):
            self._draw_row(artists, fmt, low, high, is_log)
        self.write(self.title, " and ".join(fmt.name for fmt in formats))
        return self

    def _draw_row(self, artists: tuple, fmt: Format | None, low: float, high: float, is_log: bool) -> None:
        for artist in artists:
            artist.set_visible(fmt is not None)
        if fmt is None:
            return
        _, normal, subnormal, zero, words = artists
        y = artists[0].get_ydata()[0]
        values = all_values(fmt)
        shown = values[(values >= low) & (values <= high)]
        smallest_normal = fmt.smallest_normal if isinstance(fmt, FloatFormat) else 0.0
        is_subnormal = (np.abs(shown) < smallest_normal) & (shown != 0)
        for line, chosen in (
            (normal, shown[(shown != 0) & ~is_subnormal]),
            (subnormal, shown[is_subnormal]),
            (zero, shown[shown == 0]),
        ):
            x = _thin(np.log2(chosen) if is_log else chosen, *self.plot.get_xlim())
            line.set_data(x, np.full(x.size, y))
        count = (
            f"{shown.size} of {values.size} values" if shown.size < values.size else f"{values.size} values"
        )
        parts = [fmt.name, count, f"largest {number_text(fmt.max)}"]
        if isinstance(fmt, FloatFormat) and fmt.has_subnormals:
            parts.insert(2, f"{int(is_subnormal.sum())} subnormal (short ticks)")
        words.set_text("  ·  ".join(parts))
        self.alt += " " + ", ".join(parts).replace(" (short ticks)", "") + "."

    def _set_axis(self, low: float, high: float, is_log: bool) -> None:
        if self.view == (low, high, is_log):
            return
        self.view = (low, high, is_log)
        left, right = (math.log2(low), math.log2(high)) if is_log else (low, high)
        margin = 0.015 * (right - left)
        self.plot.set_xlim(left - margin, right + margin)
        if is_log:
            step = max(1, math.ceil((right - left) / 12))
            powers = range(math.ceil(left / step) * step, math.floor(right) + 1, step)  # 2**0 among them
            self.plot.set_xticks(list(powers), [f"$2^{{{power}}}$" for power in powers])
        else:
            ticks = np.linspace(low, high, 9)
            self.plot.set_xticks(ticks, [number_text(tick, 4) for tick in ticks])
        self.write(
            self.axis_name,
            "positive values, logarithmic" if is_log else "linear",
        )
        self.forget_background()


def _thin(x: np.ndarray, left: float, right: float) -> np.ndarray:
    """``x`` with one value for each column of the picture."""
    columns = np.floor((x - left) / (right - left) * COLUMNS)
    return x[np.unique(columns, return_index=True)[1]]
