"""Every colour of the book: what has a name has one colour in all pictures and all plots.

A chapter's plot takes ``COLOUR["gradients"]``; a drawing takes ``LOOKS``, which adds a hatch, so that nothing is told
by colour alone. All states of an optimizer are shades of one yellow.
"""

OKABE_ITO = ("#0072B2", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442", "#999999")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""
BLUE, VERMILION, YELLOW, GREEN, PINK, SKY, LEMON, GREY_7 = OKABE_ITO

LOOKS = {
    # what is in memory during a step
    "weights": (BLUE, ""),
    "gradients": (VERMILION, "///"),
    "optimizer_states": (YELLOW, "..."),
    "activations": (GREEN, "\\\\\\"),
    "temporary": (PINK, "xxx"),
    "not attributed": (GREY_7, "---"),
    # the addends of a recipe: bytes of one parameter
    "weight": (BLUE, ""),
    "master weight": (SKY, "..."),
    "remainder": ("#A9D3F0", "\\\\\\"),
    "gradient": (VERMILION, "///"),
    "main gradient": ("#EE9E66", "xxx"),
    "exp_avg": (YELLOW, "---"),
    "exp_avg_sq": ("#F2C563", "|||"),
    "momentum_buffer": ("#B87C00", "///"),
    "scales, or row and column": ("#F9E3B4", "..."),
    "exp_avg absmax": ("#F9E3B4", "---"),
    "exp_avg_sq absmax": ("#F9E3B4", "|||"),
    # what a linear layer keeps
    "saved input": (GREEN, "\\\\\\"),
    "weight, cast": (SKY, "///"),
    "weight, cast and transposed": ("#A9D3F0", "|||"),
    # verdicts of a step on a card
    "fits": (GREEN, ""),
    "tight": (YELLOW, ""),
    "does not fit": (VERMILION, ""),
    # verdicts of claims
    "wrong": (VERMILION, "///"),
    "outdated": (GREY_7, "..."),
    "conditional": (YELLOW, ""),
    "true": (GREEN, "---"),
    # the fields of a code
    "sign": (VERMILION, "///"),
    "exponent": (BLUE, ""),
    "mantissa": (GREEN, "..."),
    "table index": (PINK, "xxx"),
}
"""Colour and hatch of everything that has a name in the book."""
CURVES = {
    # formats and recipes of training
    "float32": BLUE,
    "bfloat16": VERMILION,
    "bf16": BLUE,
    "pure bf16": BLUE,
    "autocast, flash": VERMILION,
    "autocast, stored": GREEN,
    # factors of FP8 training
    "tensor": VERMILION,
    "delayed": GREEN,
    "row": PINK,
    "block": YELLOW,
    "mxfp8": SKY,
    "unscaled": GREY_7,
    # attention's kernel, and the optimizer's step
    "stored": BLUE,
    "flash": VERMILION,
    "foreach": BLUE,
    "fused": VERMILION,
    # optimizers
    "AdamW": BLUE,
    "torchao FP8 AdamW": VERMILION,
    "torchao 4-bit AdamW": GREEN,
    "SGD momentum": PINK,
    "Lion": YELLOW,
    "Muon": SKY,
    # what ranks share out, and what they do
    "DDP, bucket view": BLUE,
    "ZeRO-1": YELLOW,
    "ZeRO-2": VERMILION,
    "ZeRO-3": GREEN,
    "ZeRO-3, recomputed": PINK,
    "computing": BLUE,
    "communicating": VERMILION,
}
"""Colours of what chapters plot as curves, told apart by marks or order too."""
COLOUR = {name: colour for name, (colour, _) in LOOKS.items()} | CURVES
HATCHES = {
    "": "",
    "///": "M0 8L8 0M-2 2L2 -2M6 10L10 6",
    "...": "M1 2h2M5 6h2",
    "\\\\\\": "M0 0L8 8M6 -2L10 2M-2 6L2 10",
    "xxx": "M0 8L8 0M0 0L8 8",
    "---": "M0 4h8",
    "|||": "M4 0v8",
    "++": "M0 4h8M4 0v8",
}
"""Paths of the hatches on a tile of 8 × 8."""


def looks_of(names: list[str]) -> dict[str, tuple[str, str]]:
    """A look for each name; those that the book has no colour for are told apart by their order."""
    hatches = list(HATCHES)
    others = [name for name in names if name not in LOOKS]
    by_order = {  # the ninth has the first one's colour and the second one's hatch
        name: (OKABE_ITO[number % 8], hatches[(number + number // 8) % 8])
        for number, name in enumerate(others)
    }
    return {name: LOOKS.get(name) or by_order[name] for name in names}
