"""Chapter 03: dtypes through one block under autocast; master weights and loss scaling as a flow."""

from pathlib import Path

from memkit.low_precision import FLOAT32, LOWER_PRECISION
from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import GREY, Chart

DTYPES = {
    "float32": (OKABE_ITO[2], ""),
    "bfloat16": (OKABE_ITO[0], "..."),
    "float16": (OKABE_ITO[4], "xxx"),
}
"""The look of a value's dtype."""
BLOCK_OPS = (
    ("norm", "layer_norm"),
    ("query, key,\nvalue", "linear"),
    ("attention", "scaled_dot_product_attention"),
    ("output\nmatrix", "linear"),
    ("+ input", "add"),
    ("norm", "layer_norm"),
    ("wide\nmatrix", "linear"),
    ("GELU", "gelu"),
    ("narrow\nmatrix", "linear"),
    ("+ input", "add"),
)
"""A block's operations in order, each with the name by which autocast knows it."""


def dtype_of(operation: str, dtype: str) -> str:
    """The dtype in which autocast runs an operation whose inputs are of ``dtype``."""
    if operation in LOWER_PRECISION.split():
        return "bfloat16"
    return "float32" if operation in FLOAT32.split() else dtype


def block_dtypes(stream: str = "float32") -> list[tuple[str, str]]:
    """The operations of a block under bf16 autocast, each with the dtype of its result."""
    flows, now = [], stream
    for label, operation in BLOCK_OPS:
        now = "float32" if operation == "add" and stream == "float32" else dtype_of(operation, now)
        flows.append((label, now))
    return flows


def box(chart: Chart, x: float, y: float, words: str, dtype: str, width: float) -> None:
    """A named box around a place, in the look of its dtype."""
    label, half = words.replace("\n", " "), width / 2
    style = {"shade": 0.4, "stroke": "currentColor", "rx": 5, "tip": f"{label}: {dtype}"}
    chart.bar(
        x - half, x + half, y, 56, DTYPES[dtype], **style, data={"name": label, "dtype": dtype}
    )
    chart.words(x, y, words, 12, anchor="middle")


def arrow(chart: Chart, a: float, b: float, x: float, y: float) -> None:
    """A line from one place to another that ends in a head."""
    length = ((x - a) ** 2 + (y - b) ** 2) ** 0.5
    dx, dy = (x - a) / length, (y - b) / length
    chart.line([(a, b), (x - 6 * dx, y - 6 * dy)], shade=GREY, stroke_width=1.4)
    head = [
        (x, y),
        (x - 9 * dx - 4 * dy, y - 9 * dy + 4 * dx),
        (x - 9 * dx + 4 * dy, y - 9 * dy - 4 * dx),
    ]
    chart.area([head], ("currentColor", ""), shade=GREY)


def autocast() -> Chart:
    """The operations of a block in two rows, each in its dtype; an arrow that changes the dtype is a cast."""
    title, flows = "One block under autocast: the dtype of each result", block_dtypes()
    subtitle = (
        "the weights stay in float32; autocast casts them for each product and keeps the cast"
    )
    chart = Chart(800, 300, title, subtitle)
    chart.legend([(DTYPES[name], name) for name in ("float32", "bfloat16")], 10, 70, 780)
    before = "float32"
    for number, (label, dtype) in enumerate(flows):
        x, y = 70 + 150 * (number % 5), 130 + 100 * (number // 5)
        box(chart, x, y, label, dtype, 104)
        cast = (
            ""
            if dtype == before
            else f"cast to\n{dtype.replace('bfloat16', 'bf16').replace('float32', 'fp32')}"
        )
        if number % 5:
            arrow(chart, x - 97, y, x - 53, y)
            chart.words(x - 75, y - 20, cast, 10, anchor="middle", shade=GREY)
        before = dtype
    told = ", ".join(f"{label} {dtype}".replace("\n", " ") for label, dtype in flows)
    chart.alt = f"{title}: {told}."
    return chart


def master_weights() -> Chart:
    """Where each number of an FP16 step lives, and where the loss scale enters and leaves."""
    title = "Master weights and a scaled loss: one training step in FP16"
    subtitle = (
        "the scale lifts small gradients out of FP16's underflow; it is taken out before the step"
    )
    chart = Chart(800, 310, title, subtitle)
    chart.legend([(DTYPES[name], name) for name in ("float32", "float16")], 10, 68, 300)
    boxes = (
        (100, 124, "master weights", "float32"),
        (100, 244, "weights", "float16"),
        (300, 244, "loss\n× scale", "float32"),
        (500, 244, "gradients\n× scale", "float16"),
        (700, 244, "gradients\n÷ scale", "float32"),
        (700, 124, "optimizer step\nand its states", "float32"),
    )
    for x, y, label, dtype in boxes:
        box(chart, x, y, label, dtype, 126)
    for start, words in zip((165, 365, 565), ("forward", "backward", "unscale"), strict=True):
        arrow(chart, start, 244, start + 70, 244)
        chart.words(start + 35, 231, words, 11, anchor="middle", shade=GREY)
    arrow(chart, 100, 153, 100, 215)
    chart.words(110, 184, "round", 11, shade=GREY)
    arrow(chart, 700, 215, 700, 153)
    chart.words(690, 184, "infinity or NaN: skip, halve the scale", 11, anchor="end", shade=GREY)
    arrow(chart, 636, 124, 165, 124)
    chart.words(400, 111, "add the update in float32", 11, anchor="middle", shade=GREY)
    chart.alt = (
        f"{title}: master weights in float32 are rounded to float16 weights; the forward's loss is multiplied by the "
        "scale; the backward gives scaled float16 gradients; they are divided by the scale in float32 and checked for "
        "infinity and NaN; the optimizer adds its update to the master weights."
    )
    return chart


autocast().write_files(Path(__file__).with_name("03_autocast"))
master_weights().write_files(Path(__file__).with_name("03_master_weights"))
