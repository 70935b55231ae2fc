"""One code of a format, bit by bit, the next values on both sides of it, and one number in many formats.

Chapter 02's explorer. The three fields differ by colour, by hatch and by the name above them.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from memkit.formats.records import Format
from memkit.formats.single import CodeReading, Nearest, number_text, read_code
from memkit.pictures.colours import LOOKS, OKABE_ITO
from memkit.pictures.svg import (
    GREY,
    PAPER,
    SUPERSCRIPTS,
    WIDE,
    Chart,
    Scale,
    broken,
    redrawn,
    text_width,
)

WIDEST_BOX = 48
COMPARED = (
    *("float32", "tf32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"),
    *("float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn", "int8", "int4"),
)
"""The formats in which a number is shown side by side."""
SMALLEST_ERROR = 1e-9  # left end of the error axis


def draw_bits(chart: Chart, reading: CodeReading, top: float) -> float:
    """The bits in boxes by field, named above, and what they spell below; returns the lower end.

    A bit's ``data-pick`` is its place from the left. On a narrow page a row has 16 bits, and a legend names the fields.
    """
    fmt, bits, middle = reading.fmt, reading.bits, chart.width / 2
    in_row = min(len(bits), 16) if chart.is_narrow else len(bits)
    width = min(WIDEST_BOX, (chart.width - 40) / in_row)
    size = 17 if width > 32 else 13 if width > 18 else 9
    left, number, middles = middle - width * in_row / 2, 0, {}
    code = f"{fmt.name}   code {reading.code} = 0x{reading.code:0{-(-len(bits) // 4)}X}"
    names = [f"{field} = {int(digits, 2)}" for field, digits in reading.fields]
    if chart.is_narrow:
        code = broken(code, chart.width - 20, 14, bold=True)
        chart.words(middle, top, code, 14, anchor="middle", bold=True, at="top")
        looks = [
            (LOOKS[field], name) for (field, _), name in zip(reading.fields, names, strict=True)
        ]
        top = chart.legend(looks, 10, top + 34 + 17 * code.count("\n"), chart.width - 20) - 46
    else:
        chart.words(middle, top + 8, code, 15, anchor="middle", bold=True)
    edge = {"stroke": "currentColor", "stroke_opacity": 0.7}
    for field, digits in reading.fields:
        middles[field] = left + (number + len(digits) / 2) * width
        for place, digit in enumerate(digits):
            x, y = left + number % in_row * width, top + 70 + 52 * (number // in_row)
            tip = f"{field} bit {len(digits) - 1 - place}: {digit}"
            data = {"pick": number, "field": field}
            chart.bar(x, x + width, y, 44, LOOKS[field], shade=0.7, **edge, tip=tip, data=data)
            chart.bar(x + 0.2 * width, x + 0.8 * width, y, 28, (PAPER, ""), pointer_events="none")
            chart.words(x + width / 2, y, digit, size, anchor="middle")
            number += 1
    words = spelled(reading)
    if chart.is_narrow:
        top += 52 * ((len(bits) - 1) // in_row)
        words = broken(words, chart.width - 20, 12)
        chart.words(middle, top + 106, words, 12, anchor="middle", at="top")
        return top + 130 + 15 * words.count("\n")
    ways = names, list(middles), [field[:4] for field in middles]
    chart.place(
        *([(x, top + 36, name) for x, name in zip(middles.values(), way)] for way in ways),
        size=12.5,
    )
    chart.words(
        middle, top + 116, words, 16 if text_width(words, 16) < 780 else 11.5, anchor="middle"
    )
    return top + 130


def spelled(reading: CodeReading) -> str:
    """What the bits say: the product, its value and its kind."""
    if reading.kind in ("infinity", "NaN"):
        return reading.spelled
    kind = "" if reading.kind == "table entry" else f"   ({reading.kind})"
    return f"{reading.spelled} {reading.equals}{kind}"


def draw_neighbours(chart: Chart, reading: CodeReading, y: float) -> None:
    """The value between the next ones below and above, their distances to scale.

    The next values have ``data-pick``: ``below`` and ``above``.
    """
    middle, far = chart.width / 2, 0.3 * chart.width
    trio = (reading.below, reading.value, reading.above)
    gaps = [math.inf if None in pair else pair[1] - pair[0] for pair in pairwise(trio)]
    widest = max(filter(math.isfinite, gaps), default=0)
    away = [far * gap / widest if math.isfinite(gap) else far for gap in gaps]
    places = (middle - away[0], middle, middle + away[1])
    chart.line([(0.08 * chart.width, y), (0.92 * chart.width, y)], shade=GREY, stroke_width=1.2)
    chart.area(
        [[(middle, y - 12), (middle - 7, y - 24), (middle + 7, y - 24)]], ("currentColor", "")
    )
    texts = [reading.text(value) for value in trio]
    for x, value, side, text in zip(places, trio, ("below", "", "above"), texts, strict=True):
        if value is not None:
            chart.line([(x, y - 8), (x, y + 8)], stroke_width=1.8)
            if side:
                tells = {"tip": f"next {side}: {text}", "data": {"pick": side}}
                chart.rect(x - 22, y - 14, 44, 56, pointer_events="all", **tells)
    if chart.is_narrow:
        chart.words(middle, y + 22, texts[1], 13, anchor="middle")
        told = [f"next below: {texts[0]}", f"next above: {texts[2]}", " and ".join(map(_gap, gaps))]
        chart.words(10, y + 36, "\n".join(told), 12, at="top")
        return
    heights = (22, 22, 22), (40, 22, 40)
    chart.place(
        *([(x, y + h, text) for x, h, text in zip(places, way, texts)] for way in heights),
        size=13.5,
    )
    names = ("next below", "this value", "next above")
    sides = [(x, y + 40, name) for x, name in zip(places, names, strict=True)]
    chart.place(sides, sides[1:2], size=11.5, shade=GREY)
    for gap, pair in zip(gaps, pairwise(places), strict=True):
        at = sum(pair) / 2
        chart.place([(at, y - 14, _gap(gap))], [(at, y - 32, _gap(gap))], size=12, shade=GREY)


def _gap(gap: float) -> str:
    return f"gap {number_text(gap)}" if math.isfinite(gap) else ""


def bits_in_words(reading: CodeReading) -> str:
    """The picture in one sentence."""
    fields = ", ".join(f"{field} {digits}" for field, digits in reading.fields)
    return (
        f"The {len(reading.bits)} bits {reading.bits} of code {reading.code} in {reading.fmt.name}: {fields}; "
        f"{spelled(reading)}; next below {reading.text(reading.below)}, next above {reading.text(reading.above)}."
    )


def bit_figure(code: int, fmt: str | Format) -> Chart:
    """The bits of one code, what they spell, and the neighbours on a line with their distances to scale."""
    chart, reading = Chart(800, 260), read_code(code, fmt)
    draw_neighbours(chart, reading, draw_bits(chart, reading, 8) + 66)
    chart.title, chart.alt = f"{reading.fmt.name}, code {reading.code}", bits_in_words(reading)
    return chart


@redrawn
def explorer_figure(reading: CodeReading, rows: Sequence[Nearest], width: float = WIDE) -> Chart:
    """A code's bits and neighbours, and below them what each format makes of a number, and a bar for its error."""
    chart = Chart(width, 570)
    top = draw_bits(chart, reading, 8)
    draw_neighbours(chart, reading, top + 40)
    top, number = top + (126 if chart.is_narrow else 96), number_text(rows[0].number, 9)
    chart.words(10, top + 12, f"{number} in {len(rows)} formats", 15, bold=True)
    start, end, tall = (24, 200, 38) if chart.is_narrow else (320, 664, 24)
    x = Scale(low=SMALLEST_ERROR, high=1, start=start, end=end, is_log=True)
    powers = [(10.0**power, f"10{str(power).translate(SUPERSCRIPTS)}") for power in range(-9, 1, 3)]
    bottom = top + 28 + tall * len(rows)
    x.ticks_below(chart, powers, top + 30, bottom, "relative error")
    chart.height = bottom + 44
    for row, nearest in enumerate(rows):
        y, error = top + 42 + tall * row, nearest.relative_error
        end = max(x(min(error, 1)), x.start + 2) if error else x.start
        held, note = number_text(nearest.value, 9), note_on(nearest)
        tip, data = f"{nearest.fmt.name}: {held}, {note}", {"error": repr(float(error))}
        chart.words(10, y, nearest.fmt.name, 12.5)
        chart.words(width - 10 if chart.is_narrow else 308, y, held, 12.5, anchor="end")
        y += 16 * chart.is_narrow
        chart.bar(x.start, end, y, 16, (OKABE_ITO[1], "///"), tip=tip, data=data)
        chart.words(x.end + 12, y, note, 12.5)
    words = (f"{n.fmt.name} {number_text(n.value, 9)}, {note_on(n)}" for n in rows)
    chart.title = f"{reading.fmt.name}, code {reading.code}, and {number} in {len(rows)} formats"
    chart.alt = f"{bits_in_words(reading)} {number} as each format holds it: {'; '.join(words)}."
    return chart


def note_on(nearest: Nearest) -> str:
    """The error in words: ``exact``, a percentage, ``lost``, or what overflow did."""
    error = nearest.relative_error
    if nearest.is_beyond:
        return "saturated" if math.isfinite(nearest.value) else "overflow"
    if error == 0:
        return "exact" if nearest.is_exact else "sign lost"
    if nearest.value == 0:
        return "underflow to 0"
    return f"{error:.2g}" if error < 1e-4 else f"{100 * error:.2g} %"
