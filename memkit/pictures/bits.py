"""One code of a format, bit by bit, and the next values on both sides of it.

The three fields differ by colour, by hatch and by the name above them.
"""

from itertools import pairwise

from memkit.formats.reading import CodeReading, number_text
from memkit.pictures.svg import GREY, LOOKS, PAPER, Chart, text_width

WIDEST_BOX = 48


def draw_bits(chart: Chart, reading: CodeReading, top: float) -> float:
    """The bits in boxes by field, named above, and what they spell below; returns the lower end.

    A bit's ``data-pick`` is its place from the left.
    """
    fmt, bits = reading.fmt, reading.bits
    width = min(WIDEST_BOX, 760 / len(bits))
    size = 17 if width > 32 else 13 if width > 20 else 9
    left, number, middles = 400 - width * len(bits) / 2, 0, {}
    code = f"{fmt.name}   code {reading.code} = 0x{reading.code:0{-(-len(bits) // 4)}X}"
    chart.words(400, top + 8, code, 15, anchor="middle", bold=True)
    for field, digits in reading.fields:
        middles[field] = left + (number + len(digits) / 2) * width
        for place, digit in enumerate(digits):
            x, y = left + number * width, top + 70
            tells = {"tip": f"{field} bit {len(digits) - 1 - place}: {digit}", "data": {"pick": number, "field": field}}
            edge = {"stroke": "currentColor", "stroke_opacity": 0.7}
            chart.bar(x, x + width, y, 44, LOOKS[field], shade=0.7, **edge, **tells)
            chart.bar(x + 0.2 * width, x + 0.8 * width, y, 28, (PAPER, ""), pointer_events="none")
            chart.words(x + width / 2, y, digit, size, anchor="middle")
            number += 1
    with_value = [(middles[field], top + 36, f"{field} = {int(digits, 2)}") for field, digits in reading.fields]
    plain = [(x, top + 36, field) for field, x in middles.items()]
    chart.place(with_value, plain, [(x, y, field[:4]) for x, y, field in plain], size=12.5)
    words = spelled(reading)
    chart.words(400, top + 116, words, 16 if text_width(words, 16) < 780 else 11.5, anchor="middle")
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
    trio = (reading.below, reading.value, reading.above)
    gaps = [None if None in pair else pair[1] - pair[0] for pair in pairwise(trio)]
    finite = [gap for gap in gaps if gap is not None and gap < float("inf")]
    away = [240 * gap / max(finite) if gap in finite else 240 for gap in gaps]
    places = (400 - away[0], 400, 400 + away[1])
    chart.line([(64, y), (736, y)], shade=GREY, stroke_width=1.2)
    chart.area([[(400, y - 12), (393, y - 24), (407, y - 24)]], ("currentColor", ""))
    sides = ("next below", "this value", "next above")
    for x, value, side in zip(places, trio, sides, strict=True):
        if value is not None:
            chart.line([(x, y - 8), (x, y + 8)], stroke_width=1.8)
        if value is not None and side != "this value":
            to_press = {"tip": f"{side}: {reading.text(value)}", "data": {"pick": side.removeprefix("next ")}}
            chart.rect(x - 22, y - 14, 44, 56, pointer_events="all", **to_press)
    texts = [(x, reading.text(value), side) for x, value, side in zip(places, trio, sides, strict=True)]
    chart.place(
        [(x, y + 22, text) for x, text, _ in texts],
        [(x, y + (22 if n == 1 else 40), text) for n, (x, text, _) in enumerate(texts)],
        size=13.5,
    )
    chart.place([(x, y + 40, side) for x, _, side in texts], [(400, y + 40, sides[1])], size=11.5, shade=GREY)
    for gap, pair in zip(gaps, pairwise(places), strict=True):
        words = f"gap {number_text(gap)}" if gap in finite else ""
        chart.place([(sum(pair) / 2, y - 14, words)], [(sum(pair) / 2, y - 32, words)], size=12, shade=GREY)


def bits_in_words(reading: CodeReading) -> str:
    """The picture in one sentence."""
    fields = ", ".join(f"{field} {digits}" for field, digits in reading.fields)
    return (
        f"The {len(reading.bits)} bits {reading.bits} of code {reading.code} in {reading.fmt.name}: {fields}; "
        f"{spelled(reading)}; next below {reading.text(reading.below)}, next above {reading.text(reading.above)}."
    )
