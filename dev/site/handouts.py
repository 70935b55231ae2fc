"""Printable pages: on a sheet a lesson what it asks to keep, and notes.

Chapter 01 has a second sheet: the ledger of a block and a blank timeline to draw one's own run into. The site's
``handouts.html`` shows all of them, and prints the one whose address is open; ``make handouts`` makes files of them.
``python dev/site/handouts.py build/site build/handouts`` prints each to ``01.pdf`` and so on, all to ``all.pdf``, and
appendix D's sheet for the wall to ``D.pdf``, on A3.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from notebook_page import Files, Page

from dev.notebooks import family_of

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FIGURES = Path(__file__).resolve().parents[2] / "figures"
AXES = (
    "Empty axes of two training steps: bytes upwards, the phases of each step from left to right."
)
WALL = """<style>@page {{ size: A3 landscape; margin: 8mm }} body {{ margin: 0 }}
img {{ width: 100%; max-height: 280mm; object-fit: contain }}</style><img src="{picture}">"""
NOTES = '<div class="notes"><h3>Notes</h3></div>'


def cells_of(path: Path) -> dict[str, dict]:
    """The cells of a chapter, and of the notebooks beside it, by their ids."""
    found = [
        cell
        for member in family_of(path)
        for cell in json.loads(member.read_text(encoding="utf-8"))["cells"]
    ]
    return {cell["id"]: cell for cell in found}


def to_keep(path: Path) -> str:
    """A lesson's sentences in bold, each a paragraph of its own, and the table that it closes with."""
    text = "\n\n".join(
        "".join(cell["source"])
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "markdown"
    )
    rules = re.findall(r"^\*\*([^*]+)\*\*$", text, re.MULTILINE)
    tables = re.findall(
        r"(?:^\|.*\n?)+", text.partition("## Back to the question")[2], re.MULTILINE
    )
    return "\n".join([*(f"- {rule}" for rule in rules), "", *tables[:1]])


def blank_timeline() -> str:
    """Axes of two training steps without a curve: a reader draws the upper edge of a run of their own."""
    names = ("forward", "backward", "optimizer", "zero_grad")
    ends = (70, 210, 360, 440, 480, 620, 770, 850, 890)
    lines = [
        f'<line x1="70" y1="{y}" x2="890" y2="{y}" stroke="#aaa"/>' for y in range(20, 261, 48)
    ]
    lines += [
        f'<line x1="{x}" y1="20" x2="{x}" y2="260" stroke="#555" stroke-dasharray="3 3"/>'
        for x in ends
    ]
    words = [f'<text x="60" y="{y + 4}" text-anchor="end">____</text>' for y in range(20, 261, 48)]
    for number, (start, end) in enumerate(pairwise(ends)):
        low = 276 + 14 * (number % 4 == 3)
        words.append(
            f'<text x="{(start + end) / 2}" y="{low}" text-anchor="middle">{names[number % 4]}</text>'
        )
    words += [
        '<text x="60" y="10" text-anchor="end">GiB</text>',
        '<text x="275" y="306">step 1</text>',
    ]
    words.append('<text x="685" y="306">step 2</text>')
    picture = f'<svg viewBox="0 0 900 312" font-size="12" role="img" aria-label="{AXES}">{"".join(lines + words)}</svg>'
    return (
        "<h3>A step of your own run</h3><p>Model ____________ micro-batch ______ tokens ______ recipe ____________ "
        "card ____________. Write sizes on the axis, draw a line for the card, then the upper edge of memory. Mark the "
        "four moments at which the peak can be, and write W, G, S, activations and temporaries where they are.</p>"
        f"{picture}"
    )


def first_picture(cells: dict[str, dict], text: str, files: Files) -> str:
    """The first picture that a chapter names, or else the first that its cells have drawn."""
    for alt, picture in re.findall(r"!\[(.*?)\]\((.+?)\)", text, re.DOTALL)[:1]:
        return files.figure(picture, alt)
    outputs = (output for cell in cells.values() for output in cell.get("outputs", ()))
    return files.stored(next(each for each in outputs if "image/png" in each.get("data", {})))


def sheets_of(path: Path, files: Files) -> str:
    """The sheets of one chapter, as the inside of the page."""
    cells = cells_of(path)
    text = "\n".join("".join(cell["source"]) for cell in cells.values())
    title = re.match(r"# (.+)", text)[1]
    keep = re.sub("</?a[^>]*>", "", files.markdown(to_keep(path)))
    inside = f"<h2>{title}</h2>{first_picture(cells, text, files)}<h3>To keep</h3>{keep}"
    number = path.stem[:2]
    if number != "01":
        return f'<section class="handout" id="handout-{number}">{inside}{NOTES}</section>'
    ledger = "".join(
        text for output in cells["ledger-block"]["outputs"] for text in output["data"]["text/plain"]
    )
    second = (
        f"<h3>The ledger: what one block keeps</h3><pre>{ledger}</pre>{blank_timeline()}{NOTES}"
    )
    sheets = (f'<div class="sheet">{each}</div>' for each in (inside, second))
    return f'<section class="handout" id="handout-{number}">{"".join(sheets)}</section>'


def handouts_page(chapters: list[Path], files: Files) -> Page:
    """The sheets of these chapters, one after another."""
    page = Page(stem="handouts", title="Handouts: a sheet a chapter")
    links = ", ".join(
        f'<a href="#handout-{path.stem[:2]}">{path.stem[:2]}</a>' for path in chapters
    )
    page.html = (
        f'<h1>{page.title}</h1><p class="screen">What to keep of a lesson, on a sheet to print. '
        f'Choose a chapter, and the browser prints its sheet alone: {links}; <a href="#main">all of them</a>.</p>'
    ) + "".join(sheets_of(path, files) for path in chapters)
    return page


def print_page(browser: str, address: str, pdf: Path) -> None:
    """Print a page of the site as a Chromium does."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
    subprocess.run(
        [browser, *flags, f"--print-to-pdf={pdf.resolve()}", address],
        check=True,
        capture_output=True,
    )


def print_wall(browser: str, pdf: Path) -> None:
    """Appendix D's picture, as large as A3 is."""
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as sheet:
        sheet.write(WALL.format(picture=(FIGURES / "D_cheat_sheet.svg").as_uri()))
        sheet.flush()
        print_page(browser, Path(sheet.name).as_uri(), pdf)


def write_handouts(site: Path, folder: Path) -> None:
    """A PDF for each chapter, one of all, and the sheet for the wall. Raises: ValueError: there is no Chromium."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise ValueError(
            f"no Chromium prints the sheets; open {site / 'handouts.html'} in a browser and print there"
        )
    folder.mkdir(parents=True, exist_ok=True)
    page = (site / "handouts.html").resolve()
    numbers = re.findall('id="handout-([0-9]+)"', page.read_text(encoding="utf-8"))
    for name, mark in [("all", ""), *((number, f"#handout-{number}") for number in numbers)]:
        print_page(browser, f"{page.as_uri()}{mark}", folder / f"{name}.pdf")
        print(folder / f"{name}.pdf")
    print_wall(browser, folder / "D.pdf")
    print(folder / "D.pdf")


if __name__ == "__main__":
    try:
        write_handouts(Path(sys.argv[1]), Path(sys.argv[2]))
    except ValueError as error:
        sys.exit(f"handouts: {error}")
