"""One notebook as the inside of a page: text, code and stored outputs, with an anchor for every cell.

Markdown goes through nbconvert's own renderer, code through Pygments. Formulas become MathML here, so that a page
needs no script and no other machine for them. Alt texts stand where the notebook stored them.
"""

import ast
import base64
import hashlib
import re
from dataclasses import dataclass, field
from html import escape, unescape
from io import BytesIO
from pathlib import Path

import nbformat
import numpy as np
from exercises import exercise_html
from latex2mathml.converter import convert as mathml
from nbconvert.filters.ansi import ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from PIL import Image
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from dev.notebooks import kind_of, place_of
from memkit.widgets.step_film import FILM

TAG = re.compile(r"<[^>]+>")
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
        return self.files.picture(self.files.figure(url), text)

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

    def figure(self, url: str) -> Path:
        """A drawn figure in the repository; as SVG where there is one, which follows a light or a dark page."""
        path = (self.folder / url).resolve()
        drawn = path.with_suffix(".svg")
        return drawn if drawn.exists() and drawn.stat().st_size < 400_000 else path

    def picture(self, source: Path | bytes, alt: str) -> str:
        """A picture with its words. Its size is written down, so that the text below it does not jump.

        One of pixels has a twin for a dark page.
        """
        name = (
            source.name
            if isinstance(source, Path)
            else f"{hashlib.sha256(source).hexdigest()[:16]}.png"
        )
        data = source.read_bytes() if isinstance(source, Path) else source
        target, letters = self.out / "pictures" / name, letters_of(data)
        if name.endswith(".png"):
            drawn = Image.open(BytesIO(data)).convert("RGB")
            data, (width, height) = in_few_colours(drawn), drawn.size
            target.with_stem(f"{target.stem}-dark").write_bytes(in_few_colours(in_dark(drawn)))
        elif found := re.search(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"', data):
            width, height = (round(float(each)) for each in found.groups())
        else:
            raise ValueError(
                f"{name} is neither a PNG nor an SVG with a viewBox that begins at 0 0"
            )
        target.write_bytes(data)
        size = f'width="{width}" height="{height}" style="--least: {width * 11 / letters:.0f}px"'
        image = f'<img src="pictures/{target.name}" alt="{escape(unescape(alt))}" {size} loading="lazy">'
        if name.endswith(".png"):
            dark = f'srcset="pictures/{target.stem}-dark.png" media="(prefers-color-scheme: dark)"'
            image = f"<picture><source {dark}>{image}</picture>"
        return f'<span class="picture">{image}</span>'

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
        return html.replace("<table>", '<div class="scroll"><table>').replace(
            "</table>", "</table></div>"
        )


def stem_of(path: Path) -> str:
    """The name of a notebook's page: its own, and for a companion its folder's behind it.

    >>> stem_of(Path("further/01_memory_breakdown.ipynb"))
    '01_memory_breakdown_further'
    """
    return f"{path.stem}_{kind_of(path)}".removesuffix("_")


def letters_of(picture: bytes) -> float:
    """The height of a picture's smallest letters in its own pixels; a chart of matplotlib has the style's 10 points."""
    if sizes := re.findall(rb'font-size="([\d.]+)"', picture):
        return min(map(float, sizes))
    return 15 if b"Software\0Matplotlib" in picture else 11


PAPER, INK = (0x16, 0x16, 0x16), (0xE8, 0xE8, 0xE8)
"""The dark page's, as ``book.css`` has them; drawn figures stand on the same ground."""


def in_dark(drawn: Image.Image) -> Image.Image:
    """A chart that was drawn on white, on the dark page's ground: its greys go from ink to paper, its colours stay."""
    pixels = np.asarray(drawn) / 255
    is_colour = np.clip(np.ptp(pixels, axis=-1, keepdims=True) / 0.25, 0, 1)  # an edge is between
    paper, ink = np.array([PAPER, INK]) / 255
    greys = ink + (paper - ink) * pixels.mean(axis=-1, keepdims=True)
    mixed = is_colour * pixels + (1 - is_colour) * greys
    return Image.fromarray(np.rint(255 * mixed).astype(np.uint8))


def in_few_colours(drawn: Image.Image) -> bytes:
    """A chart as PNG in 96 colours: a third of the bytes."""
    kept = BytesIO()
    drawn.quantize(96).save(kept, "PNG", optimize=True)
    return kept.getvalue()


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
        words = " ".join(unescape(TAG.sub(" ", cell.source)).split())
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
        data, metadata = output.data, output.metadata
        if FILM in data:
            still = self.files.picture(
                base64.b64decode(data["image/png"]), metadata["image/png"]["alt"]
            )
            return f'<div class="output film" data-film="{self.files.film("".join(data[FILM]))}">{still}</div>'
        for kind in ("image/svg+xml", "image/png"):
            if kind in data:
                alt = metadata.get(kind, {}).get("alt") or data.get("text/plain", "")
                if kind == "image/svg+xml":
                    return f'<div class="picture output">{"".join(data[kind])}</div>'
                return f'<div class="output">{self.files.picture(base64.b64decode(data[kind]), alt)}</div>'
        if "text/html" in data:
            return f'<div class="output scroll">{self.relinked("".join(data["text/html"]))}</div>'
        if "text/markdown" in data:
            return (
                f'<div class="output">{self.files.markdown("".join(data["text/markdown"]))}</div>'
            )
        return f'<pre class="output">{ansi2html("".join(data.get("text/plain", "")))}</pre>'

    def relinked(self, html: str) -> str:
        """Stored HTML whose links lead to pages of the site, and whose wide tables say that they go on."""
        html = html.replace('<div style="overflow-x:auto" tabindex="0">', '<div class="scroll">')
        return re.sub(
            r'href="([^"]+)"', lambda found: f'href="{self.files.address(found[1])}"', html
        )
