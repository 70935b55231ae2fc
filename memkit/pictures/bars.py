"""Stacked bars from a table: standing side by side (a step, its choices), or lying below one another (recipes).

A caller gives names and numbers; places, axis, legend, the tip of each piece and its ``data-`` attributes follow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from memkit.pictures.colours import LOOKS, looks_of
from memkit.pictures.svg import (
    DASHED,
    GREY,
    PAPER,
    WIDE,
    Chart,
    Scale,
    broken,
    byte_ticks,
    draw_limit,
    redrawn,
    text_width,
)
from memkit.units import format_bytes

LEFT, RIGHT, TOP = 92, 612, 72
"""Ends of the room for standing bars; their legend is to the right of it."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: its pieces in bytes from the bottom, what stands above it and below.

    Neighbours of one ``group`` stand together, over the first of its words. ``whose`` is said in the tip of a
    piece, and ``data`` goes with it.
    """

    name: str
    pieces: Mapping[str, int]
    above: str = ""
    group: tuple = ("",)
    whose: str = ""
    data: Mapping = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.pieces.values())


def short(num_bytes: int) -> str:
    """Bytes in three or four digits, for the top of a narrow bar.

    >>> short(97 * 2**20 + 2**19), short(949 * 2**20)
    ('97.5 MiB', '949 MiB')
    """
    text = format_bytes(num_bytes, 1)
    return text if len(text.split()[0]) < 5 else format_bytes(num_bytes, 0)


def bars_figure(
    title: str,
    bars: Sequence[Bar],
    *,
    beside: Sequence[tuple[str, str]],
    head: str = "",
    notes: str = "",
    subtitle: str = "",
    limit: tuple[str, int] | None = None,
    chosen: int = -1,
    spans: Mapping[str, Sequence[int]] | None = None,
    foot: str = "",
    width: float = WIDE,
) -> Chart:
    """Bars side by side on one axis of bytes.

    ``beside`` is the legend, parts with their words, under ``head`` and above ``notes``. ``limit`` is a card's name
    and bytes, a line where it is near; a triangle marks the ``chosen`` bar; ``spans`` names stretches of bars, and
    ``foot`` says what the texts are. On a narrow page the bars lie below one another, and the legend below them.
    """
    chart = Chart(width, 430, title, subtitle)
    tallest = max(max(bar.total for bar in bars), 4)
    most = 1.16 * tallest
    if limit and limit[1] <= 2.8 * tallest:  # a card that is far away would press the bars flat
        most = max(most, 1.08 * limit[1])
    if chart.is_narrow:
        bottom = _lying(chart, bars, most, limit, chosen, spans or {}, foot)
        _beside(chart, head, beside, notes, 10, bottom, width - 16)
        return chart
    y = Scale(low=0, high=most, start=345, end=TOP)
    y.ticks_beside(chart, byte_ticks(most), LEFT, RIGHT)
    changes = (a.group != b.group for a, b in pairwise(bars))
    gaps = [0.3 * number for number in accumulate(changes, initial=0)]
    x = Scale(low=-0.65, high=len(bars) - 0.35 + gaps[-1], start=LEFT, end=RIGHT)
    places, tall = [x(number + gap) for number, gap in enumerate(gaps)], 0.88 * (x(1) - x(0))
    placed = list(zip(bars, places, strict=True))
    for bar, place in placed:
        left, right = place - tall / 2, place + tall / 2
        _stack(chart, bar, lambda low, high, left=left: (left, y(high), tall, y(low) - y(high)))
        chart.keep_clear(left, y(bar.total), right, y.start)
    if limit:
        draw_limit(chart, y, limit[1], LEFT, RIGHT, limit[0])
    tops = [(place, y(bar.total) - 3, bar.above) for bar, place in placed]
    lines = [(place, height, text.replace(" ", "\n", 1)) for place, height, text in tops]
    way = chart.place(tops, lines, size=11.5, at="bottom", boxed=True)
    if chosen >= 0:
        left, top, text = (tops, lines)[way][chosen]
        mark = top - 14 * (text.count("\n") + 1)
        chart.words(left, mark, "▼", 11, anchor="middle", at="bottom")
    chart.row([(place, bar.name) for bar, place in placed], y.start + 5, 11.5, shade=GREY)
    groups: dict[tuple, list[float]] = {}
    for bar, place in placed:
        groups.setdefault(bar.group, []).append(place)
    names = [(sum(of) / len(of), group[0]) for group, of in groups.items()]
    chart.row(names, y.start + 21, 11.5)
    for words, span in (spans or {}).items():
        ends = places[span[0]] - tall / 2, places[span[-1]] + tall / 2
        chart.line([(ends[0], 403), (ends[1], 403)], shade=GREY)
        chart.words(sum(ends) / 2, 407, words, 12, anchor="middle", at="top")
    _beside(chart, head, beside, notes, 630, 12, 170)
    chart.words(LEFT, 408, foot, 12)
    return chart


def _beside(chart: Chart, head: str, beside, notes: str, left: float, top: float, width: float):
    """What stands beside or below bars: their legend under ``head`` and above ``notes``; the chart ends below it."""
    chart.words(left, top, head, 13, bold=True, at="top")
    entries = [(LOOKS[part], words) for part, words in beside]
    row = 45 if "\n" in beside[0][1] else 29
    first = top + 14 + 16 * len(head.splitlines()) if chart.is_narrow else TOP
    end = chart.legend(entries, left, first, width, 12.5, row=row)
    chart.words(left, end, notes, 12, at="top", shade=GREY)
    if chart.is_narrow:
        chart.height = end + 15 * len(notes.splitlines()) + 4


def _lying(
    chart: Chart,
    bars: Sequence[Bar],
    most: float,
    limit: tuple[str, int] | None,
    chosen: int,
    spans: Mapping[str, Sequence[int]],
    foot: str,
) -> float:
    """Bars from the left, each below its name and its bytes; where they end. An axis of bytes follows."""
    x, top = Scale(low=0, high=most, start=10, end=chart.width - 10), 56 + chart.lower
    begins, y, texts = {span[0]: words for words, span in spans.items()}, top, []
    for number, bar in enumerate(bars):
        if number in begins:
            chart.words(10, y, begins[number], 12, shade=GREY, at="top")
            y += 18
        name = " ".join(f"{bar.group[0]} {bar.name}".split())
        look = {"at": "top", "bold": number == chosen, "boxed": True}
        texts.append((10, y, f"{'▸ ' * look['bold']}{name}", look))
        texts.append((x.end, y, bar.above.replace("\n", ", "), look | {"anchor": "end"}))
        _stack(chart, bar, lambda low, high, y=y: (x(low), y + 16, x(high) - x(low), 14))
        y += 37
    if limit and limit[1] < most:
        tip = f"{limit[0] or 'card'}: {format_bytes(limit[1])}"
        ends = [(x(limit[1]), top), (x(limit[1]), y)]
        chart.line(
            ends, stroke_width=1.6, stroke_dasharray=DASHED, tip=tip, data={"bytes": limit[1]}
        )
    for across, high, text, look in texts:  # on the card's line
        chart.words(across, high, text, 12, **look)
    (_, none), *ticks = byte_ticks(most)
    wide = max(text_width(words, 12) for _, words in ticks)
    every = 1 + (wide + 8 > x(ticks[0][0]) - x(0))
    ticks = [tick for tick in ticks[every - 1 :: every] if x(tick[0]) + wide / 2 < chart.width - 2]
    x.ticks_below(chart, [(0, none.split()[0]), *ticks], y - 2, y)
    foot = broken(foot, chart.width - 20, 12)
    chart.words(10, y + 24, foot, 12, at="top")
    return y + 30 + 15 * len(foot.splitlines())


def _stack(chart: Chart, bar: Bar, box: Callable) -> None:
    """The pieces of a bar, each in the box from its lower to its upper end, with its bytes under the pointer."""
    ends = accumulate(bar.pieces.values(), initial=0)
    for (part, size), (low, high) in zip(bar.pieces.items(), pairwise(ends), strict=True):
        if size:
            tip = f"{part.replace('_', ' ')}: {format_bytes(size)}, {bar.whose or bar.name}"
            style = {"stroke": "#fff", "stroke_width": 0.7, "tip": tip}
            style["data"] = {"part": part, "bytes": size, **bar.data}
            chart.rect(*box(low, high), LOOKS[part], **style)


@redrawn
def rows_figure(
    rows: Mapping[str, Mapping[str, float]], title: str, unit: str = "", width: float = WIDE
) -> Chart:
    """A stacked bar for each row, from the left, in ``unit``: addends of recipes, what blocks keep, claims by verdict.

    Raises: ValueError: no row.

    >>> rows_figure({"fp32": {"weight": 4, "gradient": 4}}, "Bytes per parameter").alt
    'Bytes per parameter: fp32 8.'
    """
    if not rows:
        raise ValueError("rows={} have nothing to draw; allowed is at least one bar")
    totals = {row: sum(pieces.values()) for row, pieces in rows.items()}
    looks = looks_of(list(dict.fromkeys(name for pieces in rows.values() for name in pieces)))
    chart, after = Chart(width, 0, title), f" {unit}" if unit else ""
    entries = [(look, name) for name, look in looks.items()]
    top = chart.legend(entries, 10, 46 + chart.lower, width - 20) + 8
    left, tall, right = 24 + max(text_width(row, 12.5) for row in rows), 34, width - 10
    if chart.is_narrow:  # a row's words stand above its bar
        left, tall, top = 10, 48, top + 16
    else:
        right -= text_width(after, 12.5)
    chart.height = top + tall * len(rows)
    most = max(totals.values()) * (1 if chart.is_narrow else 1.09)
    x = Scale(low=0, high=most, start=left, end=right)
    for number, (row, pieces) in enumerate(rows.items()):
        y, ends = top + 12 + tall * number, accumulate(pieces.values(), initial=0)
        for (name, size), (start, end) in zip(pieces.items(), pairwise(ends), strict=True):
            tip, data = f"{name}: {size:.4g}{after}, {row}", {"name": name, "size": f"{size:.6g}"}
            chart.bar(x(start), x(end), y, 24, looks[name], tip=tip, data=data, stroke=PAPER)
            if text_width(f"{size:.3g}", 12) < x(end) - x(start):
                chart.words(x((start + end) / 2), y, f"{size:.3g}", 12, anchor="middle", boxed=True)
        total = f"{totals[row]:.4g}{after}"
        if chart.is_narrow:
            room = right - left - text_width(total, 12.5, bold=True) - 4
            chart.words(left, y - 21, row, 12.5 if text_width(row, 12.5) < room else 11)
            chart.words(right, y - 21, total, 12.5, anchor="end", bold=True)
            continue
        chart.words(left - 10, y, row, 12.5, anchor="end")
        chart.words(x(totals[row]) + 8, y, total, 12.5, bold=True)
    chart.alt = (
        f"{title}: {'; '.join(f'{row} {total:.4g}{after}' for row, total in totals.items())}."
    )
    return chart
