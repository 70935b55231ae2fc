"""Chapter 06: the three products of an FP8 linear layer, the summed dimension marked."""

from pathlib import Path

from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import GREY, Chart

SUMMED = (OKABE_ITO[1], "///")
PRODUCTS = (
    ("forward", "y", "M", "N", "x", "Wᵀ", "K"),
    ("gradient of the input", "dx", "M", "K", "dy", "W", "N"),
    ("gradient of the weight", "dW", "N", "K", "dyᵀ", "x", "M"),
)
"""The products of a linear layer of M tokens, K inputs, N outputs: result, its sides, operands, summed side."""
SIDES = {"M": 92, "K": 64, "N": 44}


def products() -> Chart:
    """Forward and both gradients as matrices; the summed side of each operand is hatched.

    A factor can leave a sum only if all its terms share it, so an operand's groups lie along its summed side. x is
    summed along K in the forward and along M for the weight's gradient: it is cast twice, and so are W and dy.
    """
    title = "A linear layer's three products, and the side that each sums over"
    chart = Chart(
        800,
        470,
        title,
        "M tokens, K inputs, N outputs; hatched: what one entry of the result sums over",
    )
    for row, (name, result, rows, columns, left, right, summed) in enumerate(PRODUCTS):
        y, x = 128 + 136 * row, 250
        chart.words(10, y, name, 13, bold=True)
        chart.words(10, y + 22, f"summed over {summed}", 12, shade=GREY)
        for operand, tall, wide in (
            (result, rows, columns),
            (left, rows, summed),
            (right, summed, columns),
        ):
            width, height = SIDES[wide], SIDES[tall]
            tells = {"tip": f"{operand}: {tall} × {wide}"}
            tells["data"] = {"operand": operand, "rows": tall, "columns": wide}
            chart.bar(
                x,
                x + width,
                y,
                height,
                (OKABE_ITO[5], ""),
                shade=0.35,
                stroke="currentColor",
                **tells,
            )
            if operand != result:
                across = wide == summed
                band = (
                    (x, y - 7, width, 14)
                    if across
                    else (x + width / 2 - 7, y - height / 2, 14, height)
                )
                chart.rect(
                    *band,
                    SUMMED,
                    tip=f"{operand} is summed along {summed}",
                    data={"summed": summed},
                )
            chart.words(x + width / 2, y - height / 2 - 12, operand, 13, anchor="middle", bold=True)
            chart.words(
                x + width / 2,
                y + height / 2 + 11,
                f"{tall} × {wide}",
                11.5,
                anchor="middle",
                shade=GREY,
            )
            x += width + 62
            chart.words(x - 31, y, {result: "=", left: "×"}.get(operand, ""), 18, anchor="middle")
    told = "; ".join(
        f"{name}: {result} = {left} × {right}, summed over {summed}"
        for name, result, _, _, left, right, summed in PRODUCTS
    )
    chart.alt = f"{title}. {told}. Every matrix is summed along one side in one product and along the other in another."
    return chart


products().write_files(Path(__file__).with_suffix(""))
