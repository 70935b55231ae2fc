"""Chapter 03's title figure: what one float32 step consists of, and an open bar for the same step under autocast."""

from pathlib import Path

from memkit.pictures.axes import Scale
from memkit.pictures.colours import LOOKS
from memkit.pictures.svg import GREY, PAPER, Chart

NUM_PARAMETERS = 3_406_809_600
PEAK_BYTES = 55_206_601_216  # measured by others on a B200; chapter 03, section 3.5, names the runs
GB = 1e9

parts = {
    "weights": 4 * NUM_PARAMETERS,
    "gradients": 4 * NUM_PARAMETERS,
    "optimizer_states": 8 * NUM_PARAMETERS,
}
parts["temporary"] = PEAK_BYTES - sum(parts.values())
names = ("weights", "gradients", "AdamW's states", "all else")

chart = Chart(
    800,
    200,
    "One training step of 3.4 billion parameters",
    "GB at the peak: the sum was measured on a B200, its parts are 4, 4 and 8 bytes per parameter",
)
top = chart.legend(
    [(LOOKS[part], name) for part, name in zip(parts, names, strict=True)], 10, 74, 780
)
x = Scale(low=0, high=60, start=190, end=780)
first, second = top + 18, top + 68
start = 0.0
for part, size in parts.items():
    width = x(size / GB) - x(0)
    chart.rect(x(start), first - 15, width, 30, LOOKS[part], stroke=PAPER)
    if part != "temporary":
        chart.words(
            x(start) + width / 2, first, f"{size / GB:.1f}", 12, anchor="middle", boxed=True
        )
    start += size / GB
chart.words(x(start) + 6, first, f"{start:.2f}", 12.5, bold=True)
chart.words(180, first, "float32", 12.5, anchor="end")
chart.words(180, second, "the same, autocast", 12.5, anchor="end")
chart.line(
    [(x(60), second - 15), (x(0), second - 15), (x(0), second + 15), (x(60), second + 15)],
    shade=GREY,
    stroke_dasharray="5 4",
)
chart.words(x(30), second, "?", 20, anchor="middle", bold=True)
chart.height = second + 28
chart.alt = (
    f"Two bars of peak memory. In float32 the step takes {start:.2f} GB: weights {parts['weights'] / GB:.1f}, "
    f"gradients {parts['gradients'] / GB:.1f}, AdamW's states {parts['optimizer_states'] / GB:.1f}, and a thin rest. "
    "The bar for autocast is open, with a question mark."
)
chart.write_files(Path(__file__).with_suffix(""))
