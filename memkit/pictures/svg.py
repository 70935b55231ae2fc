"""A chart as text: rectangles, lines and words, written as SVG, which the page draws itself.

It needs the standard library alone, so the same function serves a panel, a stored output, a file in ``figures/``, a
handout and a page without a kernel. Ink is the page's own text colour (``currentColor``) and pale things are shares of
it, so a picture follows a light or a dark page. Nothing is told by colour alone: what has a colour has a hatch, a mark
or a name too. Bytes, line and part of a mark stand in its ``<title>``, which a browser shows under the pointer without
any script, and in ``data-`` attributes, by which a panel knows what was clicked.

``png_of`` is the twin in pixels of a picture, for viewers that draw no SVG: GitHub, a notebook that nobody has trusted
yet. ``resvg-py`` is one wheel without dependencies; where it is missing a picture has no twin, and its words say what
it shows. The font is DejaVu Sans, which matplotlib carries, so that the pixels are the same on every machine.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from zlib import crc32

from memkit.pictures.colours import HATCHES


@cache
def fonts() -> tuple[str, ...]:
    """The files of DejaVu Sans beside matplotlib; none without it."""
    spec = find_spec("matplotlib")
    folder = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" if spec else Path()
    return tuple(
        str(folder / name)
        for name in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")
        if (folder / name).exists()
    )


def png_of(svg: str, zoom: float = 1.0) -> bytes | None:
    """An SVG as a PNG on white, ``zoom`` times its size; ``None`` without ``resvg-py``."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        return None
    return bytes(
        svg_to_bytes(
            svg_string=svg,
            background="#ffffff",
            zoom=zoom,
            skip_system_fonts=bool(fonts()),
            font_files=list(fonts()),
            font_family="DejaVu Sans",
            sans_serif_family="DejaVu Sans",
        )
    )


INK, GREY, FAINT = 1.0, 0.72, 0.2
"""Shades: shares of the page's ink. Words in ``GREY`` stand at 7 : 1 on white and on JupyterLab's dark ground."""
PAPER = "var(--memkit-paper,#fff)"
"""The ground behind words that stand on a colour; a page sets ``--memkit-paper`` to its own."""
EDGED = {"stroke": "currentColor", "stroke_opacity": 0.5}
"""The style of a pale mark, whose edge is ink."""
FONT = "DejaVu Sans,Verdana,Arial,sans-serif"

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

CHARACTER, BOLD, LINE_HEIGHT = 0.63, 1.12, 1.18
"""Width of a usual character as a share of the font's size (DejaVu Sans, the widest font of ``FONT``), how much wider
a bold one is, and the height of a line."""


def text_width(text: str, size: float, bold: bool = False) -> float:
    """About how wide the longest line of a text is, in the chart's units.

    >>> round(text_width("weights\\nand more", 10), 1)
    50.4
    """
    return max(map(len, text.split("\n"))) * CHARACTER * size * (BOLD if bold else 1)


