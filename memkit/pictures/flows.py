"""Drawings of what flows where: a block with what it keeps, its dtypes, FP8's products, master weights."""

from memkit.formula.activations import Ledger
from memkit.low_precision.autocast import FLOAT32, LOWER_PRECISION
from memkit.pictures.svg import GREY, OKABE_ITO, Chart

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


KEPT = (
    (
        ("norm 1", ("norm 1 input",)),
        ("query, key,\nvalue", ("norm 1 output",)),
        ("scores,\nsoftmax", ("query", "key", "softmax output")),
        ("dropout", ("softmax dropout mask",)),
        ("weights\n× value", ("softmax dropout output", "value")),
        ("output\nmatrix", ("attention output",)),
        ("dropout", ("attention dropout mask",)),
    ),
    (
        ("norm 2", ("norm 2 input",)),
        ("wide\nmatrix", ("norm 2 output",)),
        ("GELU", ("GELU input",)),
        ("narrow\nmatrix", ("GELU output",)),
        ("dropout", ("mlp dropout mask",)),
    ),
)
"""The operations of a GPT-2 block, attention above and MLP below, each with the tensors it keeps, by how they begin."""
TALLEST = 115  # of a bar on an edge
PREFIXES = ("norm 1 ", "norm 2 ", "mlp ", "attention ", "softmax dropout ", "dropout ")


def block_figure(ledger: Ledger, title: str = "One GPT-2 block, and what it keeps for the backward") -> Chart:
    """The operations of a GPT-2 block in order; below each hang the tensors that it keeps, as high as their bytes."""
    words = "height of a bar: bytes; the number: bytes per token and hidden unit (sbh)"
    chart = Chart(800, 490, title, words)
    sizes = {line.name: line.num_bytes / ledger.sbh for line in ledger.lines}
    unit = TALLEST / max(sizes.values())
    sides = ((118, "attention", OKABE_ITO[0]), (368, "MLP", OKABE_ITO[3]))
    for operations, (y, label, colour) in zip(KEPT, sides, strict=True):
        chart.words(10, y - 46, label, 13, bold=True)
        step = 720 / len(operations)
        for number, (operation, names) in enumerate(operations):
            x = 62 + step * number
            chart.rect(x - 40, y - 25, 80, 50, stroke="currentColor", rx=5)
            chart.words(x, y, operation, 11.5, anchor="middle")
            if number:
                chart.line([(x - step + 42, y), (x - 48, y)], shade=GREY)
                chart.area([[(x - 42, y), (x - 50, y - 4), (x - 50, y + 4)]], ("currentColor", ""), shade=GREY)
            kept = {n: size for n, size in sizes.items() if n.partition(",")[0] in names and size >= 0.5}
            for place, (name, size) in enumerate(kept.items()):
                at, end = x - 17 * len(kept) + 34 * place + 17, y + 30 + size * unit
                tells = {"tip": f"{name}: {size:.4g} bytes per token and hidden unit"}
                tells["data"] = {"name": name, "sbh": f"{size:.4g}"}
                chart.rect(at - 15, y + 30, 30, size * unit, (colour, "///" if "mask" in name else ""), **tells)
                chart.words(at, end + 4, f"{size:.0f}", 12, anchor="middle", at="top")
                flat = name.split(",")[0]
                for prefix in PREFIXES:
                    flat = flat.removeprefix(prefix)
                chart.words(at, end + 21, flat.replace(" ", "\n"), 10, anchor="middle", at="top", shade=GREY)
        chart.line([(x + 40, y), (x + 50, y)], shade=GREY)
        chart.words(x + 52, y, "+ input", 11.5)
    named = ", ".join(f"{name} {size:.3g}" for name, size in sizes.items() if size >= 0.5)
    chart.alt = f"{title}: {named} sbh; {ledger.per_sbh:.1f} sbh together."
    return chart


