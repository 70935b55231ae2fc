"""Slides for the workshop of 90 minutes, from the chapters' own cells, by nbconvert and reveal.js.

``python course/slides.py FILE`` (``make slides``) writes one page. A section of the syllabus in ``course/GUIDE.md``
begins to the right, its cells stand below one another, each with its stored output; code that a chapter folds is
left out, and so are checks, hints and solutions. The page loads reveal.js from the network.
"""

import re
import sys
from pathlib import Path

import nbformat
from nbconvert import SlidesExporter
from nbformat.v4 import new_markdown_cell, new_notebook
from traitlets.config import Config

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "course")]

from guide import CHAPTERS, SYLLABI, home_of, item

HEADING = re.compile(r"^##? (.+)$", re.MULTILINE)
FOLDED = "folded"
LEFT_OUT = re.compile(
    r"<details>|^check\(|^my_guess|give_back\(|\bdoctor\(|^import |^from ", re.MULTILINE
)


def cells_of(words: str) -> list:
    """The cells of a section or an exercise of the syllabus, from its heading to the next one."""
    number, is_exercise = int(re.search(r"\d+", words)[0]), words.startswith("ex ")
    cells = nbformat.read(
        home_of(words[3:]) if is_exercise else CHAPTERS[number], as_version=4
    ).cells
    if is_exercise:
        start = f"**Exercise {words[3:]} "
        return [new_markdown_cell(cell.source) for cell in cells if cell.source.startswith(start)]
    title, found, inside = item(words)[0].removeprefix("0 "), [], False
    for cell in cells:
        heading = HEADING.search(cell.source) if cell.cell_type == "markdown" else None
        if heading:
            inside = heading[1].startswith(title)
        if inside and heading:
            cell.source = cell.source[
                heading.start() :
            ]  # before it is the end of the section before
        if inside and not cell.id.startswith("ex-") and not LEFT_OUT.search(cell.source):
            found.append(cell)
    return found


def slides(name: str = "workshop"):
    """A notebook of a syllabus: what stands to the right of what, and what below."""
    made = []
    for words in SYLLABI[name]:
        for number, cell in enumerate(cells_of(words)):
            is_folded = cell.metadata.get("jupyter", {}).get("source_hidden", False)
            cell.metadata = {"slideshow": {"slide_type": "subslide" if number else "slide"}}
            cell.metadata["tags"] = [FOLDED] * is_folded
            if cell.cell_type == "markdown":
                cell.source = re.sub(r"\]\((\.\./)+figures/", f"]({ROOT}/figures/", cell.source)
            made.append(cell)
    return new_notebook(cells=made, metadata={"title": "Where the bytes go: a workshop"})


def page(name: str = "workshop") -> str:
    """The slides as one HTML page."""
    settings = Config()
    settings.TagRemovePreprocessor.enabled = True
    settings.TagRemovePreprocessor.remove_input_tags = {FOLDED}
    settings.SlidesExporter.reveal_scroll = True
    settings.SlidesExporter.exclude_input_prompt = settings.SlidesExporter.exclude_output_prompt = (
        True
    )
    return SlidesExporter(
        config=settings, embed_images=True, reveal_number="c/t"
    ).from_notebook_node(slides(name), {"metadata": {"path": str(ROOT)}})[0]  # where it may look


if __name__ == "__main__":
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
    print(f"Open {sys.argv[1]} in a browser; arrows move, s shows a second window for who speaks.")
