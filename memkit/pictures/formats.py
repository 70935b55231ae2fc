"""The pictures of chapter 02: bits, a number in many formats, number lines, running sums, a scaled block."""

import math
from collections.abc import Mapping, Sequence

from memkit.formats.reading import CodeReading, Nearest, nearest_in, number_text, read_code
from memkit.formats.records import Format
from memkit.formats.single import decode_one, encode_one, values_of
from memkit.pictures.axes import Scale
from memkit.pictures.bits import bits_in_words, draw_bits, draw_neighbours
from memkit.pictures.number_line import SUPERSCRIPTS
from memkit.pictures.svg import GREY, OKABE_ITO, Chart

COMPARED = (
    "float32",
    "tf32",
    "bfloat16",
    "float16",
    "float8_e5m2",
    "float8_e4m3fn",
    "float6_e3m2fn",
    "float6_e2m3fn",
    "float4_e2m1fn",
    "int8",
    "int4",
)
"""The formats in which a number is shown side by side."""
SMALLEST_ERROR = 1e-9  # left end of the error axis


def bit_figure(code: int, fmt: str | Format) -> Chart:
    """The bits of one code, what they spell, and the neighbours on a line with their distances to scale."""
    chart, reading = Chart(800, 260), read_code(code, fmt)
    draw_neighbours(chart, reading, draw_bits(chart, reading, 8) + 66)
    chart.title, chart.alt = f"{reading.fmt.name}, code {reading.code}", bits_in_words(reading)
    return chart


def explorer_figure(reading: CodeReading, number: float, *, saturates: bool = True) -> Chart:
    """A code's bits and neighbours, and below them a number in every format of ``COMPARED``.

    A row per format: what it makes of the number, and a bar for the relative error, one decade a step. Beyond a
    format's range the number saturates, or becomes what the format has: infinity or NaN.
    """
    chart = Chart(800, 570)
    top = draw_bits(chart, reading, 8)
    draw_neighbours(chart, reading, top + 40)
    rows = [nearest_in(number, name, saturates=saturates) for name in COMPARED]
    top += 96
    chart.words(10, top + 12, f"{number_text(float(number), 9)} in {len(rows)} formats", 15, bold=True)
    x = Scale(low=SMALLEST_ERROR, high=1, start=320, end=664, is_log=True)
    powers = [(10.0**power, f"10{str(power).translate(SUPERSCRIPTS)}") for power in range(-9, 1, 3)]
    x.ticks_below(chart, powers, top + 30, top + 292, "relative error")
    for row, nearest in enumerate(rows):
        y, error = top + 42 + 24 * row, nearest.relative_error
        end = max(x(min(error, 1)), x.start + 2) if error else x.start
        tip = f"{nearest.fmt.name}: {number_text(nearest.value, 9)}, {note_on(nearest)}"
        chart.words(10, y, nearest.fmt.name, 12.5)
        chart.words(308, y, number_text(nearest.value, 9), 12.5, anchor="end")
        chart.bar(x.start, end, y, 16, (OKABE_ITO[1], "///"), tip=tip, data={"error": repr(float(error))})
        chart.words(676, y, note_on(nearest), 12.5)
    words = (f"{n.fmt.name} {number_text(n.value, 9)}, {note_on(n)}" for n in rows)
    chart.title = f"{reading.fmt.name}, code {reading.code}, and {number_text(float(number), 9)} in {len(rows)} formats"
    chart.alt = f"{bits_in_words(reading)} {number_text(float(number), 9)} as each format holds it: {'; '.join(words)}."
    return chart


def note_on(nearest: Nearest) -> str:
    """The error in words: ``exact``, a percentage, ``lost``, or what overflow did."""
    error = nearest.relative_error
    if nearest.is_beyond:
        return "saturated" if math.isfinite(nearest.value) else "overflow"
    if error == 0:
        return "exact" if nearest.is_exact else "sign lost"
    return "underflow to 0" if nearest.value == 0 else f"{error:.2g}" if error < 1e-4 else f"{100 * error:.2g} %"


def scaled_block_figure(values: Sequence[float], scales: Mapping[str, float], fmt: str, title: str) -> Chart:
    """Where the values of one block land for each scale: dots above, the format's values times the scale below.

    Raises: ValueError: no values, or no scales.
    """
    if not len(values) or not scales:
        raise ValueError(f"{len(values)} values and {len(scales)} scales: one of each is drawn at least")
    chart = Chart(800, 56 + 140 * len(scales), title)
    grid = sorted({abs(value) for value in values_of(fmt)})
    right = max(max(values), *(grid[-1] * scale for scale in scales.values())) * 1.08
    x, told = Scale(low=0, high=right, start=26, end=780), []
    for row, (name, scale) in enumerate(scales.items()):
        codes = [encode_one(value / scale, fmt, overflow="saturate") for value in values]
        landed = [decode_one(code, fmt) * scale for code in codes]
        top = 48 + 140 * row
        chart.words(10, top + 6, f"{name}: scale {scale:g}", 12.5, bold=True)
        chart.line([(26, top + 96), (780, top + 96)], shade=GREY)
        ticks = [value * scale for value in grid]
        for tick in ticks:
            chart.line([(x(tick), top + 96), (x(tick), top + 106)], stroke_width=1.4)
        chart.row([(x(tick), f"{tick:g}") for tick in ticks], top + 108, 11, shade=GREY)
        for value, end in zip(values, landed, strict=True):
            chart.line([(x(value), top + 46), (x(end), top + 88)], OKABE_ITO[1], stroke_width=1.4)
            chart.area([[(x(end), top + 96), (x(end) - 4, top + 86), (x(end) + 4, top + 86)]], (OKABE_ITO[1], ""))
            tells = {"tip": f"{value:g} becomes {end:g}", "data": {"value": f"{value:g}", "landed": f"{end:g}"}}
            chart.bar(x(value) - 4, x(value) + 4, top + 46, 8, (OKABE_ITO[1], ""), rx=4, **tells)
            label = f"{value:g}"
            chart.place([(x(value), top + 38, label)], [(x(value), top + 25, label)], size=11.5, at="bottom")
        pairs = ", ".join(f"{v:g} to {h:g}" for v, h in zip(values, landed, strict=True))
        told.append(f"{name}, scale {scale:g}: {pairs}")
    chart.alt = f"{title}. {'; '.join(told)}."
    return chart
