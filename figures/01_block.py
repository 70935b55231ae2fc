"""Chapter 01: a block of GPT-2 large as its operations in order, below each the tensors that it keeps."""

from pathlib import Path

from memkit.formula.activations import Ledger, block_ledger
from memkit.models import GPT2_LARGE
from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import GREY, Chart
from memkit.recipes import PURE_BF16
from memkit.setup import TrainingSetup

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


def block(ledger: Ledger) -> Chart:
    """The operations of a GPT-2 block in order; below each hang the tensors that it keeps, as high as their bytes."""
    title = "One GPT-2 block, and what it keeps for the backward"
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
                chart.area(
                    [[(x - 42, y), (x - 50, y - 4), (x - 50, y + 4)]],
                    ("currentColor", ""),
                    shade=GREY,
                )
            kept = {
                n: size for n, size in sizes.items() if n.partition(",")[0] in names and size >= 0.5
            }
            for place, (name, size) in enumerate(kept.items()):
                at, end = x - 17 * len(kept) + 34 * place + 17, y + 30 + size * unit
                tells = {"tip": f"{name}: {size:.4g} bytes per token and hidden unit"}
                tells["data"] = {"name": name, "sbh": f"{size:.4g}"}
                chart.rect(
                    at - 15,
                    y + 30,
                    30,
                    size * unit,
                    (colour, "///" if "mask" in name else ""),
                    **tells,
                )
                chart.words(at, end + 4, f"{size:.0f}", 12, anchor="middle", at="top")
                # a result is named after what made it
                made_by, _, what = name.split(",")[0].rpartition(" ")
                of = (
                    f"{made_by.removeprefix('softmax ')}\n"
                    if what == "output" or made_by == "GELU"
                    else ""
                )
                chart.words(at, end + 21, f"{of}{what}", 10, anchor="middle", at="top", shade=GREY)
        chart.line([(x + 40, y), (x + 50, y)], shade=GREY)
        chart.words(x + 52, y, "+ input", 11.5)
    named = ", ".join(f"{name} {size:.3g}" for name, size in sizes.items() if size >= 0.5)
    chart.alt = f"{title}: {named} sbh; {ledger.per_sbh:.1f} sbh together."
    return chart


setup = TrainingSetup(
    model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8, attention="stored", dropout=0.1
)
block(block_ledger(setup)).write_files(Path(__file__).with_suffix(""))
