"""Slides for the workshop of 90 minutes, from the lessons' own cells: one picture, question or piece of code on each.

``python course/slides.py FILE`` (``make slides``) writes one page that needs no network, for reveal.js is in it. A
section of the syllabus in ``course/GUIDE.md`` begins with its title, and an arrow goes through all slides: code, and
on the next slide what it prints or draws; a question, and its answer after it; last the sentence to keep. The text
between is in the speaker's notes (press s).
"""

import ast
import base64
import html
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbconvert.filters import markdown2html_mistune
from nbformat.v4 import new_markdown_cell
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "course")]

from guide import CHAPTERS, SYLLABI, home_of, item

HEADING = re.compile(r"^##? (.+?)(?: \(\d+ minutes?\))?$", re.MULTILINE)
LEFT_OUT = re.compile(
    r"<details>|^check\(|^my_guess|give_back\(|\bdoctor\(|^import |^from ", re.MULTILINE
)
PICTURE = re.compile(r"^!\[(.*)\]\((.*)\)$", re.DOTALL)
RULE = re.compile(r"\*\*.+\*\*", re.DOTALL)
WIDTH, HEIGHT = 1280, 720
"""Of a slide, in pixels; reveal.js scales it to the screen."""
ROOM_WIDTH, ROOM_HEIGHT = 1200, 580
"""What a slide has below its heading."""
LARGEST, LINE, CHARACTER = 34, 1.3, 0.61
"""The largest type of code; the height of a line and the width of a character, in its sizes."""
REVEAL, HOME = "sphinx-revealjs==3.2.1", "sphinx_revealjs/_static/revealjs/"
"""What PyPI has of reveal.js: a wheel, of which nothing is installed, with the files as its makers built them (MIT)."""
STYLE = """
.reveal { font: 30px/1.3 "DejaVu Sans", Verdana, sans-serif; color: #222; background: #fff; }
.reveal .slides { text-align: left; }
.reveal h1 { font-size: 58px; margin: 180px 0 0; }
.reveal h2 { font-size: 24px; margin: 0 0 16px; color: #666; font-weight: normal; }
.reveal pre { margin: 0; line-height: 1.3; font-family: "DejaVu Sans Mono", monospace; white-space: pre; }
.reveal img { display: block; width: 1200px; height: 580px; object-fit: contain; }
.reveal table { border-collapse: collapse; font-size: 22px; }
.reveal td, .reveal th { border-bottom: 1px solid #ccc; padding: 6px 14px; text-align: left; }
.reveal .words { font-size: 40px; margin-top: 120px; }
.reveal .asked li { list-style: none; border: 2px solid #0072b2; margin: 14px 0; padding: 6px 20px; }
.reveal a { color: inherit; }
"""


@dataclass
class Slide:
    """What is shown, of which kind, and what is said about it; both HTML."""

    kind: str
    shown: str
    notes: str = ""


def cells_of(words: str) -> list:
    """The cells of a section or an exercise of the syllabus, from its heading to the next one."""
    number, is_exercise = int(re.search(r"\d+", words)[0]), words.startswith("ex ")
    home = home_of(words[3:]) if is_exercise else CHAPTERS[number]
    cells = nbformat.read(home, as_version=4).cells
    if is_exercise:
        start = f"**Exercise {words[3:]} "
        return [cell for cell in cells if cell.source.startswith(start)]
    title, found, inside = item(words)[0].removeprefix("0 "), [], False
    for cell in cells:
        heading = HEADING.search(cell.source) if cell.cell_type == "markdown" else None
        if heading:  # what stands before it is the end of the section before
            if inside and cell.source[: heading.start()].strip():
                found.append(new_markdown_cell(cell.source[: heading.start()]))
            cell.source, inside = cell.source[heading.start() :], heading[1].startswith(title)
        if inside and not cell.id.startswith("ex-") and not LEFT_OUT.search(cell.source):
            found.append(cell)
    return found


def slides_of(words: str) -> list[Slide]:
    """The slides of one section or exercise, the first with its title."""
    title = re.sub("^exercise", "Exercise", item(words)[0].removeprefix("0 "))
    made, said = [Slide("title", f"<h1>{html.escape(title)}</h1>")], []
    for cell in cells_of(words):
        shows = shown_text if cell.cell_type == "markdown" else shown_code
        if words.startswith("ex "):
            shows = shown_exercise
        for slide in shows(cell):
            if slide.kind == "notes":
                said.append(slide.shown)
                continue
            made[-1].notes += "".join(said)  # before a picture is shown one says what it will be
            said = []
            made.append(slide)
    made[-1].notes += "".join(said)
    rules = [slide for slide in made if slide.kind == "rule"]
    return [slide for slide in made if slide.kind != "rule"] + rules


