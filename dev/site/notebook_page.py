"""One notebook as the inside of a page: text, code and stored outputs, with an anchor for every cell.

Markdown goes through nbconvert's own renderer, code through Pygments. Formulas become MathML here, so that a page
needs no script and no other machine for them. Alt texts stand where the notebook stored them.
"""

import ast
import hashlib
import re
from base64 import b64decode
from dataclasses import dataclass, field
from html import escape, unescape
from itertools import cycle
from pathlib import Path

import nbformat
from exercises import exercise_html, guess_html
from latex2mathml.converter import convert as mathml
from nbconvert.filters.ansi import ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from dev.notebooks import kind_of, place_of
from memkit.widgets.step_film import FILM

TAG = re.compile(r"<[^>]+>")
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
FRAMED = re.compile(
    r'<div style="overflow-x:auto" tabindex="0">(<table>.*?</table>)</div>', re.DOTALL
)
NO_GUESS = re.compile(r"<p>([^<]*)<br>    your guess: none<br>")
"""A question before its answer, as a run stores it that nobody took part in."""
CELL = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.DOTALL)
LEAST_LETTERS, PHONE_LETTERS, PROSE_LETTERS = 9, 40, 14
"""Letters of a table's narrowest column; of the longest words of all columns that 352 pixels have room for; and of the
mean cell from which on a table is read by its rows, and not compared by its columns as numbers are."""
FOLDED = re.compile(r"<details>(\s*<summary>\s*(?:Solution|Hint|Answers))")
"""What stays folded on paper too: a reader who prints a chapter has not solved its exercises yet."""


NOT_SEARCHED = re.compile("^ex-.*-(stub|check)$")
"""Cells of an exercise without words of their own; lists of imports are left out too."""

DOCUMENTS = {
    "dev/NUMBERS.md": "numbers",
    "dev/MACHINES.md": "machines",
    "stepscope/README.md": "stepscope",
}
"""Text files of the repository that are pages of the site, by the names of these pages."""


@dataclass(kw_only=True)
class Page:
    """What the frame around a page needs to know of it. ``search`` has (anchor, heading, text) for each cell.

    ``notebook`` is its path in the folder of the chapters, ``kind`` that of a companion, and ``family`` has the pages
    of the lesson and its companions.
    """

    stem: str
    title: str
    html: str = ""
    facts: str = ""
    question: str = ""
    picture: str = ""
    notebook: str = ""
    kind: str = ""
    family: list["Page"] = field(default_factory=list)
    headings: list[tuple[str, str]] = field(default_factory=list)
    search: list[tuple[str, str, str]] = field(default_factory=list)


class Renderer(IPythonRenderer):
    """nbconvert's renderer, with formulas as MathML, pictures in frames and links between pages."""

    def __init__(self, files: "Files"):
        super().__init__(escape=False, exclude_anchor_links=True)
        self.files = files

    def inline_math(self, body: str) -> str:
        return mathml(unescape(body).strip())

    def block_math(self, body: str) -> str:
        return f'<div class="scroll">{mathml(unescape(body).strip(), display="block")}</div>'

    def heading(self, text: str, level: int, **attrs) -> str:
        anchor = re.sub(r"\s+", "-", unescape(TAG.sub("", text)).strip())
        link = f'<a class="anchor" href="#{escape(anchor)}" aria-label="Link to this place"></a>'
        return f'<h{level} id="{escape(anchor)}">{text}{link if level > 1 else ""}</h{level}>\n'

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return self.files.figure(url, text)

    def link(self, text: str, url: str, title: str | None = None) -> str:
        address = self.files.address(url)
        return f'<a href="{escape(address)}">{text}</a>' if address else text

    def block_code(self, code: str, info: str | None = None) -> str:
        return coloured(code) if info == "python" else f"<pre><code>{escape(code)}</code></pre>\n"


