"""Text that changes at every move of a slider, in a tenth of the time that matplotlib takes for it.

Laying a line of text out and drawing it takes matplotlib a millisecond, and a picture has some twenty lines.
Their characters are few. So each is drawn once, by matplotlib, and then stamped.
"""

from functools import lru_cache

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text

EDGE = 3  # pixels around a stamp, for what reaches out of its line or over its advance
BOX_OPACITY = 217


@lru_cache(maxsize=64)
def _line(size: float, weight: str, dpi: float) -> tuple[float, float]:
    """Height and descent in pixels of "lp", by which matplotlib measures a line."""
    font = FontProperties(size=size, weight=weight)
    _, height, descent = RendererAgg(8, 8, dpi).get_text_width_height_descent("lp", font, False)
    return height, descent


@lru_cache(maxsize=1024)
def _glyph(char: str, size: float, weight: str, dpi: float) -> tuple[np.ndarray, float]:
    """A character's opacity, with its origin ``EDGE`` pixels from the left, and its advance in pixels."""
    font = FontProperties(size=size, weight=weight)
    height, descent = _line(size, weight, dpi)
    renderer = RendererAgg(int(4 * height) + 2 * EDGE, int(height) + 1 + 2 * EDGE, dpi)
    bars, _, _ = renderer.get_text_width_height_descent("||", font, False)
    spread, _, _ = renderer.get_text_width_height_descent(f"|{char}|", font, False)
    renderer.draw_text(renderer.new_gc(), EDGE, renderer.height - EDGE - descent, char, font, 0)
    opacity = np.asarray(renderer.buffer_rgba())[:, : int(spread - bars) + 2 * EDGE + 2, 3]
    return opacity.copy(), spread - bars


def _stamp(line: str, size: float, weight: str, dpi: float) -> tuple[np.ndarray, float]:
    """A line's opacity, and its width without the edges; every character at its nearest pixel."""
    glyphs = [_glyph(char, size, weight, dpi) for char in line]
    width = sum(advance for _, advance in glyphs)
    opacity = np.zeros((glyphs[0][0].shape[0], int(width) + 4 * EDGE + 4), np.uint8)
    at = 0.0
    for glyph, advance in glyphs:
        place = opacity[:, round(at) : round(at) + glyph.shape[1]]
        np.maximum(place, glyph[:, : place.shape[1]], out=place)
        at += advance
    return opacity[:, : int(width) + 2 * EDGE + 2], width


@lru_cache(maxsize=256)
def _painted(
    line: str, size: float, weight: str, dpi: float, colour, has_box: bool
) -> tuple[np.ndarray, float]:
    """A line's pixels from the bottom: ink where its stamp is opaque, and the box around it; and its width."""
    opacity, width = _stamp(line, size, weight, dpi)
    pixels = np.empty((*opacity.shape, 4), np.uint8)
    ink = np.multiply(to_rgb(colour), 255)
    if has_box:
        share = opacity[..., None] / 255
        pixels[..., :3] = share * ink + (1 - share) * 255
        pixels[..., 3] = np.maximum(opacity, BOX_OPACITY)
    else:
        pixels[..., :3] = ink
        pixels[..., 3] = opacity
    return pixels[::-1].copy(), width


class StampedText(Text):
    """A ``Text`` that is stamped where the picture is made of pixels, and an ordinary text elsewhere.

    ``has_box`` puts a pale box behind it. Rotation, mathematics and wrapping are for ordinary texts.
    """

    def __init__(self, *args, has_box: bool = False, **kwargs):
        super().__init__(*args, **{"linespacing": 1.2, **kwargs})
        self.has_box = has_box
        if has_box:
            self.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": BOX_OPACITY / 255, "pad": 1})

    def draw(self, renderer) -> None:
        """Stamp the lines where ``Text.draw`` would draw them, to the nearest pixel."""
        if not isinstance(renderer, RendererAgg):
            super().draw(renderer)
            return
        if not self.get_visible() or not self.get_text():
            return
        style = self.get_fontsize(), self.get_fontweight(), renderer.dpi
        height, descent = _line(*style)
        lines = self.get_text().split("\n")
        step = (height - descent) * self._linespacing + descent
        x, top = self.get_transform().transform(self.get_unitless_position())
        share_above = {"top": 0, "center": 0.5, "bottom": 1}[self.get_verticalalignment()]
        top += share_above * (height + step * (len(lines) - 1))
        gc = renderer.new_gc()
        for number, line in enumerate(lines):
            pixels, width = _painted(line, *style, self.get_color(), self.has_box)
            shift = {"left": 0, "center": width / 2, "right": width}[self.get_horizontalalignment()]
            bottom = round(top - step * number - height)
            renderer.draw_image(gc, round(x - shift) - EDGE, bottom - EDGE, pixels)
        gc.restore()
