"""The first page's first screen: a model and a card, the film of its step, does training fit, and what helps.

All answers and films are worked out when the site is built, by the formula and by the one rule that says what fits; the
page only looks them up and draws the card's line. Each answer has an address of its own,
``fit/Llama-3-8B-on-RTX-4090.html``, with a picture for those who share it.
"""

import gzip
import json
import re
from bisect import bisect
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from html import escape
from io import BytesIO
from pathlib import Path
from textwrap import wrap
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
from memkit.timeline import Events, MemoryTimeline
from memkit.units import format_bytes
from stepscope.experts import PUBLISHED_MODELS
from stepscope.optimizers import OPTIMIZERS
from stepscope.setup import AdapterConfig, Job, linear_layers
from stepscope.widgets.saved_film import SavedFilm

TOKENS = 2048
PIECES = 8
OPENING = ("Llama-2-7B", "A100 SXM 80 GB")
"""Its step plays through forward and backward, dies where the optimizer makes its states, and fits with 8-bit ones."""
FUSED = OptimizerConfig(implementation="fused")
WAYS = {
    "as most scripts": (
        "weights and states in float32, products in bfloat16 by autocast, AdamW: it gives up nothing "
        "(<a href='03_mixed_precision.html'>chapter 03</a>)."
    ),
    "+ recompute": (
        "every block's forward runs a second time in the backward, for a third more time "
        "(<a href='04_activation_recomputation.html'>chapter 04</a>)."
    ),
    "+ loss in pieces": (
        f"the logits of an {PIECES}th of the tokens at a time, each piece made again in the backward, as Liger's fused "
        "loss does (<a href='04_activation_recomputation.html'>chapter 04</a>)."
    ),
    "+ 8-bit states": (
        "both moments of AdamW in 8 bits, with a scale for 256 values "
        "(<a href='09_one_card.html'>chapter 09</a>)."
    ),
    "+ bf16 weights": (
        "weights and gradients in bfloat16: small updates are rounded away, so that training can stop early "
        "(<a href='03_mixed_precision.html'>chapter 03</a>); T4 and V100 multiply no bfloat16."
    ),
    "LoRA": (
        "of rank 16 beside all linear layers: only these thin matrices are trained, the weights rest in bfloat16; "
        "recomputed, the loss in pieces (<a href='10_adapters.html'>chapter 10</a>)."
    ),
    "QLoRA": (
        "as LoRA, and the frozen linear layers are rounded to 4 bits and unpacked at each use; experts of a mixture "
        "are no linear layers and keep their 16 bits (<a href='10_adapters.html'>chapter 10</a>)."
    ),
}
"""What is tried, from what gives up nothing to adapters beside weights in 4 bits; a plus keeps what stands above it."""
SCALE = 0.6
"""Where on a bar's line the card is full: what is more than 1.7 times the card ends at the margin."""


def setups(model: ModelConfig) -> list[Job]:
    """One sequence of ``TOKENS`` tokens, or as many as the model takes, in each of ``WAYS``."""
    seq_len = min(TOKENS, model.max_seq_len)
    usual = Job(model=model, seq_len=seq_len, precision=AUTOCAST_BF16, optimizer=FUSED)
    twice = replace(usual, recomputation=strategies.FULL)
    pieces = replace(twice, loss_pieces=PIECES)
    eight_bits = replace(pieces, optimizer=OptimizerConfig(record=OPTIMIZERS["8-bit AdamW"]))
    lora = AdapterConfig(rank=16, targets=linear_layers(model))
    frozen = replace(pieces, precision=PURE_BF16, adapter=lora)
    return [
        usual,
        twice,
        pieces,
        eight_bits,
        replace(eight_bits, precision=PURE_BF16),
        frozen,
        replace(frozen, adapter=replace(lora, base="nf4")),
    ]


