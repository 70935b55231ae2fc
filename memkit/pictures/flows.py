"""Drawings of what flows where: FP8's three products, dtypes through a block, master weights with a scaled loss."""

from collections.abc import Sequence

from memkit.low_precision.autocast import FLOAT32, LOWER_PRECISION
from memkit.pictures.svg import GREY, INK, OKABE_ITO, Chart

SUMMED = (OKABE_ITO[1], "///")
DTYPES = {"float32": (OKABE_ITO[2], ""), "bfloat16": (OKABE_ITO[0], "..."), "float16": (OKABE_ITO[4], "xxx")}
"""The look of a value's dtype in the drawings of this page."""

PRODUCTS = (
    ("forward", "y", "M", "N", "x", "Wᵀ", "K"),
    ("gradient of the input", "dx", "M", "K", "dy", "W", "N"),
    ("gradient of the weight", "dW", "N", "K", "dyᵀ", "x", "M"),
)
"""The products of a linear layer of M tokens, K inputs, N outputs: result, its sides, operands, summed side."""
SIDES = {"M": 92, "K": 64, "N": 44}
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


def fp8_products_figure(
    title: str = "A linear layer's three products, and the side that each sums over",
) -> Chart:
    """Forward and both gradients as matrices; the summed side of each operand is hatched.

    A factor can leave a sum only if all its terms share it, so an operand's groups lie along its summed side. x is
    summed along K in the forward and along M for the weight's gradient: it is cast twice, and so are W and dy.
    """
    chart = Chart(
        800, 470, title, "M tokens, K inputs, N outputs; hatched: what one entry of the result sums over"
    )
    for row, (name, result, rows, columns, left, right, summed) in enumerate(PRODUCTS):
        y, x = 128 + 136 * row, 250
        chart.words(10, y, name, 13, bold=True)
        chart.words(10, y + 22, f"summed over {summed}", 12, shade=GREY)
        for operand, tall, wide in ((result, rows, columns), (left, rows, summed), (right, summed, columns)):
            width, height = SIDES[wide], SIDES[tall]
            chart.rect(
                x,
                y - height / 2,
                width,
                height,
                (OKABE_ITO[5], ""),
                shade=0.35,
                stroke="currentColor",
                tip=f"{operand}: {tall} × {wide}",
                data={"operand": operand, "rows": tall, "columns": wide},
            )
            if operand != result:
                across = wide == summed
                band = (x, y - 7, width, 14) if across else (x + width / 2 - 7, y - height / 2, 14, height)
                chart.rect(*band, SUMMED, tip=f"{operand} is summed along {summed}", data={"summed": summed})
            chart.words(x + width / 2, y - height / 2 - 12, operand, 13, anchor="middle", bold=True)
            chart.words(
                x + width / 2, y + height / 2 + 11, f"{tall} × {wide}", 11.5, anchor="middle", shade=GREY
            )
            x += width + 62
            chart.words(x - 31, y, {result: "=", left: "×"}.get(operand, ""), 18, anchor="middle")
    told = "; ".join(
        f"{name}: {result} = {left} × {right}, summed over {summed}"
        for name, result, _, _, left, right, summed in PRODUCTS
    )
    chart.alt = f"{title}. {told}. Every matrix is summed along one side in one product and along the other in another."
    return chart


def dtype_of(operation: str, dtype: str) -> str:
    """The dtype in which autocast runs an operation whose inputs are of ``dtype``."""
    if operation in LOWER_PRECISION.split():
        return "bfloat16"
    return "float32" if operation in FLOAT32.split() else dtype


def block_dtypes(stream: str = "float32") -> list[tuple[str, str]]:
    """The operations of a block under bf16 autocast, each with the dtype of its result.

    >>> [dtype for _, dtype in block_dtypes()][:5]
    ['float32', 'bfloat16', 'bfloat16', 'bfloat16', 'float32']
    """
    flows, now = [], stream
    for label, operation in BLOCK_OPS:
        now = "float32" if operation == "add" and stream == "float32" else dtype_of(operation, now)
        flows.append((label, now))
    return flows