class Files:
    """The files that pages show or link to: copied into the site when a page asks for one, and no others.

    ``folder`` is where the links of the text begin: that of its notebook.
    """

    def __init__(self, root: Path, out: Path, folder: Path | None = None):
        self.root, self.out, self.folder = root, out, folder or root / "chapters"
        self.pixels: dict[str, bytes] = {}  # of a picture, for those who show a link to its page

    def picture(self, name: str, svg: str, alt: str, narrow: str = "") -> str:
        """An SVG with its words, and its twin for a phone. Its size is written down, so that no text below it jumps."""
        size, least = self.written(name, svg)
        image = (
            f'<img src="pictures/{name}.svg" alt="{escape(unescape(alt))}" {size} style="--least: {least}px" '
            'loading="lazy">'
        )
        if narrow:
            size, _ = self.written(f"{name}-narrow", narrow)
            twin = f'<source srcset="pictures/{name}-narrow.svg" media="(max-width: 40rem)" {size}>'
            image = f"<picture>{twin}{image}</picture>"
        return f'<span class="picture">{image}</span>'

    def written(self, name: str, svg: str) -> tuple[str, int]:
        """A picture's size as attributes, and the width at which its letters are 11 pixels.

        Raises: ValueError: it is no SVG, or it does not say how large it is.
        """
        units = re.search(r'<svg[^>]* viewBox="0 0 ([\d.]+) [\d.]+"', svg)
        size = re.search(r'<svg[^>]* (width="[\d.]+" height="[\d.]+")', svg)
        if not units or not size:
            raise ValueError(f"{name} is no SVG with a size and a viewBox that begins at 0 0")
        (self.out / "pictures" / f"{name}.svg").write_text(svg, encoding="utf-8")
        rounded = re.sub(r"[\d.]+", lambda number: f"{float(number[0]):.0f}", size[1])
        return rounded, round(float(units[1]) * 11 / letters_of(svg))

    def figure(self, url: str, alt: str) -> str:
        """A drawn figure of the repository; one that can be drawn anew for a phone is there twice."""
        drawn = (self.folder / url).with_suffix(".svg")
        narrow = drawn.with_stem(f"{drawn.stem}-narrow")
        twin = narrow.read_text(encoding="utf-8") if narrow.exists() else ""
        return self.picture(drawn.stem, drawn.read_text(encoding="utf-8"), alt, twin)

    def stored(self, output: dict) -> str:
        """The picture of a cell's output: its pixels have it as SVG in their metadata.

        Raises: ValueError: they have not.
        """
        told, pixels = output["metadata"]["image/png"], b64decode(output["data"]["image/png"])
        if "svg" not in told:
            raise ValueError(
                f"{told.get('alt', '')[:60]!r}… has no SVG beside its pixels. Run `make run-notebooks`"
            )
        name = hashlib.sha256(pixels).hexdigest()[:16]
        self.pixels[name] = pixels
        return self.picture(name, told["svg"], told["alt"], told.get("narrow", ""))

    def film(self, text: str) -> str:
        """Where a page fetches the events of a film, which its notebook has stored."""
        name = f"films/{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        (self.out / "films").mkdir(exist_ok=True)
        (self.out / name).write_text(text, encoding="utf-8")
        return name

    def address(self, url: str) -> str:
        """Where a link of a notebook or of README leads on the site; '' where the site has no such page."""
        if re.match(r"https?:|mailto:|#", url):
            return url
        path, mark, fragment = url.partition("#")
        # README's links begin there
        from_root = path.startswith(("figures/", "chapters/")) or path in DOCUMENTS
        file = ((self.root if from_root else self.folder) / path).resolve()
        for document, stem in DOCUMENTS.items():
            if file == self.root / document:
                return f"{stem}.html{mark}{fragment}"
        if path.endswith(".ipynb"):
            return f"{stem_of(file)}.html{mark}{fragment}"
        if not file.is_file():
            return ""
        (self.out / "files").mkdir(exist_ok=True)
        (self.out / "files" / file.name).write_bytes(file.read_bytes())
        return f"files/{file.name}"

    def markdown(self, source: str) -> str:
        """Markdown as HTML."""
        html = MarkdownWithMath(renderer=Renderer(self)).render(source)
        html = FOLDED.sub(r'<details class="folded">\1', html)
        return TABLE.sub(lambda found: framed_table(found[0]), html)


def stem_of(path: Path) -> str:
    """The name of a notebook's page: its own, and for a companion its folder's behind it.

    >>> stem_of(Path("further/01_memory_breakdown.ipynb"))
    '01_memory_breakdown_further'
    """
    return f"{path.stem}_{kind_of(path)}".removesuffix("_")