def script_of(job: Job) -> list[tuple[str, str, str]]:
    """A job's step as a short script: function, line, and what the line makes, as a pattern of phase and place."""
    dtype = ", dtype=torch.bfloat16" if job.precision is PURE_BF16 else ""
    optimizer = "AdamW" if job.optimizer == FUSED else "AdamW8bit"
    loaded, adapter, context = "Transformer(config", [], []
    if job.adapter:
        loaded = "Quantized4bit(config" if job.adapter.base == "nf4" else loaded
        line = f"model = get_peft_model(model, LoraConfig(r={job.adapter.rank}))"
        adapter = [("setup", line, r"init .*lora_.*")]
    if job.precision.uses_autocast:
        context = [("step", 'with torch.autocast("cuda", torch.bfloat16):', "")]
    again = "  # checkpoint: runs again in backward" if job.recomputation == strategies.FULL else ""
    loss = [
        ("forward", "logits = self.head(self.norm(x))", "forward (norm|head)"),
        ("forward", "return F.cross_entropy(logits, targets)", "forward loss"),
    ]
    if job.loss_pieces > 1:
        loss = [
            ("forward", "x = self.norm(x)", "forward norm"),
            ("forward", f"for piece in x.chunk({job.loss_pieces}, 1):  # again in backward", ""),
            ("forward", "    loss += F.cross_entropy(self.head(piece), ...)", "forward loss"),
            ("forward", "return loss", ""),
        ]
    return [
        ("setup", f'model = {loaded}, device="cuda"{dtype})', "init (?!.*lora_).*"),
        *adapter,
        ("setup", f"optimizer = {optimizer}(model.parameters())", ""),
        ("forward", "x = self.embedding(tokens)", "forward embedding"),
        ("forward", f"for block in self.blocks:{again}", ""),
        (
            "forward",
            "    x = x + block.attention(block.norm_1(x))",
            r"forward blocks\.\d+\.(attention|norm_1).*",
        ),
        (
            "forward",
            "    x = x + block.mlp(block.norm_2(x))",
            r"forward blocks\.\d+\.(mlp|norm_2).*",
        ),
        *loss,
        *context,
        ("step", f"{'    ' if context else ''}loss = model(tokens, targets)", ""),
        ("step", "loss.backward()", "backward .*|forward "),
        ("step", "optimizer.step()", "optimizer .*"),
        ("step", "optimizer.zero_grad()", ""),
    ]


def in_lines(timeline: MemoryTimeline, job: Job) -> MemoryTimeline:
    """The formula's timeline with the lines of ``script_of`` as the places where its blocks are made.

    Raises: ValueError: a block that no line makes.
    """
    script = [
        (re.compile(makes), f"train.py:{number} {function}", text)
        for number, (function, text, makes) in enumerate(script_of(job), 1)
    ]

    @cache
    def line_of(made: str) -> str:
        for pattern, name, _ in script:
            if pattern.pattern and pattern.fullmatch(made):
                return name
        raise ValueError(f"no line of the script makes {made!r}")

    born, events = {}, []
    for event in timeline.events:
        if event.num_bytes > 0:
            born[event.block] = line_of(f"{event.phase} {event.where}")
        events.append(replace(event, where=born[event.block]))
    return replace(
        timeline, events=Events(events), source_lines={name: text for _, name, text in script}
    )


def limits_of(card: Card) -> tuple[int, int]:
    """The most bytes of tensors that fit even at worst, and the most that fit at best, by ``fit_on``."""
    high = fit_on(card, 0).most_bytes
    low = bisect(range(high), 0, key=lambda size: -fit_on(card, size).least_bytes) - 1
    return low, high


def cards() -> list[Card]:
    """Those that are asked for."""
    return [card for card in CARDS.values() if card.vendor == "NVIDIA"]


def film_of(model: str, way: int) -> bytes:
    """The film of a model's step in a way, compressed; exact at its peak and where any card is full."""
    job = setups(PUBLISHED_MODELS[model])[way]
    limits = [limit for card in cards() for limit in limits_of(card)]
    timeline = in_lines(estimate_memory(job), job)
    film = SavedFilm(timeline, title=f"{model}, {list(WAYS)[way]}", limits=limits)
    return gzip.compress(film.text.encode(), 9, mtime=0)


def film_name(model: str, way: int) -> str:
    """Where a film lies."""
    return f"films/{model.replace(' ', '-')}-{way}.json.gz"


def write_films(out: Path, pool: ProcessPoolExecutor) -> None:
    """The films of all models in all ways."""
    (out / "films").mkdir(exist_ok=True)
    asked = [(model, way) for model in PUBLISHED_MODELS for way in range(len(WAYS))]
    films = pool.map(film_of, *zip(*asked, strict=True))
    for (model, way), film in zip(asked, films, strict=True):
        (out / film_name(model, way)).write_bytes(film)


def left(num_bytes: int) -> str:
    return f"{format_bytes(abs(num_bytes), 1)} {'to spare' if num_bytes >= 0 else 'too much'}"


