"""Chapter 06: what a linear layer keeps in bf16 and in FP8, over the tokens: the lines cross at twice its outputs."""

from pathlib import Path

from book.linear_memory import linear_keeps
from memkit.pictures.colours import BLUE, VERMILION
from memkit.pictures.svg import GREY, Chart, Scale, byte_ticks
from memkit.units import format_bytes

TOKENS, WIDTH = (2048, 4096, 8192, 12288, 16384), 4096
LOOKS = {"bf16": (VERMILION, "none"), "TE per tensor, Hopper": (BLUE, "7 4")}
kept = {
    name: [sum(linear_keeps(name, tokens, WIDTH, WIDTH).values()) for tokens in TOKENS]
    for name in LOOKS
}
chart = Chart(800, 400, "A 4096 × 4096 layer: FP8 keeps less from 2 × 4096 tokens on")
top = 1.08 * max(max(sizes) for sizes in kept.values())
x = Scale(low=TOKENS[0], high=TOKENS[-1], start=92, end=548)
y = Scale(low=0, high=top, start=340, end=60)
y.ticks_beside(chart, byte_ticks(top), 92, 548)
x.ticks_below(chart, [(tokens, f"{tokens:,}") for tokens in TOKENS], 60, 340, "tokens")
for number, (name, sizes) in enumerate(kept.items()):
    colour, dashes = LOOKS[name]
    at = 76 + 54 * number
    for points in (
        [(x(a), y.inside(b)) for a, b in zip(TOKENS, sizes, strict=True)],
        [(566, at), (600, at)],
    ):
        chart.line(points, colour, stroke_width=2, stroke_dasharray=dashes)
    chart.words(610, at, name, 12.5)
    chart.words(610, at + 16, format_bytes(sizes[-1], 1), 12, shade=GREY)
for name, sizes in kept.items():
    for tokens, size in zip(TOKENS, sizes, strict=True):
        tip = f"{name}, {tokens:,} tokens: {format_bytes(size)}"
        chart.rect(
            x(tokens) - 6, y(size) - 6, 12, 12, ("transparent", ""), tip=tip, data={"bytes": size}
        )
ends = (
    f"{name} from {format_bytes(v[0], 1)} to {format_bytes(v[-1], 1)}" for name, v in kept.items()
)
chart.alt = f"{chart.title}, for tokens from {TOKENS[0]:,} to {TOKENS[-1]:,}: {'; '.join(ends)}."
chart.write_files(Path(__file__).with_suffix(""))