def letters_of(svg: str) -> float:
    """The height of a picture's smallest letters in its own units; matplotlib's exponents, 0.7 of a size, are not read.

    >>> letters_of('<text font-size="12">a</text><tspan style="font: 10px DejaVu"/><tspan style="font-size: 7px"/>')
    10.0
    """
    sizes = {float(size) for size in re.findall(r'font(?:-size)?(?:="|: )([\d.]+)', svg)}
    return min(size for size in sizes if round(size / 0.7, 1) not in sizes)


def framed_table(table: str) -> str:
    """A table in a frame that scrolls; one of words that are wider than a phone has its columns' names in its cells.

    A phone shows a row of it as lines, each under its column's name, so that nothing lies outside.

    >>> framed_table("<table><tr><th>a</th></tr><tbody><tr><td>1</td></tr></tbody></table>")
    '<div class="scroll"><table><tr><th>a</th></tr><tbody><tr><td>1</td></tr></tbody></table></div>'
    """
    head, mark, body = table.partition("<tbody>")
    names = [unescape(TAG.sub("", name)).strip(" …\n") for name in CELL.findall(head)]
    texts = [unescape(TAG.sub("", text)) for text in CELL.findall(table)]
    words = [" ".join(texts[number :: len(names)]).split() for number in range(len(names))]
    wide = sum(max(LEAST_LETTERS, *map(len, column)) for column in words if column)
    if wide <= PHONE_LETTERS or sum(map(len, texts)) < PROSE_LETTERS * len(texts):
        return f'<div class="scroll">{table}</div>'
    of = cycle(names)
    named = re.sub("<t[dh]", lambda cell: f'{cell[0]} data-column="{escape(next(of))}"', body)
    return f'<div class="scroll stacks">{head}{mark}{named}</div>'


def coloured(code: str) -> str:
    """Python with the colours of the style sheet."""
    return highlight(code, PythonLexer(), HtmlFormatter(cssclass="code"))