def with_all(ways: Sequence[str]) -> str:
    """The last of the ways with all that it keeps of those before it, in words.

    >>> with_all(["as most scripts", "+ recompute", "+ 8-bit states"]), with_all(["+ recompute", "LoRA"])
    ('recompute and 8-bit states', 'LoRA')
    """
    *before, last = [way.removeprefix("+ ") for way in ways if way.startswith("+")]
    if not ways[-1].startswith("+"):
        return ways[-1]
    return f"{', '.join(before)} and {last}" if before else last


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
        said += f" With {with_all(ways[: first + 1])} it {fits[first].predicate}: {ends[first]}."
    rows = [
        (left(fit.expected_bytes), fit.verdict, format_bytes(peak, 1))
        for peak, fit in zip(peaks, fits, strict=True)
    ]
    bars = [round(100 * min(1, SCALE * peak / card.memory_bytes), 1) for peak in peaks]
    asked = f"{model.name}, all weights, on one {card.name} ({format_bytes(card.memory_bytes, 1)}), {seq_len:,} tokens"
    return {"asked": asked, "said": said, "rows": rows, "bars": bars}


def answers() -> dict[str, dict[str, dict]]:
    """The answer for every model of the book on every NVIDIA card."""
    found = {}
    for name, model in PUBLISHED_MODELS.items():
        tried = setups(model)
        peaks = [estimate_memory(setup).peak_bytes for setup in tried]
        found[name] = {card.name: answer(model, card, tried[0].seq_len, peaks) for card in cards()}
    return found


def address_of(model: str, card: str) -> str:
    """Where the answer has a page of its own."""
    return f"fit/{model}-on-{card}.html".replace(" ", "-")


def table_html(found: dict) -> str:
    """The ways as a table: a bar beside the card's line, and what the formula says."""
    heads = ("what helps", "peak, and the card", "expected", "verdict", "tensors at the peak")
    header = "".join(f'<th scope="col">{head}</th>' for head in heads)
    rows = "".join(
        f'<tr><th scope="row">{way}</th>'
        f'<td class="bar"><i data-verdict="{row[1]}" style="width:{bar}%"></i></td>'
        f"{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
        for way, row, bar in zip(WAYS, found["rows"], found["bars"], strict=True)
    )
    table = f"<table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="scroll" style="--full:{SCALE:.0%}">{table}</div>'


def price(way: str) -> str:
    """What a way is and costs, in words."""
    return f"<strong>{way}</strong>: {WAYS[way]}"


def way_button(number: int, way: str, row: Sequence[str]) -> str:
    """A way to tap: its name, its peak and its verdict."""
    _, verdict, peak = row
    return (
        f'<button type="button" value="{number}" aria-pressed="{"true" if number == 0 else "false"}" '
        f'data-verdict="{verdict}"><b>{way}</b> <span>{peak}</span> <span>{verdict}</span></button>'
    )


def first_screen(out: Path, site: str) -> str:
    """The form with its opening answer, which needs no script; all answers are a file beside the page."""
    found, (model, card) = answers(), OPENING
    looked_up = json.dumps(
        {
            "ways": list(WAYS),
            "prices": [price(way) for way in WAYS],
            "cards": {each.name: limits_of(each) for each in cards()},
            "of": found,
        },
        separators=(",", ":"),
    )
    (out / "answers.json").write_text(looked_up, encoding="utf-8")
    with ProcessPoolExecutor(2) as pool:
        write_pages(found, out, site, pool)
        write_films(out, pool)
    low, high = limits_of(CARDS[card])

    def menu(label: str, name: str, options: Iterable[str], chosen: str) -> str:
        listed = "".join(
            f"<option{' selected' if o == chosen else ''}>{escape(o)}</option>" for o in options
        )
        return f'<label>{label} <select name="{name}" autocomplete="off">{listed}</select></label> '

    opening = found[model][card]
    buttons = "".join(
        way_button(number, way, row)
        for number, (way, row) in enumerate(zip(WAYS, opening["rows"], strict=True))
    )
    # who chooses before the script has come is shown no other card's answer
    return (
        '<form class="answer" data-answers="answers.json" onchange="this.classList.add(`is-stale`)">'
        '<p role="status" class="unknown"></p>'
        f"{menu('Model', 'model', found, model)}{menu('Card', 'card', found[model], card)}"
        f'<p class="quiet asked">{escape(opening["asked"])}</p>'
        f'<p role="status" class="said"><strong>{escape(opening["said"])}</strong></p>'
        f'<div class="ways" role="group" aria-label="What helps">{buttons}</div>'
        f'<div class="stage film" data-low="{low}" data-high="{high}">'
        "<noscript>The film of this step needs JavaScript.</noscript></div>"
        f'<p role="status" class="price">{price(next(iter(WAYS)))}</p>'
        '<p class="quiet"><button type="button" class="copy">Copy a link to this film</button> '
        '<button type="button" class="save">Save this picture</button> '
        '<span role="status" class="copied"></span> '
        f'<a class="link" href="{address_of(*OPENING)}">All ways on one page</a>, with a picture for those whom you '
        'send it. By the formula of <a href="01_memory_breakdown.html">chapter 01</a>, one sequence a step; context, '
        'workspaces and fragments are counted. A <a href="01_memory_breakdown.html#cell-id=explorer">panel of lesson 01'
        '</a> moves every control of a step, and <a href="09_one_card.html">lesson 09</a> has all plans.</p></form>'
    )


