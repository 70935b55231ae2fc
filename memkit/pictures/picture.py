"""A matplotlib figure that redraws fast enough for a slider, and the colours of the book.

A ``Picture`` has two layers. What stays (axes, names, swatches) is rasterised once; what moves (bars,
numbers, titles, the ticks of an axis that rescales) is drawn over it at each update. So a live panel never draws
its axes again when a slider moves, and the same artists make the static twin inside the notebook and the files in
``figures/``. The colours are Okabe and Ito's, which colour-blind readers can tell apart; beside its colour
everything has a hatch or a name.
"""

import base64
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import MaxNLocator
from PIL import Image

from memkit.pictures.stamped_bars import HATCH_WIDTH, StampedBars, rectangles
from memkit.pictures.stamped_text import StampedText

INK, GREY, FAINT = "#1a1a1a", "#595959", "#d9d9d9"
OKABE_ITO = ("#0072B2", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442", "#999999")


def mix(colour: str, share: float) -> tuple[float, ...]:
    """``share`` of a colour, the rest white."""
    return tuple(1 - (1 - channel) * share for channel in to_rgb(colour))


def _palette() -> Image.Image:
    """The book's colours mixed with white, and greys: with few colours a PNG is small and quickly made."""
    mixes = [mix(colour, share / 8) for colour in OKABE_ITO for share in range(1, 9)]
    greys = [mix("black", share / 24) for share in range(25)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([round(255 * channel) for colour in mixes + greys for channel in colour])
    return palette


class Picture(Figure):
    """A ``Figure`` whose moving artists are drawn over a background that is kept; ``alt`` describes it in words.

    ``move(artist)`` registers an artist as moving; ``stamp`` and ``heading`` make moving texts, ``moving_bars``
    rectangles, ``Ticks`` an axis that rescales; ``forget_background()`` follows a change to what stays. A subclass
    sets its artists in one method, ``redraw``, and makes no new ones there. Its colours are those of ``OKABE_ITO``,
    their mixes with white, and greys.
    """

    def __init__(self, width_inches: float = 8.0, height_inches: float = 4.3):
        super().__init__(figsize=(width_inches, height_inches), dpi=100, facecolor="white")
        FigureCanvasAgg(self)
        self.palette = _palette()
        self.moving = []
        self.background = None
        self.alt = ""

    def move(self, artist):
        """Draw ``artist`` at every update, over the background."""
        artist.set_animated(True)
        self.moving.append(artist)
        return artist

    def stamp(self, x: float, y: float, axes=None, **style) -> StampedText:
        """A moving text at a point of ``axes``, or, without one, at shares of the picture's width and height."""
        text = StampedText(x, y, **{"color": INK, "clip_on": False, **style})
        return self.move((axes or self).add_artist(text))

    def moving_bars(self, axes, colour, hatch: str = "", **style) -> StampedBars:
        """Hatched bars that move: ``set_path(rectangles(...))`` places them."""
        return self.move(axes.add_patch(hatched(StampedBars, rectangles(), facecolor=colour, hatch=hatch, **style)))

    def surface(self, place: tuple[float, ...], xlim=(0, 1), ylim=(0, 1)):
        """A part of the picture to draw on, without frame or ticks."""
        axes = self.add_axes(place, xlim=xlim, ylim=ylim)
        axes.set_axis_off()
        return axes

    def heading(self, y: float) -> StampedText:
        """The title's line, at a share of the picture's height."""
        return self.stamp(0.012, y, fontsize=11.5, fontweight="bold", va="center")

    def forget_background(self) -> None:
        """What stays has changed: the next ``png`` draws everything again."""
        self.background = None

    def image(self) -> Image.Image:
        """The picture as it stands, moving artists drawn over the background."""
        if self.background is None:
            self.canvas.draw()
            self.background = self.canvas.copy_from_bbox(self.bbox)
        self.canvas.restore_region(self.background)
        renderer = self.canvas.get_renderer()
        for artist in self.moving:
            artist.draw(renderer)
        rgba = self.canvas.buffer_rgba()
        image = Image.frombuffer("RGBA", rgba.shape[1::-1], rgba, "raw", "RGBA", 0, 1).convert("RGB")
        return image.quantize(palette=self.palette, dither=Image.Dither.NONE)

    def png(self) -> bytes:
        """The picture as a PNG of compression level 1: quick to make, some 30 KiB."""
        target = BytesIO()
        self.image().save(target, "png", compress_level=1)
        return target.getvalue()

    def write_files(self, stem: Path) -> None:
        """``stem``.svg and ``stem``.png for a page: the same bytes each time, on white, sharp on fine screens."""
        for artist in self.moving:
            artist.set_animated(False)
        with matplotlib.rc_context({"svg.hashsalt": "memkit", "svg.fonttype": "path"}):
            self.savefig(stem.with_suffix(".svg"), metadata={"Date": None})
        self.savefig(stem.with_suffix(".png"), dpi=200, metadata={"Software": None})
        for artist in self.moving:
            artist.set_animated(True)

    def _repr_mimebundle_(self, **_kwargs) -> tuple[dict, dict]:
        """What a notebook shows for a picture: the PNG, with ``alt`` as its text."""
        png = base64.b64encode(self.png()).decode()
        return {"image/png": png, "text/plain": self.alt}, {"image/png": {"alt": self.alt}}


class Ticks:
    """The ticks of an axis that rescales, up to ``most`` of them: words beside it and pale lines across."""

    def __init__(self, picture: Picture, axes, along: str, most: int, **style):
        is_y = along == "y"
        axes.tick_params(axis=along, length=0, **{"labelleft" if is_y else "labelbottom": False})
        axes.set(**{f"{along}ticks": []})
        self.is_y, self.picture, self.axes = is_y, picture, axes
        at = axes.get_yaxis_transform() if is_y else axes.get_xaxis_transform()
        lines = PathPatch(Outline([(0, 0)]), facecolor="none", edgecolor=FAINT, linewidth=0.8, transform=at)
        self.lines = picture.move(axes.add_artist(lines))
        side = {"ha": "right", "va": "center"} if is_y else {"ha": "center", "va": "top"}
        style = {"fontsize": 9, "color": GREY, "transform": at, **side, **style}
        self.words = [picture.stamp(-0.01, -0.02, axes, **style) for _ in range(most)]

    def show(self, ticks: Iterable[tuple[float, str]]) -> None:
        """Place the ticks, each a value of the axis and its words."""
        ticks = list(ticks)
        ends = [(share, place) if self.is_y else (place, share) for place, _ in ticks for share in (0, 1)]
        self.lines.set_path(Outline(ends or [(0, 0)], [Outline.MOVETO, Outline.LINETO] * len(ticks) or None))
        for number, text in enumerate(self.words):
            place, words = ticks[number] if number < len(ticks) else (0, "")
            text.set_text(words)
            (text.set_y if self.is_y else text.set_x)(place)


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most ``most`` round values from ``low`` to ``high``, evenly spaced.

    >>> round_ticks(0, 4.1)
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    values = MaxNLocator(most - 1, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high).tolist()
    return [value for value in values if low <= value <= high]


def bare(axes, x_label: str = "", y_label: str = "", *, grid: str = "both", hides=("top", "right"), **ticks) -> None:
    """Axes as the book draws them: a pale grid behind, small grey numbers, no frame above and beside."""
    axes.spines[list(hides)].set_visible(False)
    axes.grid(axis=grid, color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(**{"colors": GREY, "labelsize": 9, **ticks})
    axes.set_xlabel(x_label, fontsize=9.5, color=INK)
    axes.set_ylabel(y_label, fontsize=9.5, color=INK)


def hatched(cls, *args, **kwargs):
    """A patch whose hatch is drawn in white lines of the book's width."""
    with matplotlib.rc_context({"hatch.linewidth": HATCH_WIDTH}):
        return cls(*args, edgecolor="white", **kwargs)