def panel_call(source: str, names: list[str]) -> tuple[str, dict] | None:
    """Name and arguments of the panel that a cell shows.

    The arguments are ``None`` where the cell computes them: such a panel cannot be opened from its name alone.

    >>> panel_call("widgets.BitExplorer(saturates=False)", ["BitExplorer"])
    ('BitExplorer', {'saturates': False})
    >>> panel_call("lab = widgets.Lab(gradients)\\nlab", ["Lab"])
    ('Lab', None)
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in names:
            try:
                arguments = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
            except ValueError:
                arguments = None
            return name, None if node.args else arguments
    return None


def exercise_call(source: str) -> str:
    """The exercise that a cell checks, such as ``1.2``; '' if it checks none."""
    found = re.fullmatch(r'check\("([\d.]+)", \w+\)', source.strip())
    return found[1] if found else ""


def guess_call(source: str) -> list[str]:
    """The question and the choices of a guess that a cell asks for; nothing if it asks for none.

    >>> guess_call('predict("99-moons", "How many moons has Mars?", "0", "2")')
    ['How many moons has Mars?', '0', '2']
    """
    if not source.startswith("predict("):
        return []
    return [ast.literal_eval(each) for each in ast.parse(source, mode="eval").body.args[1:]]


class ChapterWriter:
    """Writes the cells of one notebook; ``panels`` says what stands in place of a panel's stored picture."""

    def __init__(self, files: Files, panels):
        self.files, self.panels = files, panels

    def page(self, path: Path) -> Page:
        """The notebook as a page.

        Raises: ValueError: it has no title in its first cell, or it was not run from top to bottom.
        """
        notebook = nbformat.read(path, as_version=4)
        first = notebook.cells[0].source
        title = re.match(r"# (.+)", first)
        if not title:
            raise ValueError(
                f"{path.name} begins with {first[:40]!r}; a chapter begins with '# ' and its title"
            )
        counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
        if counts != list(range(1, len(counts) + 1)):
            first = next(n for n, count in enumerate(counts, 1) if count != n)
            raise ValueError(
                f"{path.name}: its outputs are not of one clean run; code cell {first} has the number "
                f"{counts[first - 1]}. Run `make run-notebooks ONLY=chapters/{place_of(path)}`"
            )
        self.files.folder = path.parent
        page = Page(stem=stem_of(path), title=title[1], notebook=place_of(path), kind=kind_of(path))
        facts = re.search(r"^\*(.+)\*$", first, re.MULTILINE)
        page.facts = facts[1] if facts else ""
        page.html = "\n".join(self.cell(cell, page) for cell in notebook.cells)
        page.picture = next(iter(re.findall(r'<span class="picture">.*?</span>', page.html)), "")
        asked = (
            re.search(r"^## The question\n(.*)", cell.source, re.MULTILINE | re.DOTALL)
            for cell in notebook.cells
        )
        # a lesson for an emergency begins with what to ask, and no heading
        begins = re.search(r"^\*.+\*\n\n(.+)$", first, re.MULTILINE)
        told = begins[1] if begins and not page.kind else ""
        page.question = next((found[1] for found in asked if found), told)
        return page

    def cell(self, cell, page: Page) -> str:
        """One cell in a frame that carries its id; the page's headings and what a search finds are noted."""
        html = (
            self.files.markdown(cell.source)
            if cell.cell_type == "markdown"
            else self.code_cell(cell)
        )
        anchor = f"cell-id={cell.id}"
        heading = page.headings[-1][1] if page.headings else page.title
        for level, name, words in re.findall(r'<h([1-6]) id="([^"]*)">(.*?)</h', html):
            if level == "2":
                page.headings.append((name, TAG.sub("", words)))
                anchor, heading = unescape(name), unescape(page.headings[-1][1])
        marks = r"\*\*|`" if cell.cell_type == "markdown" else r"$^"
        words = " ".join(re.sub(marks, "", unescape(TAG.sub(" ", cell.source))).split())
        if not NOT_SEARCHED.search(cell.id) and "setup" not in cell.metadata.get("tags", []):
            page.search.append((anchor, unescape(heading), words))
        return f'<div class="cell {cell.cell_type}" id="cell-id={cell.id}">{html}</div>'

    def code_cell(self, cell) -> str:
        """Code and what it printed. A cell whose code the notebook folds is folded here too."""
        number = cell.get("execution_count") or " "
        source = f'<span class="prompt">In [{number}]</span>{coloured(cell.source)}'
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            source = f"<details><summary>Code of this cell</summary>{source}</details>"
        if exercise := exercise_call(cell.source):
            return source + exercise_html(exercise)
        if asked := guess_call(cell.source):
            return source + guess_html(*asked)
        call = panel_call(cell.source, self.panels.names) if cell.outputs else None
        stored = "".join(map(self.output, cell.outputs))
        if cell.metadata.get("jupyter", {}).get("outputs_hidden"):  # an answer, after a guess
            stored = f"<details><summary>What this cell shows</summary>{stored}</details>"
        return source + (self.panels.html(*call, stored) if call else stored)

    def output(self, output) -> str:
        """One stored output: the richest form that a page can show."""
        if output.output_type == "stream":
            return f'<pre class="output">{ansi2html(output.text)}</pre>'
        if output.output_type == "error":
            return f'<pre class="output">{ansi2html(chr(10).join(output.traceback))}</pre>'
        data = output.data
        if FILM in data:
            film = self.files.film("".join(data[FILM]))
            return f'<div class="output film" data-film="{film}">{self.files.stored(output)}</div>'
        if "image/png" in data:
            return f'<div class="output">{self.files.stored(output)}</div>'
        if "text/html" in data:
            return f'<div class="output scroll">{self.relinked("".join(data["text/html"]))}</div>'
        if "text/markdown" in data:
            return (
                f'<div class="output">{self.files.markdown("".join(data["text/markdown"]))}</div>'
            )
        return f'<pre class="output">{ansi2html("".join(data.get("text/plain", "")))}</pre>'

    def relinked(self, html: str) -> str:
        """Stored HTML whose links lead to pages of the site, and whose wide tables say that they go on."""
        html = FRAMED.sub(lambda found: framed_table(found[1]), html)
        html = NO_GUESS.sub(r'<p>\1<br><span data-guessed="\1" hidden></span>', html)
        return re.sub(
            r'href="([^"]+)"', lambda found: f'href="{self.files.address(found[1])}"', html
        )
