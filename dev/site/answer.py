"""The first page's first screen: a model and a card, does training fit, and what helps.

All answers are worked out when the site is built, by the formula and by the one rule that says what fits; the page only
looks them up. Each answer has an address of its own, ``fit/Llama-3-8B-on-RTX-4090.html``, with a picture for those who
share it.
"""

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

# comes with matplotlib: with 8 colours a card is less than a quarter as large
from PIL import Image

from memkit import strategies
from memkit.cards import CARDS, Card
from memkit.fit import fit_on
from memkit.formula.estimate import estimate_memory
from memkit.models import ModelConfig
from memkit.pictures.colours import COLOUR
from memkit.pictures.svg import png_of
from memkit.recipes import AUTOCAST_BF16, PURE_BF16, OptimizerConfig
from memkit.units import format_bytes
from stepscope.experts import PUBLISHED_MODELS
from stepscope.setup import AdapterConfig, Job, linear_layers

TOKENS = 2048
OPENING = ("Llama-3-8B", "RTX 4090")
FUSED = OptimizerConfig(implementation="fused")
WAYS = {
    "All weights, autocast": (
        "weights and states in float32, products in bfloat16: this is what most scripts do, and it gives up nothing "
        "(<a href='03_mixed_precision.html'>chapter 03</a>)."
    ),
    "All weights in bf16": (
        "small updates are rounded away, so that training can stop early "
        "(<a href='03_mixed_precision.html'>chapter 03</a>); T4 and V100 multiply no bfloat16."
    ),
    "bf16, keep less": (
        "weights in bfloat16; the optimizer steps in the backward, so that neither accumulation nor a clipped norm is "
        "left (<a href='05_gradient_accumulation.html'>chapter 05</a>), and every block's forward runs a second time "
        "(<a href='04_activation_recomputation.html'>chapter 04</a>)."
    ),
    "LoRA": (
        "of rank 16 beside all linear layers: only these thin matrices are trained, and every block's forward runs a "
        "second time (<a href='09_smaller_states.html'>chapter 09</a>)."
    ),
    "QLoRA": (
        "as LoRA, and the frozen linear layers are rounded to 4 bits and unpacked at each use; experts of a mixture "
        "are no linear layers and keep their 16 bits (<a href='09_smaller_states.html'>chapter 09</a>)."
    ),
}
"""What is tried, from what gives up nothing to adapters beside weights in 4 bits, each with its price."""
SCALE = 0.6
"""Where on a bar's line the card is full: what is more than 1.7 times the card ends at the margin."""


def setups(model: ModelConfig) -> list[Job]:
    """One sequence of ``TOKENS`` tokens, or as many as the model takes, in each of ``WAYS``."""
    seq_len = min(TOKENS, model.max_seq_len)
    lora = AdapterConfig(rank=16, targets=linear_layers(model))
    qlora = AdapterConfig(rank=16, targets=linear_layers(model), base="nf4")
    plain = {"model": model, "seq_len": seq_len, "optimizer": FUSED}
    bf16 = {**plain, "precision": PURE_BF16}
    twice = {**bf16, "recomputation": strategies.FULL}
    return [
        Job(**plain, precision=AUTOCAST_BF16),
        Job(**bf16),
        Job(**twice, place="in backward"),
        Job(**twice, adapter=lora),
        Job(**twice, adapter=qlora),
    ]


def left(num_bytes: int) -> str:
    return f"{format_bytes(abs(num_bytes), 1)} {'to spare' if num_bytes >= 0 else 'too much'}"