class Chart:
    """Marks on a page of ``width`` × ``height`` units, a unit a pixel at full size; ``alt`` tells them in words.

    ``title`` and below it ``subtitle``, the line of provenance, stand at the upper left.
    """

    def __init__(self, width: float, height: float, title: str = "", subtitle: str = ""):
        self.width, self.height, self.title, self.alt = width, height, title, title
        self.marked: object = None  # the ``data-pick`` of the mark that is framed
        self._marks: list[str] = []
        self._fills: dict[tuple[str, str], str] = {}
        self._boxes: list[tuple[float, float, float, float]] = []
        self.words(10, 19, title, 15, bold=True)
        self.words(10, 43, subtitle, 12, shade=GREY)

    def rect(
        self, x, y, width, height, look=None, *, shade=INK, tip="", data=None, **style
    ) -> None:
        """A rectangle from its upper left corner; ``shade`` pales its look. A mark without a look is an outline."""
        box = {"x": x, "y": y, "width": max(width, 0), "height": max(height, 0)}
        self._mark("rect", {**box, **self._painted(look, shade), **style}, tip, data)

    def bar(self, left, right, y, tall, look=None, **rest) -> None:
        """A rectangle from left to right around a height, as ``rect`` draws it."""
        self.rect(left, y - tall / 2, right - left, tall, look, **rest)

    def line(
        self,
        points: Sequence[tuple[float, float]],
        colour="currentColor",
        *,
        shade=INK,
        tip="",
        data=None,
        **style,
    ) -> None:
        """A line through points."""
        paint = {
            "fill": "none",
            "stroke": colour,
            **({} if shade == INK else {"stroke_opacity": shade}),
        }
        self._mark("path", {"d": _path(points), **paint, **style}, tip, data)

    def area(
        self,
        outlines: Iterable[Sequence[tuple[float, float]]],
        look=None,
        *,
        shade=INK,
        tip="",
        data=None,
        **style,
    ) -> None:
        """Closed outlines as one mark."""
        path = "".join(_path(outline) + "Z" for outline in outlines)
        self._mark("path", {"d": path, **self._painted(look, shade), **style}, tip, data)

    def words(
        self,
        x,
        y,
        text: str,
        size=12,
        *,
        anchor="start",
        shade=INK,
        bold=False,
        at="middle",
        boxed=False,
    ):
        """Words; ``x`` is where they start, end or have their middle, ``y`` their middle, ``top`` or ``bottom``."""
        if not text:
            return
        lines = text.split("\n")
        left, top, right, bottom = _box(x, y, text, size, anchor, bold, at)
        self.keep_clear(left, top, right, bottom)
        if boxed:
            self.rect(left - 1, top, right - left + 2, bottom - top, (PAPER, ""))
        base = top + size * 0.9
        spans = "".join(
            f'<tspan x="{_short(x)}" dy="{_short(size * LINE_HEIGHT) if number else 0}">{escape(line)}</tspan>'
            for number, line in enumerate(lines)
        )
        style = {
            "y": base,
            "font_size": size,
            **({"text_anchor": anchor} if anchor != "start" else {}),
        }
        style |= {
            **({"fill_opacity": shade} if shade != INK else {}),
            **({"font_weight": "bold"} if bold else {}),
        }
        single = f' x="{_short(x)}"' if len(lines) == 1 else ""
        self._marks.append(
            f"<text{single}{_written(style)}>{escape(text) if single else spans}</text>"
        )

    def place(
        self,
        *ways: Sequence[tuple[float, float, str]],
        size=12,
        anchor="middle",
        at="middle",
        **look,
    ) -> int:
        """Labels (x, y, text) in the first of several ways in which none touches another or what stands already.

        If all touch, the way that touches least. Returns its number. This is the one rule for crowded labels.
        """
        touching = []
        for number, way in enumerate(ways):
            boxes = [
                _box(x, y, text, size, anchor, look.get("bold", False), at)
                for x, y, text in way
                if text
            ]
            count = sum(_touch(a, b) for a, b in combinations(boxes, 2))
            count += sum(_touch(box, other) for box in boxes for other in self._boxes)
            touching.append((count, number))
            if not count:
                break
        chosen = min(touching)[1]
        for x, y, text in ways[chosen]:
            self.words(x, y, text, size, anchor=anchor, at=at, **look)
        return chosen

    def row(self, labels: Sequence[tuple[float, str]], y, size=12, **look) -> None:
        """Labels side by side: plain, else each broken into lines, else every other one lower and smaller."""
        plain = [(x, y, text) for x, text in labels]
        broken = [(x, y, text.replace("_", "_\n").replace(" ", "\n")) for x, text in labels]
        self.place(plain, broken, size=size, at=look.pop("at", "top"), **look)

    def keep_clear(self, left, top, right, bottom) -> None:
        """Labels that ``place`` sets stay out of here."""
        self._boxes.append((left, top, right, bottom))

    def legend(
        self, entries: Iterable[tuple[tuple[str, str], str]], x, y, width, size=12, row=0
    ) -> float:
        """Swatches with names (two lines at most, the second pale) from the left, in rows of a width; the lower end."""
        left, row = x, row or size * 1.7
        for look, name in entries:
            first, _, second = name.partition("\n")
            needed = 30 + max(text_width(first, size), text_width(second, size))
            if left > x and left + needed > x + width:
                left, y = x, y + row
            edge = EDGED if look[0] == PAPER else {}
            self.rect(left, y - size * 0.6, 22, size * 1.2 + bool(second) * size, look, **edge)
            self.words(left + 29, y, first, size)
            self.words(left + 29, y + size * 1.25, second, size, shade=GREY)
            left += needed + 16
        return y + row

    @property
    def key(self) -> str:
        """The picture's own id, the same for the same marks."""
        return f"m{crc32(''.join(self._marks).encode()):08x}"

    def frame_style(self) -> str:
        """The style that frames the mark whose ``data-pick`` is ``marked``: a panel sends it without the picture."""
        if self.marked is None:
            return ""
        return f'#{self.key} [data-pick="{self.marked}"]{{stroke:currentColor;stroke-width:3px}}'

    def svg(self, stands_alone: bool = False, style: str = "") -> str:
        """The picture as text; one that stands alone has its own ink and ground, light or dark as the reader's page."""
        key, marks = self.key, "".join(self._marks)
        patterns = "".join(
            f'<pattern id="{KEY}-{number}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<rect width="8" height="8" fill="{colour}"/>'
            f'<path d="{HATCHES[hatch]}" stroke="#fff" stroke-opacity="0.38" stroke-width="1"/></pattern>'
            for number, (colour, hatch) in enumerate(self._fills)
        )
        if stands_alone:
            style += OWN_GROUND.replace(KEY, key) + self.frame_style()
        width, height = _short(self.width), _short(self.height)
        head = {
            "xmlns": "http://www.w3.org/2000/svg",
            "id": key,
            "viewBox": f"0 0 {width} {height}",
            "width": width,
            "height": height,
            "role": "img",
            "aria-labelledby": f"{key}-t {key}-d",
            "font-family": FONT,
            "fill": "currentColor",
            **({"color": "#1a1a1a"} if stands_alone else {}),
        }
        words = f'<title id="{key}-t">{escape(self.title)}</title><desc id="{key}-d">{escape(self.alt)}</desc>'
        styled = f"<style>{style}</style>" if style else ""
        drawn = f"<defs>{patterns}</defs>{marks}".replace(KEY, key)
        return f"<svg{_written(head)}>{words}{styled}{drawn}</svg>"

    def html(self) -> str:
        """The picture within a page: as wide as there is room, at most its own width, at least 600 pixels."""
        least = min(600, self.width)
        style = f"width:100%;height:auto;min-width:{least}px;max-width:{_short(self.width)}px;display:block"
        return self.svg().replace("<svg ", f'<svg style="{style}" ', 1)

    def png(self, zoom: float = 1.0) -> bytes | None:
        """The picture as pixels on white, for viewers that draw no SVG; ``None`` where ``resvg-py`` is missing."""
        light = (
            self.svg(style=self.frame_style())
            .replace("<svg ", '<svg color="#1a1a1a" ', 1)
            .replace(PAPER, "#fff")
        )
        return png_of(light, zoom)

    def write_files(self, stem: Path) -> None:
        """``stem``.svg and ``stem``.png, the same bytes each time."""
        stem.with_suffix(".svg").write_text(self.svg(stands_alone=True), encoding="utf-8")
        stem.with_suffix(".png").write_bytes(self.png(2))

    def _repr_mimebundle_(self, **_kwargs) -> tuple[dict, dict]:
        """What a notebook stores: pixels, which every viewer shows, and the SVG only where no pixels can be made.

        Of an inline SVG in a notebook that nobody has trusted yet both Jupyters leave only the words.
        """
        kind, data = "image/svg+xml", self.svg(stands_alone=True)
        if pixels := self.png():
            kind, data = "image/png", base64.b64encode(pixels).decode()
        return {kind: data, "text/plain": self.alt}, {kind: {"alt": self.alt}}

    def _painted(self, look: tuple[str, str] | None, shade: float) -> dict:
        """``fill`` of a look: its colour, or the pattern of colour and hatch."""
        if look is None:
            return {"fill": "none"}
        if look[1]:
            fill = self._fills.setdefault(look, f"url(#{KEY}-{len(self._fills)})")
        else:
            fill = look[0]
        return {"fill": fill} if shade == INK else {"fill": fill, "fill_opacity": shade}

    def _mark(self, tag: str, attributes: Mapping, tip: str, data: Mapping | None) -> None:
        written = _written(
            {**attributes, **{f"data-{name}": str(value) for name, value in (data or {}).items()}}
        )
        self._marks.append(
            f"<{tag}{written}><title>{escape(tip)}</title></{tag}>" if tip else f"<{tag}{written}/>"
        )