def shown_exercise(cell) -> Iterator[Slide]:
    """An exercise's question as it stands."""
    yield Slide("words", f'<div class="words">{markdown2html_mistune(cell.source)}</div>')


def shown_text(cell) -> Iterator[Slide]:
    """Pictures, tables and rules of a text have slides; the rest is said."""
    for part in re.split(r"\n\n+", HEADING.sub("", cell.source).strip()):
        if found := PICTURE.fullmatch(part):
            path = ROOT / "chapters" / found[2]
            yield Slide("picture", image(base64.b64encode(path.read_bytes()).decode(), found[1]))
        elif part.startswith("|"):
            yield Slide("table", markdown2html_mistune(part))
        elif RULE.fullmatch(part) and part.count("**") == 2:
            yield Slide("rule", f'<div class="words">{markdown2html_mistune(part)}</div>')
        elif part:
            yield Slide("notes", markdown2html_mistune(part))


def shown_code(cell) -> Iterator[Slide]:
    """A guess is a question; other code has a slide, and what it prints or draws those after it."""
    statements = ast.parse(cell.source).body
    last = getattr(statements[-1], "value", None)
    if isinstance(last, ast.Call) and ast.unparse(last.func) == "predict":
        _, question, *choices = map(ast.literal_eval, last.args)
        items = "".join(f"<li>{html.escape(choice)}</li>" for choice in choices)
        words = f'<div class="words">{html.escape(question)}</div><ul class="asked">{items}</ul>'
        yield Slide("question", words)
        return
    if len(cell.source.splitlines()) > 1:  # one line is a panel, which is seen in the notebook
        colours = HtmlFormatter(noclasses=True, nowrap=True, style="xcode")
        yield Slide("code", pre(cell.source, highlight(cell.source, PythonLexer(), colours)))
    for output in cell.outputs:
        data = output.get("data", {"text/plain": output.get("text", "")})
        if "image/png" in data:
            yield Slide("picture", image(data["image/png"], data.get("text/plain", "")))
        elif data.get("text/plain", "").strip():
            yield Slide("printed", pre(data["text/plain"], html.escape(data["text/plain"])))


def image(png: str, alt: str) -> str:
    """A picture in the page itself."""
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{"".join(png.split())}">'


def pre(text: str, marked: str) -> str:
    """Lines in the largest type in which they fit."""
    lines = text.rstrip().split("\n")
    size = min(
        LARGEST,
        ROOM_HEIGHT / LINE / len(lines),
        ROOM_WIDTH / CHARACTER / max(map(len, lines)),
    )
    return f'<pre style="font-size:{size:.1f}px">{marked.rstrip()}</pre>'


def reveal_wheel(folder: Path) -> Path:
    """The wheel that has reveal.js, downloaded into ``folder`` where it is not there.

    Raises: CalledProcessError: pip, which has said why.
    """
    pattern = "sphinx_revealjs-*.whl"
    if not any(folder.glob(pattern)):
        ask = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        subprocess.run([*ask, str(folder), REVEAL], check=True)
    return next(folder.glob(pattern))


def page(name: str = "workshop", wheel: Path | None = None) -> str:
    """The slides as one HTML page; without the ``wheel`` that has reveal.js they stand below one another."""
    stacks = []
    for words in SYLLABI[name]:
        title, *rest = slides_of(words)
        heading = title.shown.replace("h1>", "h2>")
        sections = [
            f'<section data-kind="{slide.kind}">{heading if slide is not title else ""}{slide.shown}'
            f'<aside class="notes">{slide.notes}</aside></section>'
            for slide in (title, *rest)
        ]
        stacks.append(f"<section>{''.join(sections)}</section>")
    styles, scripts = ["aside { display: none }", STYLE], []
    if wheel:
        with zipfile.ZipFile(wheel) as files:
            read = lambda path: files.read(HOME + path).decode()
            styles = [read("dist/reset.css"), read("dist/reveal.css"), STYLE]
            scripts = [read("dist/reveal.js"), read("plugin/notes/notes.js")]
        options = f"width: {WIDTH}, height: {HEIGHT}, margin: 0.02, center: false, hash: true"
        # by default the arrow to the right would leave out all but titles
        options += ", navigationMode: 'linear'"
        scripts.append(
            f"Reveal.initialize({{{options}, slideNumber: 'c/t', plugins: [RevealNotes]}})"
        )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Where the bytes go: a workshop</title>'
        f"<style>{''.join(styles)}</style></head><body>"
        f'<div class="reveal"><div class="slides">{"".join(stacks)}</div></div>'
        + "".join(f"<script>{script}</script>" for script in scripts)
        + "</body></html>"
    )


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(wheel=reveal_wheel(target.parent)), encoding="utf-8")
    print(f"Open {target} in a browser; arrows move, s shows the notes in a second window.")