def autocast_figure(title: str = "One block under autocast: the dtype of each result") -> Chart:
    """The operations of a block in two rows, each in its dtype; an arrow that changes the dtype is a cast."""
    flows = block_dtypes()
    chart = Chart(
        800,
        300,
        title,
        "the weights stay in float32; autocast casts them for each product and keeps the cast",
    )
    chart.legend([(DTYPES[name], name) for name in ("float32", "bfloat16")], 10, 70, 780)
    before = "float32"
    for number, (label, dtype) in enumerate(flows):
        x, y = 70 + 150 * (number % 5), 130 + 100 * (number // 5)
        box(chart, x, y, label, DTYPES[dtype], 104, dtype)
        cast = (
            ""
            if dtype == before
            else f"cast to\n{dtype.replace('bfloat16', 'bf16').replace('float32', 'fp32')}"
        )
        if number % 5:
            arrow(chart, [(x - 97, y), (x - 53, y)])
            chart.words(x - 75, y - 20, cast, 10, anchor="middle", shade=GREY)
        before = dtype
    told = ", ".join(f"{label} {dtype}".replace("\n", " ") for label, dtype in flows)
    chart.alt = f"{title}: {told}."
    return chart


def master_weights_figure(
    title: str = "Master weights and a scaled loss: one training step in FP16",
) -> Chart:
    """Where each number of an FP16 step lives, and where the loss scale enters and leaves."""
    subtitle = "the scale lifts small gradients out of FP16's underflow; it is taken out before the step"
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
        box(chart, x, y, label, DTYPES[dtype], 126, dtype)
    for start, words in zip((165, 365, 565), ("forward", "backward", "unscale"), strict=True):
        arrow(chart, [(start, 244), (start + 70, 244)])
        chart.words(start + 35, 231, words, 11, anchor="middle", shade=GREY)
    arrow(chart, [(100, 153), (100, 215)])
    chart.words(110, 184, "round", 11, shade=GREY)
    arrow(chart, [(700, 215), (700, 153)])
    chart.words(690, 184, "infinity or NaN: skip, halve the scale", 11, anchor="end", shade=GREY)
    arrow(chart, [(636, 124), (165, 124)])
    chart.words(400, 111, "add the update in float32", 11, anchor="middle", shade=GREY)
    chart.alt = (
        f"{title}: master weights in float32 are rounded to float16 weights; the forward's loss is multiplied by the "
        "scale; the backward gives scaled float16 gradients; they are divided by the scale in float32 and checked for "
        "infinity and NaN; the optimizer adds its update to the master weights."
    )
    return chart


def box(chart: Chart, x: float, y: float, words: str, look: tuple[str, str], width: float, tip: str) -> None:
    """A named box around a place, in the look of its dtype."""
    label = words.replace("\n", " ")
    chart.rect(
        x - width / 2,
        y - 28,
        width,
        56,
        look,
        shade=0.4,
        stroke="currentColor",
        rx=5,
        tip=f"{label}: {tip}",
        data={"name": label, "dtype": tip},
    )
    chart.words(x, y, words, 12, anchor="middle", shade=INK)


def arrow(chart: Chart, points: Sequence[tuple[float, float]]) -> None:
    """A line that ends in a head."""
    (a, b), (x, y) = points[-2:]
    length = ((x - a) ** 2 + (y - b) ** 2) ** 0.5
    dx, dy = (x - a) / length, (y - b) / length
    chart.line([*points[:-1], (x - 6 * dx, y - 6 * dy)], shade=GREY, stroke_width=1.4)
    head = [(x, y), (x - 9 * dx - 4 * dy, y - 9 * dy + 4 * dx), (x - 9 * dx + 4 * dy, y - 9 * dy - 4 * dx)]
    chart.area([head], ("currentColor", ""), shade=GREY)