KEY = "\x00"
"""Stands in a mark for the name of the picture, which is known when it is whole."""
OWN_GROUND = (
    f"#{KEY}{{color:#1a1a1a;background:#fff}}@media(prefers-color-scheme:dark){{#{KEY}{{color:#ececec;background:#161616;"
    "--memkit-paper:#161616}}"
)
PAPER_OF = "--memkit-paper:var(--jp-layout-color0,Canvas)"
"""JupyterLab's ground, or that of the page's own scheme, light or dark."""


def _short(value: float) -> str:
    return f"{round(value, 1):g}"


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Points as a path, level and upright pieces by one number."""
    commands, before = [], ("", "")
    for number, (x, y) in enumerate(points):
        now = _short(x), _short(y)
        if not number:
            commands.append(f"M{now[0]} {now[1]}")
        elif now[1] == before[1]:
            commands.append(f"H{now[0]}" if now != before else "")
        else:
            commands.append(f"V{now[1]}" if now[0] == before[0] else f"L{now[0]} {now[1]}")
        before = now
    return "".join(commands)


def _written(attributes: Mapping) -> str:
    """Attributes as they stand in a tag."""
    return "".join(
        f' {name.replace("_", "-")}="{escape(value) if isinstance(value, str) else _short(value)}"'
        for name, value in attributes.items()
    )


def _box(
    x, y, text: str, size, anchor: str, bold: bool, at: str
) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of words."""
    width, height = text_width(text, size, bold), size * (1.16 + LINE_HEIGHT * text.count("\n"))
    left = x - {"start": 0, "middle": width / 2, "end": width}[anchor]
    top = y - {"top": 0, "middle": height / 2, "bottom": height}[at]
    return left, top, left + width, top + height


def _touch(a: tuple, b: tuple) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
