"""One code of a format, bit by bit, and the next values on both sides of it.

The three fields differ by colour, by hatch and by the name above them.
"""

from itertools import pairwise

from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch

from memkit.formats.reading import CodeReading, number_text
from memkit.pictures.picture import GREY, INK, OKABE_ITO, Picture, mix
from memkit.pictures.stamped_bars import rectangles

FIELD_LOOK = {
    "sign": (OKABE_ITO[1], "////"),
    "exponent": (OKABE_ITO[0], ""),
    "mantissa": (OKABE_ITO[3], "...."),
    "table index": (OKABE_ITO[4], "xxxx"),
}
"""Colour and hatch of each field, everywhere in the book."""


def field_colour(field: str) -> str:
    """A field's colour, pale enough to stand behind digits."""
    return to_hex(mix(FIELD_LOOK[field][0], 0.375))


LEFT, RIGHT, BOTTOM, TOP = 0.03, 0.97, 0.575, 0.765
BITS_SHARE = 0.46
"""The upper share of the picture, with the bits: where they can be clicked beside it, it is not shown."""
WIDEST_BOX = 0.06
MAX_BITS = 64
STRIP = 0.2  # height of the line on which the value stands between its neighbours


class BitPicture(Picture):
    """The bits of one code in boxes by field; below them what they spell, and the neighbours."""

    def __init__(self):
        super().__init__(8.0, 2.6)
        self.plot = self.surface((0, 0, 1, 1))
        words = {"ha": "center", "va": "center"}
        self.title = self.stamp(0.5, 0.94, fontsize=11.5, fontweight="bold", **words)
        self.boxes, self.names = {}, {}
        for field, (_, hatch) in FIELD_LOOK.items():
            self.boxes[field] = self.moving_bars(self.plot, field_colour(field), hatch)
            self.names[field] = self.stamp(0, TOP + 0.055, fontsize=9.5, **words)
        self.frames = self.move(self.plot.add_patch(PathPatch(rectangles(), facecolor="none", edgecolor=INK)))
        self.papers = self.move(self.plot.add_patch(PathPatch(rectangles(), facecolor="white", linewidth=0)))
        self.digits = [self.stamp(0, (BOTTOM + TOP) / 2 - 0.003, **words) for _ in range(MAX_BITS)]
        self.spelled = self.stamp(0.5, 0.455, **words)
        self._draw_strip(words)

    def _draw_strip(self, words: dict) -> None:
        """The line with the value in the middle: only the places and words of the ticks will change."""
        self.plot.plot([LEFT + 0.05, RIGHT - 0.05], [STRIP, STRIP], color=GREY, linewidth=1.2)
        self.plot.plot([0.5], [STRIP + 0.085], "v", color=INK, markersize=7)
        ticks = self.plot.plot([0.5] * 3, [STRIP] * 3, "|", color=INK, markersize=14, markeredgewidth=1.6)
        self.ticks = self.move(ticks[0])
        pale = {**words, "color": GREY}
        self.values = [self.stamp(0, STRIP - 0.085, fontsize=10.5, **words) for _ in range(3)]
        names = ("next below", "this value", "next above")
        self.sides = [self.stamp(0, STRIP - 0.155, fontsize=8.5, text=name, **pale) for name in names]
        self.gaps = [self.stamp(0, STRIP + 0.055, fontsize=9, **pale) for _ in range(2)]

    def redraw(self, reading: CodeReading) -> "BitPicture":
        """Show the code that was read."""
        fmt, bits = reading.fmt, reading.bits
        width = min(WIDEST_BOX, (RIGHT - LEFT) / len(bits))
        left = 0.5 - width * len(bits) / 2
        self.title.set_text(f"{fmt.name}   code {reading.code} = 0x{reading.code:0{-(-len(bits) // 4)}X}")
        for field in FIELD_LOOK:
            self.boxes[field].set_visible(False)
            self.names[field].set_visible(False)
        at = 0
        for field, digits in reading.fields:
            start, end = left + at * width, left + (at + len(digits)) * width
            self.boxes[field].set(path=rectangles([(start, BOTTOM, end, TOP)]), visible=True)
            self.names[field].set(x=(start + end) / 2, text=_name(field, digits, width), visible=True)
            at += len(digits)
        edges = [left + i * width for i in range(len(bits) + 1)]
        papers = [(x + 0.22 * width, BOTTOM + 0.035, x + 0.78 * width, TOP - 0.035) for x in edges[:-1]]
        self.frames.set_path(rectangles([(x, BOTTOM, end, TOP) for x, end in pairwise(edges)]))
        self.papers.set_path(rectangles(papers))
        size = 14 if width > 0.04 else 10 if width > 0.025 else 6.5
        for index, digit in enumerate(self.digits):
            digit.set_visible(index < len(bits))
            if index < len(bits):
                digit.set(x=left + (index + 0.5) * width, text=bits[index], fontsize=size)
        is_number = reading.kind not in ("infinity", "NaN", "table entry")
        kind = f"   ({reading.kind})" if is_number else ""
        value = f" {reading.equals}" if reading.kind not in ("infinity", "NaN") else ""
        spelled = reading.spelled + value + kind
        self.spelled.set(text=spelled, fontsize=12.5 if len(spelled) < 70 else 9)
        self._place_on_strip(reading)
        self.alt = (
            f"The {len(bits)} bits {bits} of code {reading.code} in {fmt.name}: "
            + ", ".join(f"{field} {digits}" for field, digits in reading.fields)
            + f"; {reading.spelled}{value}{kind}; next below {reading.text(reading.below)}, "
            + f"next above {reading.text(reading.above)}."
        )
        return self

    def _place_on_strip(self, reading: CodeReading) -> None:
        """The three values, their distances drawn to scale."""
        trio = (reading.below, reading.value, reading.above)
        gaps = [None if None in pair else pair[1] - pair[0] for pair in pairwise(trio)]
        finite = [gap for gap in gaps if gap is not None and gap < float("inf")]
        shares = [0.3 * gap / max(finite) if gap in finite else 0.3 for gap in gaps]
        places = (0.5 - shares[0], 0.5, 0.5 + shares[1])
        self.ticks.set_xdata([x for x, value in zip(places, trio, strict=True) if value is not None])
        self.ticks.set_ydata([STRIP] * sum(value is not None for value in trio))
        for text, side, value, x in zip(self.values, self.sides, trio, places, strict=True):
            text.set(x=x, text=reading.text(value))
            side.set_x(x)
        for text, gap, pair in zip(self.gaps, gaps, pairwise(places), strict=True):
            text.set(x=sum(pair) / 2, text=f"gap {number_text(gap)}" if gap in finite else "")


def _name(field: str, digits: str, width: float) -> str:
    """The field's name, and its number where there is room for it."""
    name = f"{field} = {int(digits, 2)}"
    if len(digits) * width > 0.011 * len(name):
        return name
    return field if len(digits) * width > 0.011 * len(field) else field[0]


