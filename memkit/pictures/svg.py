"""A chart as text: rectangles, lines, words and scales, written as SVG, which the page draws itself.

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
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from html import escape
from importlib.util import find_spec
from itertools import combinations, groupby
from pathlib import Path
from textwrap import wrap
from zlib import crc32

from memkit.pictures.colours import HATCHES
from memkit.units import format_bytes


@cache
def fonts() -> tuple[str, ...]:
    """The files of DejaVu Sans beside matplotlib; none without it."""
    spec = find_spec("matplotlib")
    folder = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" if spec else Path()
    files = (folder / name for name in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"))
    return tuple(str(file) for file in files if file.exists())


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
PAPER_OF = "--memkit-paper:var(--jp-layout-color0,Canvas)"
"""JupyterLab's ground, or that of the page's own scheme, light or dark."""
KEY = "\x00"
"""Stands in a mark for the name of the picture, which is known when it is whole."""
OWN_GROUND = (
    f"#{KEY}{{color:#1a1a1a;background:#fff}}@media(prefers-color-scheme:dark){{#{KEY}{{color:#ececec;background:#161616;"
    "--memkit-paper:#161616}}"
)
FONT = "DejaVu Sans,Verdana,Arial,sans-serif"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
DASHED = "6 4"
WIDE, NARROW = 800, 340
"""Units across of a picture in a notebook, and of its twin for a phone, which shows them as so many pixels."""
CHARACTER, BOLD, LINE_HEIGHT = 0.63, 1.12, 1.18
"""Width of a usual character as a share of the font's size (DejaVu Sans, the widest font of ``FONT``), how much wider
a bold one is, and the height of a line."""


def text_width(text: str, size: float, bold: bool = False) -> float:
    """About how wide the longest line of a text is, in the chart's units.

    >>> round(text_width("weights\\nand more", 10), 1)
    50.4
    """
    return max(map(len, text.split("\n"))) * CHARACTER * size * (BOLD if bold else 1)


def broken(text: str, width: float, size: float, bold: bool = False) -> str:
    """A text in lines of a width at most, as its words allow."""
    most = int(width / text_width("n", size, bold))
    return "\n".join(piece for line in text.split("\n") for piece in wrap(line, most))


def redrawn(figure: Callable) -> Callable:
    """A figure whose chart can be drawn anew with another ``width``: ``chart.narrow`` for a phone."""

    @wraps(figure)
    def drawn(*given, **named):
        chart = figure(*given, **named)
        chart.anew = lambda width: figure(*given, **named, width=width)
        return chart

    return drawn


class Chart:
    """Marks on a page of ``width`` × ``height`` units, a unit a pixel at full size; ``alt`` tells them in words.

    ``title`` and below it ``subtitle``, the line of provenance, stand at the upper left. A mark has a look (colour and
    hatch; none: an outline) or a colour, paled by ``shade``; ``tip`` is told under the pointer, ``data`` are its
    ``data-`` attributes, and any other keyword is an attribute of SVG.
    On a narrow page the title is broken: ``lower`` is how much lower all else begins.
    """

    def __init__(self, width: float, height: float, title: str = "", subtitle: str = ""):
        self.width, self.height, self.title, self.alt = width, height, title, title
        self.marked: object = None  # the ``data-pick`` of the mark that is framed
        self.anew: Callable | None = None  # draws it with another width
        self._marks: list[str] = []
        self._fills: dict[tuple[str, str], str] = {}
        self._boxes: list[tuple[float, float, float, float]] = []
        self.is_narrow, self.lower = width == NARROW, 0.0
        if self.is_narrow and title:
            title, subtitle = broken(title, width - 12, 14, True), broken(subtitle, width - 12, 12)
            lines = title.count("\n"), subtitle.count("\n")
            self.words(6, 10, title, 14, bold=True, at="top")
            self.words(6, 34 + 17 * lines[0], subtitle, 12, shade=GREY, at="top")
            self.lower = 17.0 * lines[0] + 15 * lines[1]
            return
        self.words(10, 19, title, 15, bold=True)
        self.words(10, 43, subtitle, 12, shade=GREY)

    def rect(self, x, y, width, height, look=None, **rest) -> None:
        """A rectangle from its upper left corner."""
        box = {"x": x, "y": y, "width": max(width, 0), "height": max(height, 0)}
        self._mark("rect", box, look, **rest)

    def bar(self, left, right, y, tall, look=None, **rest) -> None:
        """A rectangle from left to right around a height, as ``rect`` draws it."""
        self.rect(left, y - tall / 2, right - left, tall, look, **rest)

    def area(self, outlines: Iterable[Sequence[tuple[float, float]]], look=None, **rest) -> None:
        """Closed outlines as one mark."""
        self._mark("path", {"d": "".join(_path(each) + "Z" for each in outlines)}, look, **rest)

    def line(
        self, points: Sequence[tuple[float, float]], colour="currentColor", *, shade=INK, **rest
    ) -> None:
        """A line through points."""
        stroke = {"stroke": colour, "stroke_opacity": _unless(shade, INK)}
        self._mark("path", {"d": _path(points)}, None, **stroke, **rest)

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
    ) -> None:
        """Words; ``x`` is where they start, end or have their middle, ``y`` their middle, ``top`` or ``bottom``."""
        if not text:
            return
        left, top, right, bottom = _box(x, y, text, size, anchor, bold, at)
        self.keep_clear(left, top, right, bottom)
        if boxed:
            self.rect(left - 1, top, right - left + 2, bottom - top, (PAPER, ""))
        first, *others = map(escape, text.split("\n"))
        inside, x = first, _short(x)
        if others:
            steps = [0, *[_short(size * LINE_HEIGHT)] * len(others)]
            lines = zip(steps, (first, *others), strict=True)
            inside = "".join(f'<tspan x="{x}" dy="{dy}">{line}</tspan>' for dy, line in lines)
        style = {
            "x": None if others else x,
            "y": top + size * 0.9,
            "font_size": size,
            "text_anchor": _unless(anchor, "start"),
            "fill_opacity": _unless(shade, INK),
            "font_weight": "bold" if bold else None,
        }
        self._marks.append(f"<text{_written(style)}>{inside}</text>")

    def place(
        self,
        *ways: Sequence[tuple[float, float, str]],
        size=12,
        anchor="middle",
        at="middle",
        bold=False,
        **look,
    ) -> int:
        """Labels (x, y, text) in the first of several ways in which none touches another or what stands already.

        If all touch, the way that touches least. Returns its number. This is the one rule for crowded labels.
        """
        touching = []
        for number, way in enumerate(ways):
            boxes = [_box(x, y, text, size, anchor, bold, at) for x, y, text in way if text]
            count = sum(_touch(a, b) for a, b in combinations(boxes, 2))
            count += sum(_touch(box, other) for box in boxes for other in self._boxes)
            touching.append((count, number))
            if not count:
                break
        chosen = min(touching)[1]
        for x, y, text in ways[chosen]:
            self.words(x, y, text, size, anchor=anchor, at=at, bold=bold, **look)
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
            edge = {"stroke": "currentColor", "stroke_opacity": 0.5} if look[0] == PAPER else {}
            self.rect(left, y - size * 0.6, 22, size * 1.2 + bool(second) * size, look, **edge)
            self.words(left + 29, y, first, size)
            self.words(left + 29, y + size * 1.25, second, size, shade=GREY)
            left += needed + 16
        return y + row

    def narrow(self) -> "Chart":
        """The picture drawn anew for a phone, the same mark framed; only of a figure that is ``redrawn``."""
        chart = self.anew(NARROW)
        chart.alt, chart.marked = self.alt, self.marked
        return chart

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
            "color": "#1a1a1a" if stands_alone else None,
        }
        words = f'<title id="{key}-t">{escape(self.title)}</title><desc id="{key}-d">{escape(self.alt)}</desc>'
        styled = f"<style>{style}</style>" if style else ""
        drawn = f"<defs>{patterns}</defs>{marks}".replace(KEY, key)
        return f"<svg{_written(head)}>{words}{styled}{drawn}</svg>"

    def html(self) -> str:
        """The picture within a page: as wide as there is room, at most its own width, at least 600 pixels.

        A narrow one has no least width, and grows on a page that is not much wider.
        """
        least, most = (
            (0, 1.4 * self.width) if self.is_narrow else (min(600, self.width), self.width)
        )
        style = (
            f"width:100%;height:auto;min-width:{least}px;max-width:{_short(most)}px;display:block"
        )
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
        """``stem``.svg and ``stem``.png, and ``stem``-narrow.svg for a phone, the same bytes each time."""
        pictures = {"": self} | ({"-narrow": self.narrow()} if self.anew else {})
        for end, chart in pictures.items():
            file = stem.with_name(f"{stem.name}{end}.svg")
            file.write_text(chart.svg(stands_alone=True), encoding="utf-8")
        stem.with_suffix(".png").write_bytes(self.png(2))

    def _repr_mimebundle_(self, **_kwargs) -> tuple[dict, dict]:
        """What a notebook stores: pixels, which every viewer shows, and the SVG only where no pixels can be made.

        Of an inline SVG in a notebook that nobody has trusted yet both Jupyters leave only the words. So the pixels'
        metadata carry it, and its twin for a phone: a page that draws the notebook shows them in their place.
        """
        kind, data, told = "image/svg+xml", self.svg(stands_alone=True), {"alt": self.alt}
        if pixels := self.png():
            told["svg"] = data
            if self.anew:
                told["narrow"] = self.narrow().svg(stands_alone=True)
            kind, data = "image/png", base64.b64encode(pixels).decode()
        return {kind: data, "text/plain": self.alt}, {kind: told}

    def _mark(
        self, tag: str, place: Mapping, look: tuple | None, *, shade=INK, tip="", data=None, **style
    ) -> None:
        """A mark filled by its look: the colour, or the pattern of colour and hatch."""
        fill = look[0] if look else "none"
        if look and look[1]:
            fill = self._fills.setdefault(look, f"url(#{KEY}-{len(self._fills)})")
        data = {f"data-{name}": str(value) for name, value in (data or {}).items()}
        paint = {"fill": fill, "fill_opacity": _unless(shade, INK)}
        written = _written({**place, **paint, **style, **data})
        title = f"><title>{escape(tip)}</title></{tag}>" if tip else "/>"
        self._marks.append(f"<{tag}{written}{title}")


def _unless(value: object, usual: object) -> object:
    """A value, or ``None`` where it is what stands without being written."""
    return None if value == usual else value


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
    """Attributes as they stand in a tag; one that is ``None`` does not."""
    return "".join(
        f' {name.replace("_", "-")}="{escape(value) if isinstance(value, str) else _short(value)}"'
        for name, value in attributes.items()
        if value is not None
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


Ticks = Iterable[tuple[float, str]]
"""Values of an axis, each with its words."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps values from ``low`` to ``high`` to places from ``start`` to ``end``, by size or by power; draws its ticks.

    >>> Scale(low=0, high=8, start=100, end=20)(2), Scale(low=1, high=100, start=0, end=50, is_log=True)(10)
    (80.0, 25.0)
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log2(max(value, 1e-300)), math.log2(low), math.log2(high)
        return self.start + (self.end - self.start) * (value - low) / ((high - low) or 1)

    def inside(self, value: float) -> float:
        """The place of a value, at the nearer end where it lies outside."""
        return self(min(max(value, self.low), self.high))

    def ticks_beside(self, chart: Chart, ticks: Ticks, left: float, right: float, label="") -> None:
        """Pale lines across at values, their words at the left, and what the axis is."""
        for value, words in ticks:
            chart.line([(left, self(value)), (right, self(value))], shade=FAINT)
            chart.words(left - 6, self(value), words, 12, anchor="end", shade=GREY)
        chart.words(left, self.end - 6, label, 12, at="bottom", shade=GREY)

    def ticks_below(self, chart: Chart, ticks: Ticks, top: float, bottom: float, label="") -> None:
        """Pale lines upwards at values, their words below, and what the axis is."""
        ticks = list(ticks)
        for value, _ in ticks:
            chart.line([(self(value), top), (self(value), bottom)], shade=FAINT)
        chart.row([(self(value), words) for value, words in ticks], bottom + 5, 12, shade=GREY)
        chart.words(
            (self.start + self.end) / 2, bottom + 24, label, 12.5, anchor="middle", at="top"
        )


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most ``most`` round values from ``low`` to ``high``, evenly spaced.

    >>> round_ticks(0, 4.1), round_ticks(0, 4096, 8)[-1]
    ([0.0, 1.0, 2.0, 3.0, 4.0], 4000.0)
    """
    power = 10.0 ** math.floor(math.log10((high - low) / most or 1))
    for step in (power * factor for factor in (1, 2, 2.5, 5, 10, 20, 25)):
        numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        if len(numbers) <= most:
            return [number * step for number in numbers]
    return []


def byte_ticks(most: float) -> list[tuple[float, str]]:
    """Round places of an axis of bytes from 0 on, all in one unit.

    >>> [words for _, words in byte_ticks(11.3 * 2**30)]
    ['0 GiB', '2 GiB', '4 GiB', '6 GiB', '8 GiB', '10 GiB']
    """
    unit = format_bytes(int(most)).split()[1]
    num_bytes = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(unit)
    return [(tick * num_bytes, f"{tick:g} {unit}") for tick in round_ticks(0, most / num_bytes)]


def draw_limit(
    chart: Chart, y: Scale, num_bytes: int | None, left: float, right: float, name: str = ""
) -> None:
    """A card's capacity as a dashed line across, where it is in view; a caller with room writes its name there."""
    if num_bytes and num_bytes < y.high:
        ends = [(left, y(num_bytes)), (right, y(num_bytes))]
        tip = f"{name or 'card'}: {format_bytes(num_bytes)}"
        chart.line(
            ends, stroke_width=1.6, stroke_dasharray=DASHED, tip=tip, data={"bytes": num_bytes}
        )


def thinned(places: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Places on a grid of pixels; of those in one column the first, the highest, the lowest and the last.

    >>> thinned([(0.1, 5), (0.2, 90), (0.3, 7), (0.4, 8), (0.4, 9), (3, 9)])
    [(0, 5.0), (0, 5.0), (0, 90.0), (0, 9.0), (3, 9.0)]
    """
    kept = []
    for x, column in groupby(places, key=lambda place: round(place[0])):
        heights = [round(2 * y) / 2 for _, y in column]
        if len(heights) > 2:
            heights = [heights[0], min(heights), max(heights), heights[-1]]
        kept += [(x, y) for y in heights]
    return kept
