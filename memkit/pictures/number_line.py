"""All values of one or two formats on a line, by size or by power of two.

Normal and subnormal values differ by colour, by height and by a line of their own in words.
"""

import math
from collections.abc import Sequence

import numpy as np

from memkit.formats.decoding import all_values
from memkit.formats.reading import number_text
from memkit.formats.records import FloatFormat, Format, get_format
from memkit.pictures.picture import FAINT, GREY, INK, OKABE_ITO, Picture, Ticks, round_ticks

MAX_BITS = 16
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
COLOURS = (OKABE_ITO[0], OKABE_ITO[1])
SUBNORMAL_COLOUR = OKABE_ITO[3]
ROWS = (0.72, 0.28)
COLUMNS = 3000  # finer than the picture's pixels: values that fall on one column are drawn once


def line_values(fmt: Format, is_scaled: bool = False) -> np.ndarray:
    """Every value of a format; divided by the largest if ``is_scaled``, as a block is whose factor fits its largest."""
    return all_values(fmt) / fmt.max if is_scaled else all_values(fmt)


def default_range(formats: Sequence[Format], is_log: bool, is_scaled: bool = False) -> tuple[float, float]:
    """What is shown unless asked otherwise: all positive values by power of two, or all values by size."""
    lines = [line_values(fmt, is_scaled) for fmt in formats]
    lows = [float(values[values > 0][0] if is_log else values[0]) for values in lines]
    return min(lows), max(float(values[-1]) for values in lines)


class NumberLinePicture(Picture):
    """One row of ticks per format; ``redraw`` moves them."""

    def __init__(self):
        super().__init__(8.0, 3.4)
        self.plot = self.add_axes((0.03, 0.17, 0.94, 0.7), ylim=(0, 1))
        self.plot.set_yticks([])
        self.plot.spines[["top", "right", "left"]].set_visible(False)
        self.plot.spines["bottom"].set_color(GREY)
        self.ticks = Ticks(self, self.plot, "x", 16)
        self.title = self.heading(0.945)
        self.axis_name = self.stamp(0.97, 0.945, fontsize=9, ha="right", va="center", color=GREY)
        self.rows = []
        for y, colour in zip(ROWS, COLOURS, strict=True):
            tick = {"linestyle": "", "marker": "|", "markeredgewidth": 1.0}
            line = self.move(self.plot.axhline(y, color=FAINT, linewidth=1, zorder=0))
            normal = self.move(self.plot.plot([], [], color=colour, markersize=34, **tick)[0])
            subnormal = self.move(self.plot.plot([], [], color=SUBNORMAL_COLOUR, markersize=17, **tick)[0])
            zero = self.move(self.plot.plot([], [], "o", color=INK, markersize=5, markerfacecolor="white")[0])
            style = {"transform": self.plot.transAxes, "fontsize": 9.5, "va": "bottom"}
            words = self.stamp(0, y + 0.115, self.plot, **style)
            self.rows.append((line, normal, subnormal, zero, words))

    def redraw(
        self, *names: str | Format, is_log: bool = True, low: float | None = None, high: float | None = None,
        is_scaled: bool = False,
    ) -> "NumberLinePicture":  # fmt: skip
        """Show one or two formats between ``low`` and ``high``, by power of two if ``is_log``.

        ``is_scaled`` shows each as shares of its largest value.

        Raises: ValueError: no format or more than two, one of more than 16 bits, or an empty range.
        """
        formats = tuple(get_format(name) for name in names)
        if not 1 <= len(formats) <= len(ROWS) or any(fmt.bits > MAX_BITS for fmt in formats):
            raise ValueError(
                f"formats={[fmt.name for fmt in formats]}: allowed are one or two of up to 16 bits"
            )
        first, last = default_range(formats, is_log, is_scaled)
        low, high = first if low is None else low, last if high is None else high
        if not low < high or is_log and low <= 0:
            raise ValueError(f"low={low}, high={high}: low has to be below high, and above 0 by power of two")
        self._set_axis(low, high, is_log, is_scaled)
        self.alt = (
            "A number line " + ("by power of two" if is_log else "by size") + f" from {number_text(low)} "
        )
        self.alt += f"to {number_text(high)}."
        for artists, fmt in zip(self.rows, (*formats, None), strict=False):
            self._draw_row(artists, fmt, low, high, is_log, is_scaled)
        self.title.set_text(" and ".join(fmt.name for fmt in formats))
        return self

    def _draw_row(
        self, artists: tuple, fmt: Format | None, low: float, high: float, is_log: bool, is_scaled: bool
    ) -> None:
        for artist in artists:
            artist.set_visible(fmt is not None)
        if fmt is None:
            return
        _, normal, subnormal, zero, words = artists
        y = artists[0].get_ydata()[0]
        values = line_values(fmt, is_scaled)
        shown = values[(values >= low) & (values <= high)]
        smallest_normal = fmt.smallest_normal if isinstance(fmt, FloatFormat) else 0.0
        smallest_normal /= fmt.max if is_scaled else 1
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
        largest = f"largest {number_text(fmt.max)}" + (", shown as 1" if is_scaled else "")
        parts = [fmt.name, count, largest]
        if isinstance(fmt, FloatFormat) and fmt.has_subnormals:
            parts.insert(2, f"{int(is_subnormal.sum())} subnormal (short ticks)")
        words.set_text("  ·  ".join(parts))
        self.alt += " " + ", ".join(parts).replace(" (short ticks)", "") + "."

    def _set_axis(self, low: float, high: float, is_log: bool, is_scaled: bool) -> None:
        left, right = (math.log2(low), math.log2(high)) if is_log else (low, high)
        margin = 0.015 * (right - left)
        self.plot.set_xlim(left - margin, right + margin)
        if is_log and right - left >= 4:
            step = max(1, math.ceil((right - left) / 12))
            powers = range(math.ceil(left / step) * step, math.floor(right) + 1, step)  # 0 among them: the tick at 1
            self.ticks.show((power, f"2{str(power).translate(SUPERSCRIPTS)}" if power else "1") for power in powers)
        else:
            ticks = round_ticks(low, high, 9)
            self.ticks.show((math.log2(tick) if is_log else tick, number_text(tick, 8)) for tick in ticks)
        kind = "positive values, logarithmic" if is_log else "linear"
        self.axis_name.set_text(f"{kind}, as shares of the largest" if is_scaled else kind)


def _thin(x: np.ndarray, left: float, right: float) -> np.ndarray:
    """``x`` with one value for each column of the picture."""
    columns = np.floor((x - left) / (right - left) * COLUMNS)
    return x[np.unique(columns, return_index=True)[1]]