def fp8_products_figure(title: str = "A linear layer's three products, and the side that each sums over") -> Chart:
    """Forward and both gradients as matrices; the summed side of each operand is hatched.

    A factor can leave a sum only if all its terms share it, so an operand's groups lie along its summed side. x is
    summed along K in the forward and along M for the weight's gradient: it is cast twice, and so are W and dy.
    """
    chart = Chart(800, 470, title, "M tokens, K inputs, N outputs; hatched: what one entry of the result sums over")
    for row, (name, result, rows, columns, left, right, summed) in enumerate(PRODUCTS):
        y, x = 128 + 136 * row, 250
        chart.words(10, y, name, 13, bold=True)
        chart.words(10, y + 22, f"summed over {summed}", 12, shade=GREY)
        for operand, tall, wide in ((result, rows, columns), (left, rows, summed), (right, summed, columns)):
            width, height = SIDES[wide], SIDES[tall]
            tells = {"tip": f"{operand}: {tall} × {wide}"}
            tells["data"] = {"operand": operand, "rows": tall, "columns": wide}
            chart.bar(x, x + width, y, height, (OKABE_ITO[5], ""), shade=0.35, stroke="currentColor", **tells)
            if operand != result:
                across = wide == summed
                band = (x, y - 7, width, 14) if across else (x + width / 2 - 7, y - height / 2, 14, height)
                chart.rect(*band, SUMMED, tip=f"{operand} is summed along {summed}", data={"summed": summed})
            chart.words(x + width / 2, y - height / 2 - 12, operand, 13, anchor="middle", bold=True)
            chart.words(x + width / 2, y + height / 2 + 11, f"{tall} × {wide}", 11.5, anchor="middle", shade=GREY)
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
    subtitle = "the weights stay in float32; autocast casts them for each product and keeps the cast"
    chart = Chart(800, 300, title, subtitle)
    chart.legend([(DTYPES[name], name) for name in ("float32", "bfloat16")], 10, 70, 780)
    before = "float32"
    for number, (label, dtype) in enumerate(flows):
        x, y = 70 + 150 * (number % 5), 130 + 100 * (number // 5)
        box(chart, x, y, label, dtype, 104)
        cast = "" if dtype == before else f"cast to\n{dtype.replace('bfloat16', 'bf16').replace('float32', 'fp32')}"
        if number % 5:
            arrow(chart, x - 97, y, x - 53, y)
            chart.words(x - 75, y - 20, cast, 10, anchor="middle", shade=GREY)
        before = dtype
    told = ", ".join(f"{label} {dtype}".replace("\n", " ") for label, dtype in flows)
    chart.alt = f"{title}: {told}."
    return chart


def master_weights_figure(title: str = "Master weights and a scaled loss: one training step in FP16") -> Chart:
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


def box(chart: Chart, x: float, y: float, words: str, dtype: str, width: float) -> None:
    """A named box around a place, in the look of its dtype."""
    label, half = words.replace("\n", " "), width / 2
    style = {"shade": 0.4, "stroke": "currentColor", "rx": 5, "tip": f"{label}: {dtype}"}
    chart.bar(x - half, x + half, y, 56, DTYPES[dtype], **style, data={"name": label, "dtype": dtype})
    chart.words(x, y, words, 12, anchor="middle")


def arrow(chart: Chart, a: float, b: float, x: float, y: float) -> None:
    """A line from one place to another that ends in a head."""
    length = ((x - a) ** 2 + (y - b) ** 2) ** 0.5
    dx, dy = (x - a) / length, (y - b) / length
    chart.line([(a, b), (x - 6 * dx, y - 6 * dy)], shade=GREY, stroke_width=1.4)
    head = [(x, y), (x - 9 * dx - 4 * dy, y - 9 * dy + 4 * dx), (x - 9 * dx + 4 * dy, y - 9 * dy - 4 * dx)]
    chart.area([head], ("currentColor", ""), shade=GREY)