def answer(model: ModelConfig, card: Card, seq_len: int, peaks: Sequence[int]) -> dict:
    """What is asked, whether all weights can be trained, the first way that may fit, and a row a way."""
    fits = [fit_on(card, peak) for peak in peaks]
    able = (number for number, fit in enumerate(fits) if fit.verdict != "does not fit")
    first = next(able, None)
    ways = list(WAYS)
    ends = [f"fits {fit.unless}" if fit.unless else left(fit.expected_bytes) for fit in fits]
    said = f"{fits[0].verdict.capitalize()}: {ends[0]}."
    if first is None:
        said = f"Does not fit, with nothing of this: {ends[-1]} with {ways[-1]}."
    elif first > 0:
        said += f" {ways[first]} {fits[first].predicate}: {ends[first]}."
    rows = [
        (left(fit.expected_bytes), fit.verdict, format_bytes(peak, 1))
        for peak, fit in zip(peaks, fits, strict=True)
    ]
    bars = [round(100 * min(1, SCALE * peak / card.memory_bytes), 1) for peak in peaks]
    asked = f"{model.name}, all weights, on one {card.name} ({format_bytes(card.memory_bytes, 1)}), {seq_len:,} tokens"
    least = len(WAYS) - 1
    return {
        "asked": asked,
        "said": said,
        "rows": rows,
        "bars": bars,
        "first": least if first is None else first,
    }


def answers() -> dict[str, dict[str, dict]]:
    """The answer for every model of the book on every NVIDIA card."""
    cards, found = [card for card in CARDS.values() if card.vendor == "NVIDIA"], {}
    for name, model in PUBLISHED_MODELS.items():
        tried = setups(model)
        peaks = [estimate_memory(setup).peak_bytes for setup in tried]
        found[name] = {card.name: answer(model, card, tried[0].seq_len, peaks) for card in cards}
    return found


def address_of(model: str, card: str) -> str:
    """Where the answer has a page of its own."""
    return f"fit/{model}-on-{card}.html".replace(" ", "-")


def rows_html(found: dict) -> str:
    """One row a way: a button that tells its price, a bar beside the card's line, and what the formula says."""
    rows = ""
    for number, (way, row, bar) in enumerate(zip(WAYS, found["rows"], found["bars"], strict=True)):
        chosen = "true" if number == found["first"] else "false"
        rows += (
            f'<tr><th scope="row"><button type="button" aria-pressed="{chosen}">{way}</button></th>'
            f'<td class="bar"><i style="width:{bar}%"></i></td>{"".join(f"<td>{cell}</td>" for cell in row)}</tr>'
        )
    return rows


def table_html(found: dict) -> str:
    """The ways as a table."""
    heads = ("what helps", "peak, and the card", "expected", "verdict", "tensors at the peak")
    header = "".join(f'<th scope="col">{head}</th>' for head in heads)
    table = f"<table><thead><tr>{header}</tr></thead><tbody>{rows_html(found)}</tbody></table>"
    return f'<div class="scroll" style="--full:{SCALE:.0%}">{table}</div>'


def price(way: str) -> str:
    """What a way is and costs, in words."""
    return f"<strong>{way}</strong>: {WAYS[way]}"


def first_screen(out: Path, site: str) -> str:
    """The form with its opening answer, which needs no script; all answers are a file beside the page."""
    found, (model, card) = answers(), OPENING
    prices = [price(way) for way in WAYS]
    looked_up = json.dumps({"prices": prices, "of": found}, separators=(",", ":"))
    (out / "answers.json").write_text(looked_up, encoding="utf-8")
    write_pages(found, out, site)

    def menu(label: str, name: str, options: Iterable[str], chosen: str) -> str:
        listed = "".join(
            f"<option{' selected' if o == chosen else ''}>{escape(o)}</option>" for o in options
        )
        return f'<label>{label} <select name="{name}">{listed}</select></label> '

    opening = found[model][card]
    return (
        '<form class="answer" data-answers="answers.json">'
        f"{menu('Model', 'model', found, model)}{menu('Card', 'card', found[model], card)}"
        f'<p class="quiet asked">{escape(opening["asked"])}</p>'
        f'<p role="status" class="said"><strong>{escape(opening["said"])}</strong></p>'
        f'{table_html(opening)}<p role="status" class="price">{prices[opening["first"]]}</p>'
        f'<p class="quiet"><a class="link" href="{address_of(*OPENING)}">A link to this answer</a>, with a picture for '
        'those who get it. By the formula of <a href="01_memory_breakdown.html">chapter 01</a>, with fused AdamW; '
        "context, workspaces and fragments are counted. "
        '<a href="09_one_card.html">Lesson 09</a> has all plans.</p></form>'
    )


