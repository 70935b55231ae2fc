"""The pictures of chapter 02: bits, a number in many formats, number lines, running sums.

Each function returns a ``Picture``. Its class has a ``redraw`` that a widget calls again and again; the
function makes one and draws it once, for a page or a file.
"""

import math
from collections.abc import Mapping, Sequence
from io import BytesIO

import numpy as np
from PIL import Image

from memkit.formats.decoding import all_values
from memkit.formats.reading import Nearest, nearest_in, number_text, read_code
from memkit.formats.records import Format
from memkit.formats.rounding import round_to
from memkit.pictures.bits import BitPicture
from memkit.pictures.number_line import NumberLinePicture
from memkit.pictures.picture import GREY, INK, OKABE_ITO, Picture, bare
from memkit.pictures.stamped_bars import rectangles
from memkit.pictures.sums import RunningSumPicture

COMPARED = (
    "float32", "tf32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn",
    "float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn", "int8", "int4",
)  # fmt: skip
"""The formats in which a number is shown side by side."""

SMALLEST_ERROR = 1e-9  # left end of the error axis


def bit_figure(code: int, fmt: str | Format) -> BitPicture:
    """One code's bits by field, its value and its neighbours."""
    return BitPicture().redraw(read_code(code, fmt))


def number_line_figure(*names: str | Format, **choices) -> NumberLinePicture:
    """All values of one or two formats; ``choices`` are those of ``NumberLinePicture.redraw``."""
    return NumberLinePicture().redraw(*names, **choices)


def running_sum_figure(term: float, num_terms: int, fmt: str, seed: int = 0) -> RunningSumPicture:
    """A sum of equal terms in ``fmt``, in four ways, beside the exact one."""
    return RunningSumPicture().redraw(term, num_terms, fmt, seed)


def stacked_png(upper: Picture, lower: Picture) -> bytes:
    """Two pictures of one width as one PNG, one below the other."""
    images = [picture.image() for picture in (upper, lower)]
    stack = Image.new("P", (images[0].width, images[0].height + images[1].height))
    stack.putpalette(images[0].getpalette())
    stack.paste(images[0], (0, 0))
    stack.paste(images[1], (0, images[0].height))
    target = BytesIO()
    stack.save(target, "png", compress_level=1)
    return target.getvalue()


class ComparisonPicture(Picture):
    """A row per format: what it makes of the number, and a bar for the relative error, one decade a step."""

    def __init__(self):
        super().__init__(8.0, 3.4)
        self.title = self.heading(0.945)
        place = (0.4, 0.155, 0.43, 0.735)
        self.plot = self.add_axes(
            place, xlim=(math.log10(SMALLEST_ERROR), 0), ylim=(len(COMPARED) - 0.4, -0.6)
        )
        self.plot.set_yticks([])
        powers = range(-9, 1, 3)
        self.plot.set_xticks(list(powers), [f"$10^{{{power}}}$" for power in powers])
        bare(self.plot, "relative error", grid="x", axis="x")
        self.bars = self.moving_bars(self.plot, OKABE_ITO[1], "///", linewidth=0)
        self.values, self.notes = [], []
        for row, name in enumerate(COMPARED):
            at = {"fontsize": 9.5, "va": "center", "transform": self.plot.get_yaxis_transform()}
            self.plot.text(-0.9, row, name, color=INK, **at)
            self.values.append(self.stamp(-0.03, row, self.plot, ha="right", **at))
            self.notes.append(self.stamp(1.03, row, self.plot, **at))

    def redraw(self, number: float, *, saturates: bool = True) -> "ComparisonPicture":
        """Show ``number``; beyond a format's range it saturates, or gives what the format has: infinity or NaN."""
        rows = [nearest_in(number, name, saturates=saturates) for name in COMPARED]
        left = math.log10(SMALLEST_ERROR)
        bars = []
        for row, (nearest, value, note) in enumerate(zip(rows, self.values, self.notes, strict=True)):
            error = nearest.relative_error
            length = 0.0 if error == 0 else 0 - left
            if 0 < error < 1:
                length = max(math.log10(error) - left, 0.05)
            bars.append((left, row - 0.3, left + length, row + 0.3))
            value.set_text(number_text(nearest.value, 9))
            note.set_text(note_on(nearest))
        self.bars.set_path(rectangles(bars))
        self.title.set_text(f"{number_text(float(number), 9)} in {len(rows)} formats")
        words = (f"{n.fmt.name} {number_text(n.value, 9)}, {note_on(n)}" for n in rows)
        self.alt = f"{number_text(float(number), 9)} as each format holds it: {'; '.join(words)}."
        return self


def note_on(nearest: Nearest) -> str:
    """The error in words: ``exact``, a percentage, ``lost``, or what overflow did."""
    error = nearest.relative_error
    if nearest.is_beyond:
        return "saturated" if math.isfinite(nearest.value) else "overflow"
    if error == 0:
        return "exact" if nearest.is_exact else "sign lost"
    return (
        "underflow to 0" if nearest.value == 0 else f"{error:.2g}" if error < 1e-4 else f"{100 * error:.2g} %"
    )


def scaled_block_figure(values: Sequence[float], scales: Mapping[str, float], fmt: str, title: str) -> Picture:
    """Where the values of one block land for each scale: dots above, the format's values times the scale below."""
    picture = Picture(height_inches=0.75 + 1.4 * len(scales))
    height = picture.get_figheight()
    plot = picture.add_axes((0.03, 0.02, 0.94, 1 - 0.5 / height))
    held = {}
    grid = np.unique(np.abs(all_values(fmt)))
    right = max(max(values), *(grid[-1] * scale for scale in scales.values())) * 1.08
    plot.set(xlim=(-right * 0.02, right), ylim=(len(scales) - 0.05, -0.3))
    plot.axis("off")
    for row, (name, scale) in enumerate(scales.items()):
        held[name] = round_to(np.asarray(values) / scale, fmt, overflow="saturate") * scale
        plot.text(0, row - 0.18, f"{name}: scale {scale:g}", fontsize=9.5, fontweight="bold", color=INK)
        plot.plot([0, right], [row + 0.5] * 2, color=GREY, linewidth=1)
        for tick in grid * scale:
            plot.plot([tick, tick], [row + 0.5, row + 0.58], color=INK, linewidth=1.2)
            plot.text(tick, row + 0.61, f"{tick:g}", fontsize=8.5, ha="center", va="top", color=GREY)
        for value, landed in zip(values, held[name], strict=True):
            plot.plot([value], [row + 0.12], "o", color=OKABE_ITO[1], markersize=6)
            plot.text(value, row + 0.04, f"{value:g}", fontsize=8.5, ha="center", va="bottom", color=INK)
            arrow = {"arrowstyle": "-|>", "color": OKABE_ITO[1], "linewidth": 1.2, "shrinkA": 4, "shrinkB": 0}
            plot.annotate("", (landed, row + 0.5), (value, row + 0.12), arrowprops=arrow)
    picture.text(0.012, 1 - 0.22 / height, title, fontsize=11.5, fontweight="bold", va="center", color=INK)
    told = "; ".join(
        f"{name}, scale {scale:g}: {', '.join(f'{v:g} to {h:g}' for v, h in zip(values, held[name], strict=True))}"
        for name, scale in scales.items()
    )
    picture.alt = f"{title}. {told}."
    return picture
