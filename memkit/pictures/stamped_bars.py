"""Hatched rectangles that change at every move of a slider, in a fraction of the time that matplotlib takes for them.

A hatch is a pattern that repeats. So it is drawn once, by matplotlib, as a tile, and rectangles are cut out of it.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.transforms import IdentityTransform

HATCH_WIDTH = 1.1


@lru_cache(maxsize=64)
def _tile(colour: tuple[float, ...], hatch: str, edge: tuple[float, ...], dpi: float) -> np.ndarray:
    """The pixels of a square of a hatched colour; the hatch repeats after as many pixels as an inch has."""
    side = int(dpi)
    renderer = RendererAgg(side, side, dpi)
    with rc_context({"hatch.linewidth": HATCH_WIDTH}):
        square = Path([(-9, -9), (-9, 2 * side), (2 * side, 2 * side), (2 * side, -9), (-9, -9)], closed=True)
        patch = PathPatch(square, facecolor=colour, hatch=hatch, edgecolor=edge, linewidth=0)
    patch.set_transform(IdentityTransform())
    patch.draw(renderer)
    return np.asarray(renderer.buffer_rgba()).copy()


def rectangles(boxes: Sequence[tuple[float, float, float, float]] = ()) -> Path:
    """Upright rectangles (left, bottom, right, top) as one path, as ``StampedBars`` wants it."""
    if not len(boxes):
        return Path([(0, 0)])
    left, bottom, right, top = np.asarray(boxes, float).T
    corners = np.stack([left, bottom, left, top, right, top, right, bottom, left, bottom], axis=1)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    return Path(corners.reshape(-1, 2), np.tile(codes, len(corners)))


class StampedBars(PathPatch):
    """A ``PathPatch`` of upright rectangles, five points each, cut out of a tile where the picture is made of pixels.

    A rectangle of at least three pixels has lines of the edge's colour, a pixel wide, at its top and its sides, if the
    edge has a width.
    """

    def draw(self, renderer) -> None:
        if not isinstance(renderer, RendererAgg) or not self.get_hatch():
            super().draw(renderer)
            return
        points = self.get_transform().transform(self.get_path().vertices)
        points = points[len(points) % 5 :].reshape(-1, 5, 2)
        if not self.get_visible() or not len(points):
            return
        tile = _tile(self.get_facecolor(), self.get_hatch(), self.get_edgecolor(), renderer.dpi)
        edge, canvas = np.round(np.multiply(self.get_edgecolor(), 255)), np.asarray(renderer._renderer)
        height, width = canvas.shape[:2]
        box = tuple(self.axes.bbox.extents) if self.get_clip_on() else (0, 0, width, height)
        corners = np.clip(np.concatenate([points.min(axis=1), points.max(axis=1)], axis=1), box[:2] * 2, box[2:] * 2)
        for left, low, right, high in np.round(corners).astype(int).tolist():
            rows, columns = np.arange(height - high, height - low), np.arange(left, right)
            place = canvas[height - high : height - low, left:right]
            place[:] = tile[rows[:, None] % len(tile), columns % len(tile)]
            if self.get_linewidth() and min(place.shape[:2]) >= 3:
                place[0], place[:, 0], place[:, -1] = edge, edge, edge
