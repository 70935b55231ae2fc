"""Chapter 06's title figure: a number in bfloat16 and in FP8, the numbers from 1 to 2 in both, two open questions."""

from pathlib import Path

from memkit.formats.records import get_format
from memkit.formats.rounding import all_values
from memkit.pictures.colours import LOOKS, OKABE_ITO
from memkit.pictures.svg import GREY, Chart

title = "One byte for a number instead of two"
chart = Chart(800, 270, title)
chart.words(130, 62, "the bits of one number", 13, bold=True)
chart.words(450, 62, "all numbers from 1 to 2", 13, bold=True)
rows = (
    ("bfloat16", "bfloat16", "2 bytes: a card's peak is 47.65 GiB", "the usual loss"),
    ("FP8 (E4M3)", "float8_e4m3fn", "1 byte: what is the peak?", "what is the loss?"),
)
for row, (label, name, memory, loss) in enumerate(rows):
    fmt, y, left = get_format(name), 108 + 104 * row, 130
    chart.words(10, y, label, 13, bold=True)
    exponent_bits = fmt.bits - 1 - fmt.mantissa_bits
    for field, count in (("sign", 1), ("exponent", exponent_bits), ("mantissa", fmt.mantissa_bits)):
        for _ in range(count):
            chart.rect(
                left, y - 16, 17, 32, LOOKS[field], shade=0.7, stroke="currentColor", tip=field
            )
            left += 17
    chart.words(130, y + 34, memory, 12, shade=GREY)
    values = all_values(fmt)
    shown = values[(values >= 1) & (values <= 2)]
    for value in shown.tolist():
        x = 450 + 330 * (value - 1)
        chart.line([(x, y - 16), (x, y + 16)], OKABE_ITO[0], stroke_width=1.2, tip=f"{value:g}")
    chart.words(450, y + 34, f"{shown.size - 1} steps: {loss}", 12, shade=GREY)
chart.alt = (
    f"{title}. A number takes 16 bits in bfloat16 and 8 in FP8's format E4M3. From 1 to 2 bfloat16 has 128 steps and "
    "E4M3 has 8. Open: what is the peak, and what is the loss?"
)
chart.write_files(Path(__file__).with_suffix(""))
