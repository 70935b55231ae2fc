"""A matplotlib figure that redraws fast enough for a slider, and the colours of the book.

A ``Picture`` has two layers. What stays (axes, names, swatches) is rasterised once; what moves (bars,
numbers) is drawn over it at each update. So a live panel need not draw its axes again at each move of a
slider, and the same artists make the static twin inside the notebook and the files in ``figures/``. The
colours are Okabe and Ito's, which colour-blind readers can tell apart; beside its colour everything has a
hatch or a name.
"""

import base64
from io import BytesIO
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

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
    """A ``Figure`` whose moving artists are drawn over a background that is kept; ``alt`` describes it in
    words.

    ``move(artist)`` registers an artist of an axes as moving; ``write(text, words)`` changes a text that
    seldom changes; ``forget_background()`` follows any other change to what stays. A subclass sets its
    artists in one method, ``redraw``, and makes no new ones there. ``is_flat`` pictures hold only the colours
    of ``OKABE_ITO``, their mixes with white, and greys.
    """

    def __init__(self, width_inches: float = 8.0, height_inches: float = 4.3, is_flat: bool = True):
        super().__init__(figsize=(width_inches, height_inches), dpi=100, facecolor="white")
        FigureCanvasAgg(self)
        self.palette = _palette() if is_flat else None
        self.moving = []
        self.background = None
        self.alt = ""

    def move(self, artist):
        """Draw ``artist`` at every update, over the background."""
        artist.set_animated(True)
        self.moving.append(artist)
        return artist

    def write(self, text, words: str) -> None:
        """Change a text of the background, and redraw the background only if the words are new."""
        if text.get_text() != words:
            text.set_text(words)
            self.forget_background()

    def forget_background(self) -> None:
        """What stays has changed: the next ``png`` draws everything again."""
        self.background = None

    def png(self) -> bytes:
        """The picture as a PNG of compression level 1: quick to make, some 30 KiB."""
        if self.background is None:
            self.canvas.draw()
            self.background = self.canvas.copy_from_bbox(self.bbox)
        self.canvas.restore_region(self.background)
        for artist in self.moving:
            self.draw_artist(artist)
        rgba = self.canvas.buffer_rgba()
        image = Image.frombuffer("RGBA", rgba.shape[1::-1], rgba, "raw", "RGBA", 0, 1).convert("RGB")
        if self.palette:
            image = image.quantize(palette=self.palette, dither=Image.Dither.NONE)
        target = BytesIO()
        image.save(target, "png", compress_level=1)
        return target.getvalue()

    def write_files(self, stem: Path) -> None:
        """``stem``.svg and ``stem``.png for a page: the same bytes each time, on white, sharp on fine screens."""
        with matplotlib.rc_context({"svg.hashsalt": "memkit", "svg.fonttype": "path"}):
            self.savefig(stem.with_suffix(".svg"), metadata={"Date": None})
        self.savefig(stem.with_suffix(".png"), dpi=200, metadata={"Software": None})

    def _repr_mimebundle_(self, **_kwargs) -> tuple[dict, dict]:
        """What a notebook shows for a picture: the PNG, with ``alt`` as its text."""
        png = base64.b64encode(self.png()).decode()
        return {"image/png": png, "text/plain": self.alt}, {"image/png": {"alt": self.alt}}


def hatched(cls, *args, **kwargs):
    """A patch whose hatch is drawn in white lines of the book's width."""
    with matplotlib.rc_context({"hatch.linewidth": 1.1}):
        return cls(*args, edgecolor="white", **kwargs)
