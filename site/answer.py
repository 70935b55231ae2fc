"""The first page's first screen: a model and a card, does training fit, and what helps.

All answers are worked out when the site is built, by the formula and by the one rule that says what fits; the page only
looks them up.
"""

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from memkit.fitting.room import fit_on
from memkit.formula.estimate import estimate_memory
from memkit.hardware.cards import CARDS, Card
from memkit.setup import strategies
from memkit.setup.adapters import AdapterConfig, linear_layers
from memkit.setup.models import PUBLISHED_MODELS, ModelConfig
from memkit.setup.recipes import AUTOCAST_BF16, PURE_BF16, OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.units import format_bytes

TOKENS = 2048
OPENING = ("Llama-3-8B", "RTX 4090")
FUSED = OptimizerConfig(implementation="fused")
WAYS = (
    "all weights, float32 under autocast",
    "all weights in bfloat16",
    "all weights in bfloat16, the optimizer's step in the backward, every block run twice",
    "LoRA of rank 16, every block run twice",
    "QLoRA of rank 16, every block run twice",
)
"""What is tried, from what gives up nothing to what trains adapters beside weights in 4 bits."""


def setups(model: ModelConfig) -> list[TrainingSetup]:
    """One sequence of ``TOKENS`` tokens, or as many as the model takes, in each of ``WAYS``."""
    seq_len = min(TOKENS, model.max_seq_len)
    lora = AdapterConfig(rank=16, targets=linear_layers(model))
    qlora = AdapterConfig(rank=16, targets=linear_layers(model), base="nf4")
    plain = {"model": model, "seq_len": seq_len, "optimizer": FUSED}
    bf16 = {**plain, "precision": PURE_BF16}
    twice = {**bf16, "recomputation": strategies.FULL}
    return [
        TrainingSetup(**plain, precision=AUTOCAST_BF16),
        TrainingSetup(**bf16),
        TrainingSetup(**twice | {"optimizer": OptimizerConfig(implementation="fused", place="in backward")}),
        TrainingSetup(**twice, adapter=lora),
        TrainingSetup(**twice, adapter=qlora),
    ]


def left(num_bytes: int) -> str:
    return f"{format_bytes(abs(num_bytes), 1)} {'to spare' if num_bytes >= 0 else 'too much'}"


def answer(model: ModelConfig, card: Card, seq_len: int, peaks: Sequence[int]) -> dict:
    """The sentence, whether all weights can be trained and the first way that is expected to fit, and a row a way."""
    fits = [fit_on(card, peak) for peak in peaks]
    spares = [fit.expected_bytes for fit in fits]
    on_card = f"{model.name} on one {card.name} ({format_bytes(card.memory_bytes, 1)})"
    first = next((number for number, spare in enumerate(spares) if spare >= 0), None)
    if first is None:
        said = f"nothing of this fits. The least is {WAYS[-1]}, {left(spares[-1])}."
    elif first == 0:
        said = f"everything can be trained, with {left(spares[0])}."
    else:
        said = f"{WAYS[0]} does not fit, {left(spares[0])}. The first that fits: {WAYS[first]}, {left(spares[first])}."
    rows = [
        (format_bytes(peak, 1), fit.verdict, left(fit.expected_bytes)) for peak, fit in zip(peaks, fits, strict=True)
    ]
    return {"said": f"{on_card}, one sequence of {seq_len:,} tokens: {said}", "rows": rows}


def answers() -> dict[str, dict[str, dict]]:
    """The answer for every model of the book on every NVIDIA card."""
    cards, found = [card for card in CARDS.values() if card.vendor == "NVIDIA"], {}
    for name, model in PUBLISHED_MODELS.items():
        tried = setups(model)
        peaks = [estimate_memory(setup).peak_bytes for setup in tried]
        found[name] = {card.name: answer(model, card, tried[0].seq_len, peaks) for card in cards}
    return found


def first_screen(out: Path) -> str:
    """The form with its opening answer, which needs no script; all answers are a file beside the page."""
    found, (model, card) = answers(), OPENING
    (out / "answers.json").write_text(json.dumps(found, separators=(",", ":")), encoding="utf-8")

    def menu(label: str, name: str, options: Iterable[str], chosen: str) -> str:
        listed = "".join(f"<option{' selected' if o == chosen else ''}>{escape(o)}</option>" for o in options)
        return f'<label>{label} <select name="{name}">{listed}</select></label> '

    opening, heads = found[model][card], ("what is trained", "tensors at the peak", "verdict", "expected")
    header = "".join(f'<th scope="col">{head}</th>' for head in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(way)}</th>{"".join(f"<td>{cell}</td>" for cell in row)}</tr>'
        for way, row in zip(WAYS, opening["rows"], strict=True)
    )
    return (
        '<form class="answer" data-answers="answers.json">'
        f'{menu("Model", "model", found, model)}{menu("Card", "card", found[model], card)}'
        f'<p role="status"><strong>{escape(opening["said"])}</strong></p>'
        f'<div class="scroll"><table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>'
        f'<p class="quiet"><a class="link" href="index.html?fit={quote("/".join(OPENING))}#does-it-fit-my-card">A link '
        'to this answer.</a> By the formula of <a href="01_memory_breakdown.html">chapter 01</a>, with fused AdamW; '
        "context, workspaces and fragments are counted. Weights in bfloat16 round small updates away "
        '(<a href="03_mixed_precision.html">chapter 03</a>); T4 and V100 multiply no bfloat16. '
        '<a href="10_make_it_fit.html">Chapter 10</a> has all plans.</p></form>'
    )