CARD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 315" font-family="DejaVu Sans" font-size="15">'
    '<text x="28" y="36" font-size="24" font-weight="bold">{model} on one {card}</text>{said}{bars}'
    '<path d="M{full} 98V272" stroke="#1a1a1a" stroke-width="2" stroke-dasharray="5 4"/>'
    '<text x="{full}" y="286" font-size="12" text-anchor="middle">the card</text>'
    '<text x="28" y="305" font-size="13" fill="#545b66">Where do the bytes go when a neural network trains?</text>'
    "</svg>"
)


def card_png(model: str, card: str, found: dict) -> bytes | None:
    """The answer as a picture of 1200 by 630 pixels, as links are shown elsewhere; ``None`` without ``resvg-py``."""
    bars, left_edge, width = "", 185, 300
    for number, (way, row, bar) in enumerate(zip(WAYS, found["rows"], found["bars"], strict=True)):
        y, colour = 101 + 24 * number, COLOUR[row[1]]
        end = left_edge + width
        gap = f"M{end - 18} {y + 19}l6 -19h5l-6 19z" if bar == 100 else ""  # it is cut there
        bars += (
            f'<text x="28" y="{y + 15}" font-size="13">{way}</text>'
            f'<rect x="{left_edge}" y="{y}" width="{bar * width / 100:.1f}" height="19" fill="{colour}"/>'
            f'<path d="{gap}" fill="#fff"/>'
            f'<text x="{end + 8}" y="{y + 15}" font-size="13">{row[2]}</text>'
        )
    said = "".join(
        f'<text x="28" y="{56 + 17 * line}" font-size="13" fill="#545b66">{escape(words)}</text>'
        for line, words in enumerate(wrap(found["said"], 80))
    )
    pixels = png_of(
        CARD.format(
            model=escape(model),
            card=escape(card),
            said=said,
            bars=bars,
            full=left_edge + width * SCALE,
        ),
        zoom=2,
    )
    if pixels is None:
        return None
    small = BytesIO()
    Image.open(BytesIO(pixels)).convert("RGB").quantize(8).save(small, "PNG", optimize=True)
    return small.getvalue()


def links_of(address: str, image: str, site: str) -> str:
    """A page's own address, where it is known, and its picture, for those who show a link to it."""
    links = f'<link rel="canonical" href="{site}{address}">' if site else ""
    if image:
        links += (
            f'<meta property="og:image" content="{site}{image}">'
            '<meta name="twitter:card" content="summary_large_image">'
        )
    return links


PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>
<meta name="description" content="{said}"><meta property="og:title" content="{title}">
<meta property="og:description" content="{said}"><meta property="og:type" content="article">{links}
<link rel="stylesheet" href="../book.css"><link rel="icon" href="data:,"></head>
<body><main class="alone"><h1>{title}</h1><p class="quiet">{asked}</p>
<p><strong>{said}</strong></p><div class="answer">{table}</div>{prices}
<p><a href="../index.html?fit={query}">Its film, another model or card, and the book behind it</a></p>
</main></body></html>
"""


def write_pages(found: dict, out: Path, site: str, pool: ProcessPoolExecutor) -> None:
    """A page and a picture for every answer."""
    (out / "fit").mkdir(exist_ok=True)
    told = [(model, card, of_card) for model, on in found.items() for card, of_card in on.items()]
    pictures = pool.map(card_png, *zip(*told, strict=True))
    prices = "".join(f"<p>{price(way)}</p>" for way in WAYS).replace("href='", "href='../")
    for (model, card, answered), pixels in zip(told, pictures, strict=True):
        address, image = address_of(model, card), ""
        if pixels:
            image = address.removesuffix(".html") + ".png"
            (out / image).write_bytes(pixels)
        text = PAGE.format(
            title=escape(f"Does {model} fit one {card}?"),
            said=escape(answered["said"]),
            asked=escape(answered["asked"]),
            links=links_of(address, image, site),
            table=table_html(answered),
            prices=prices,
            query=quote(f"{model}/{card}"),
        )
        (out / address).write_text(text, encoding="utf-8")