CARD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 315" font-family="DejaVu Sans" font-size="15">'
    '<text x="28" y="50" font-size="24" font-weight="bold">{model} on one {card}</text>'
    '<text x="28" y="78" fill="#545b66">{seen}</text>{bars}'
    '<path d="M{full} 96V262" stroke="#1a1a1a" stroke-width="2" stroke-dasharray="5 4"/>'
    '<text x="{full}" y="280" font-size="12" text-anchor="middle">the card</text>'
    '<text x="28" y="303" font-size="13" fill="#545b66">Where do the bytes go when a neural network trains?</text>'
    "</svg>"
)


def card_png(model: str, card: str, found: dict) -> bytes | None:
    """The answer as a picture of 600 by 315 pixels, as links are shown elsewhere; ``None`` without ``resvg-py``."""
    bars, left_edge, width = "", 185, 300
    for number, (way, row, bar) in enumerate(zip(WAYS, found["rows"], found["bars"], strict=True)):
        y, colour = 100 + 33 * number, COLOUR[row[1]]
        bars += (
            f'<text x="28" y="{y + 17}" font-size="13">{way}</text>'
            f'<rect x="{left_edge}" y="{y}" width="{bar * width / 100:.1f}" height="24" fill="{colour}"/>'
            f'<text x="{left_edge + width + 8}" y="{y + 17}" font-size="13">{row[2]}</text>'
        )
    pixels = png_of(
        CARD.format(
            model=escape(model),
            card=escape(card),
            seen=escape(found["said"]),
            bars=bars,
            full=left_edge + width * SCALE,
        )
    )
    if pixels is None:
        return None
    small = BytesIO()
    Image.open(BytesIO(pixels)).convert("RGB").quantize(8).save(small, "PNG", optimize=True)
    return small.getvalue()


PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>
<meta name="description" content="{said}"><meta property="og:title" content="{title}">
<meta property="og:description" content="{said}"><meta property="og:type" content="article">{image}
<link rel="stylesheet" href="../book.css"><link rel="icon" href="data:,"></head>
<body><main class="alone"><h1>{title}</h1><p class="quiet">{asked}</p>
<p><strong>{said}</strong></p><div class="answer">{table}</div>{prices}
<p><a href="../index.html?fit={query}#does-it-fit-my-card">Another model or card, and the book behind it</a></p>
</main></body></html>
"""


def write_pages(found: dict, out: Path, site: str) -> None:
    """A page and a picture for every answer."""
    (out / "fit").mkdir(exist_ok=True)
    for model, cards in found.items():
        for card, answered in cards.items():
            address, image = address_of(model, card), ""
            if pixels := card_png(model, card, answered):
                (out / address).with_suffix(".png").write_bytes(pixels)
                image = f'<meta property="og:image" content="{site}{address.removesuffix(".html")}.png">'
            # a page of its own has no script, so its ways are no buttons
            table = (
                table_html(answered)
                .replace('<button type="button" ', "<b ")
                .replace("</button>", "</b>")
            )
            prices = "".join(f"<p>{price(way)}</p>" for way in WAYS).replace("href='", "href='../")
            text = PAGE.format(
                title=escape(f"Does {model} fit one {card}?"),
                said=escape(answered["said"]),
                asked=escape(answered["asked"]),
                image=image,
                table=re.sub(r' aria-pressed="\w+"', "", table),
                prices=prices,
                query=quote(f"{model}/{card}"),
            )
            (out / address).write_text(text, encoding="utf-8")
