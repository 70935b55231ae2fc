"""One or two printable pages a chapter, from the chapter's own goals, summary and mistakes, with room for notes.

Chapter 01 has a second page: the ledger of a block and a blank timeline to draw one's own run into.
``python course/handouts.py build/handouts`` writes ``01.html``, and ``all.html`` with a page for each; where a Chromium
is found, ``all.pdf`` too.
"""

import base64
import io
import json
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import mistune
from matplotlib.mathtext import math_to_image

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = sorted((ROOT / "chapters").glob("[0-9][0-9]_*.ipynb"))
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NOTES = '<h2>Notes</h2><div class="notes"></div>'
SECTIONS = ("You will be able to", "Common mistakes", "Summary")
STYLE = """@page { size: A4; margin: 12mm } body { font: 9.8pt/1.3 Georgia, serif; margin: 0; color: #111 }
h1 { font-size: 17pt; margin: 0 0 1mm } h2 { font-size: 11.5pt; margin: 3mm 0 1mm } p, ul { margin: 0 0 1.5mm }
figure { margin: 0; text-align: center } figure img { max-width: 100%; max-height: 78mm } code { font-size: 8.6pt }
table { border-collapse: collapse; width: 100% } th, td { border-top: 0.3pt solid #888; padding: 0.6mm 1.5mm;
text-align: left; vertical-align: top } th { border-top: none }
section { break-after: page; display: flex; flex-direction: column; min-height: 270mm }
section:last-child { break-after: auto } pre { font-size: 7.4pt; line-height: 1.25; margin: 0 0 2mm }
.notes { flex: 1; min-height: 8mm; print-color-adjust: exact; -webkit-print-color-adjust: exact;
background: repeating-linear-gradient(#fff 0 7.7mm, #bbb 7.7mm 8mm) }
footer { margin-top: 2mm; font-size: 8pt; color: #555 }"""


def cells_of(path: Path) -> list[str]:
    """The sources of a chapter's markdown cells."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def section(cells: list[str], title: str) -> str:
    """What stands under a heading of level 2, fold-outs aside; empty where the chapter has no such heading."""
    for cell in cells:
        for part in re.split(r"^## ", cell, flags=re.MULTILINE)[1:]:
            heading, _, text = part.partition("\n")
            if heading.strip() == title:
                return re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL).strip()
    return ""


def stored_text(path: Path, cell_id: str) -> str:
    """What a cell of a chapter prints, as it is stored."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    [cell] = [cell for cell in cells if cell["id"] == cell_id]
    return "".join(text for output in cell["outputs"] for text in output.get("text", ()))


def blank_timeline() -> str:
    """Axes of two training steps without a curve: a reader draws the upper edge of a run of their own."""
    names = ("forward", "backward", "optimizer", "zero_grad")
    ends = (70, 210, 360, 440, 480, 620, 770, 850, 890)
    lines = [f'<line x1="70" y1="{y}" x2="890" y2="{y}" stroke="#aaa"/>' for y in range(20, 261, 48)]
    lines += [f'<line x1="{x}" y1="20" x2="{x}" y2="260" stroke="#555" stroke-dasharray="3 3"/>' for x in ends]
    words = [f'<text x="60" y="{y + 4}" text-anchor="end">____</text>' for y in range(20, 261, 48)]
    for number, (start, end) in enumerate(pairwise(ends)):
        low = 276 + 14 * (number % 4 == 3)
        words.append(f'<text x="{(start + end) / 2}" y="{low}" text-anchor="middle">{names[number % 4]}</text>')
    words += ['<text x="60" y="10" text-anchor="end">GiB</text>', '<text x="275" y="306">step 1</text>']
    words.append('<text x="685" y="306">step 2</text>')
    picture = f'<svg viewBox="0 0 900 312" font-size="12" role="img">{"".join(lines + words)}</svg>'
    return (
        "<h2>A step of your own run</h2><p>Model ____________ micro-batch ______ tokens ______ recipe ____________ "
        "card ____________. Write sizes on the axis, draw a line for the card, then the upper edge of memory. Mark the "
        "three moments at which the peak can be, and write W, G, S, activations and temporaries where they are.</p>"
        f"{picture}"
    )


def second_page(path: Path) -> str:
    """The ledger of a block and a blank timeline."""
    ledger = f"<h2>The ledger: what one block keeps</h2><pre>{stored_text(path, 'ledger-block')}</pre>"
    return f"<section>{ledger}{blank_timeline()}{NOTES}</section>"


def drawn(formula: str) -> str:
    """A formula as an image that needs no network."""
    image = io.BytesIO()
    plain = re.sub(r"\\le(?![a-z])", r"\\leq", formula)
    depth = math_to_image(f"${plain}$", image, dpi=72, format="svg")
    data = base64.b64encode(image.getvalue()).decode()
    text = formula.replace('"', "'").replace("\\", "&#92;")
    return f'<img alt="{text}" style="vertical-align:-{depth:.1f}px" src="data:image/svg+xml;base64,{data}">'


def part_of(path: Path) -> str:
    """What stands on the page of one chapter: its picture and its formulas are in it."""
    cells = cells_of(path)
    title = re.match(r"# (.+)", cells[0])[1]
    alt, picture = re.search(r"!\[(.*?)\]\((.+?)\)", cells[0], re.DOTALL).groups()
    image = (path.parent / picture).resolve().read_bytes()
    figure = f'<figure><img alt="{alt}" src="data:image/png;base64,{base64.b64encode(image).decode()}"></figure>'
    parts = []
    for name in SECTIONS:
        if text := section(cells, name):
            text = re.sub(r"\]\([^)#]*\)", "]()", text)
            formulas = {}
            text = re.sub(r"\$([^$\n]+)\$", lambda m, f=formulas: f.setdefault(m[1], f"FORMULA{len(f)}E"), text)
            html = mistune.create_markdown(plugins=["table"], escape=False)(text)
            for formula, mark in formulas.items():
                html = html.replace(mark, drawn(formula))
            parts.append(f"<h2>{name}</h2>{re.sub(r'</?a[^>]*>', '', html)}")
    foot = f"Chapter {path.stem[:2]} of the book in <code>chapters/{path.name}</code>. Text: CC BY 4.0."
    second = second_page(path) if path.stem.startswith("01") else ""
    parts += [] if second else [NOTES]
    return f"<section><h1>{title}</h1>{figure}{''.join(parts)}<footer>{foot}</footer></section>{second}"


def pages(chapters: list[Path]) -> str:
    """A document with a page for each of these chapters."""
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Handouts</title><style>{STYLE}</style>'
    return f"{head}{''.join(map(part_of, chapters))}</html>"


def write_handouts(folder: Path) -> list[Path]:
    """A page for each chapter, and all of them in one file, that also as PDF where a Chromium is found."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = {chapter.stem[:2]: [chapter] for chapter in CHAPTERS} | {"all": CHAPTERS}
    written = [folder / f"{name}.html" for name in documents]
    for page, chapters in zip(written, documents.values(), strict=True):
        page.write_text(pages(chapters), encoding="utf-8")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    return [*written, print_page(browser, written[-1])] if browser else written


def print_page(browser: str, page: Path) -> Path:
    """The PDF of a page, beside it."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
    pdf = page.with_suffix(".pdf").resolve()
    command = [browser, *flags, f"--print-to-pdf={pdf}", page.resolve().as_uri()]
    subprocess.run(command, check=True, capture_output=True)
    return pdf


if __name__ == "__main__":
    for path in write_handouts(Path(sys.argv[1])):
        print(path)
