"""The book as a site: ``python dev/site/build.py build/site`` writes pages that need no Jupyter and no other machine.

Everything is read when it is built: chapters from their notebooks as they are stored, the first page from README and
each chapter's own question, the ledger and the questions from their files.
"""

import json
import re
import shutil
import sys
from html import escape
from pathlib import Path

import jinja2
from pygments.formatters import HtmlFormatter

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "chapters")]

from answer import OPENING, address_of, cards, film_name, first_screen, links_of
from handouts import handouts_page
from notebook_page import DOCUMENTS, ChapterWriter, Files, Page
from panels import Panels

import memkit
from book.claims import GROUPS, VERDICTS, load_claims
from book.ledger_search import entry_of
from book.question_cards import page_of
from book.questions import load_questions
from dev.notebooks import notebooks
from memkit.widgets.step_film import SCRIPT
from stepscope.experts import PUBLISHED_MODELS

KINDS = {"": "the lesson", "exercises": "its exercises", "further": "what goes further"}
OTHER_NAMES = {
    "04": "also called gradient checkpointing, activation checkpointing, rematerialization"
}
EMPTY_HEADER = re.compile("<th></th>")  # a corner of a table heads nothing
# a question that needs its picture
OF_THE_PICTURE = re.compile("(?:figure|picture) above|of the picture")
OWN_BACKGROUND = re.compile(r"background(-color)?:[^;}]+;?")


def section(readme: str, title: str) -> str:
    """What stands under a heading of README. Raises: ValueError: there is no such heading."""
    found = re.search(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", readme, re.MULTILINE | re.DOTALL
    )
    if not found:
        raise ValueError(f"README.md has no section {title!r}, which the first page shows")
    return found[1]


def document_page(path: str, files: Files) -> Page:
    """A text file of the repository as a page of ``DOCUMENTS``."""
    title, _, text = (ROOT / path).read_text(encoding="utf-8").partition("\n")
    page = Page(stem=DOCUMENTS[path], title=title.removeprefix("# "))
    files.folder = (ROOT / path).parent
    page.html = f"<h1>{escape(page.title)}</h1>{files.markdown(text)}"
    page.search = [("main", page.title, " ".join(part.split())) for part in text.split("\n\n")]
    return page


def opening_of(readme: str) -> list[str]:
    """README's paragraphs above its first heading, without picture and commands."""
    opening = readme.partition("\n")[2].partition("\n## ")[0]
    opening = re.sub(r"^!\[.*\n|^```sh\n(?:.*\n)*?```\n", "", opening, flags=re.MULTILINE)
    return [part.strip() for part in opening.split("\n\n") if part.strip()]


def lessons_page(files: Files, chapters: list[Page]) -> Page:
    """What the book is, and its chapters with their minutes and their questions."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = Page(stem="lessons", title="The lessons and their questions")
    entries = "".join(
        f'<div class="entry"><h2 id="{each.stem}"><a href="{each.stem}.html">{escape(each.title)}</a></h2>'
        f'<p class="quiet">{escape(each.facts)}</p>{each.picture if OF_THE_PICTURE.search(each.question) else ""}'
        f"{files.markdown(each.question)}</div>"
        for each in chapters
        if not each.kind
    )
    rest = section(readme, "The chapters").partition("\n[Exercises]")[2]
    about = "\n\n".join(opening_of(readme))
    page.html = (
        f"<h1>{page.title}</h1>{files.markdown(about)}"
        f'<div class="entries">{entries}</div>{files.markdown(f"[Exercises]{rest}")}'
    )
    return page


def first_page(files: Files, site: str) -> Page:
    """The film of a step, what the book is, each chapter in a line, and what the tool and the numbers are."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    title = readme.partition("\n")[0].removeprefix("# ").strip()
    _, about, died = opening_of(readme)
    listed = section(readme, "The chapters").partition("\n[Exercises]")[0]
    listed = re.sub(r"^\| (?:chapter|---).*\n|^\|---.*\n", "", listed, flags=re.MULTILINE)
    listed = re.sub(r"^\| (.+?) \| (.+?) \|.*", r"- \1: \2", listed, flags=re.MULTILINE)
    parts = {
        "Does it fit my card?": first_screen(files.out, site),
        "The lessons": f'<div class="listed">{files.markdown(listed)}</div><p><a href="lessons.html">All '
        'with their questions and minutes</a>, and what a teacher needs. <a href="claims.html">Every claim</a> of the '
        'ledger has an address that can be cited; <a href="questions.html">the questions</a> say why each choice is '
        "right or wrong.</p>",
        "Your own program": files.markdown(section(readme, "Your own program")),
        "How good are the numbers?": files.markdown(section(readme, "How good are the numbers?")),
        "How to run it": files.markdown(section(readme, "Start")),
    }
    page = Page(stem="index", title=title)
    # as GitHub does
    page.headings = [(words.lower().replace(" ", "-").replace("?", ""), words) for words in parts]
    asked = (
        "how much memory VRAM do I need does it fit fine-tune train GPU 7B 8B 13B 70B LoRA QLoRA"
    )
    page.search.append(
        (page.headings[0][0], "Does it fit my card?", f"{asked} {' '.join(PUBLISHED_MODELS)}")
    )
    film, lessons, own, *others = (
        f'<section id="{anchor}"><h2>{words}</h2>{parts[words]}</section>'
        for anchor, words in page.headings
    )
    two_sentences = " ".join(re.split(r"(?<=[.?!])\s+", about)[:2])
    page.html = (
        f"<h1>{escape(page.title)}</h1>{film}{files.markdown(f'{two_sentences} {died}')}{lessons}{own}"
        f'<div class="entries">{"".join(others)}</div>'
    )
    return page


def claims_page(files: Files) -> Page:
    """The ledger: every claim with an address of its own."""
    page = Page(stem="claims", title="The ledger, claim by claim")
    claims = load_claims()
    options = "".join(f"<option>{verdict}</option>" for verdict in VERDICTS)
    page.html = (
        f"<h1>{page.title}</h1><p>What you may read about GPU memory in training, and what is so: "
        f'{len(claims)} claims. The address of a claim ends in its number, as in <a href="claims.html#C028">'
        'claims.html#C028</a>. <a href="A_claims_ledger.html">Appendix A</a> says what the verdicts mean.</p>'
        '<form class="filter" data-of=".claim"><label>Words <input name="words" type="search"></label> <label>Verdict '
        f'<select name="verdict"><option value="">all</option>{options}</select></label> <output></output></form>'
    )
    for letter, (subject, _, _) in GROUPS.items():
        page.headings.append((f"group-{letter}", subject))
        page.html += f'<h2 id="group-{letter}">{escape(subject)}</h2>'
        for entry in (claim for claim in claims.values() if claim.group == letter):
            address = f'id="{entry.id}" data-verdict="{entry.verdict}"'
            page.html += f'<div class="claim" {address}>{cited(entry, files)}</div>'
            page.search.append(
                (entry.id, f"{entry.id}, {entry.verdict}", f"{entry.claim} {entry.answer}")
            )
    return page


def cited(entry, files: Files) -> str:
    """A claim as the ledger shows it, its number a link to its own address."""
    html = re.sub(
        r'href="([^"]+)"',
        lambda found: f'href="{escape(files.address(found[1]))}"',
        entry_of(entry),
    )
    return html.replace(
        f"<strong>{entry.id}</strong>", f'<a href="#{entry.id}"><strong>{entry.id}</strong></a>', 1
    )


def questions_page(files: Files) -> Page:
    """The questions, each choice with its reply folded under it."""
    page = Page(stem="questions", title="Questions, and why")
    questions = load_questions()
    page.html = (
        f"<h1>{page.title}</h1><p>{len(questions)} questions as an interviewer, a colleague or an examiner asks them. "
        "Open a choice to read why it is right or wrong. A lesson's exercises end with its questions.</p>"
        '<form class="filter" data-of=".claim"><label>Words <input name="words" type="search"></label> '
        "<output></output></form>"
    )
    for key, shown in questions.items():
        notebook, _, cell = shown.place.partition("::")
        address = escape(files.address(f"{notebook}#cell-id={cell}"))
        page.html += (
            f'<div class="claim" id="{key}">{page_of(key, shown)}'
            f'<p><small>Shown in <a href="{address}">lesson {shown.lesson}</a>.</small></p></div>'
        )
        page.search.append(
            (key, f"Question {key[1:]}", f"{shown.question} {shown.answer} {shown.because}")
        )
    return page


def card_of(page: Page, files: Files) -> str:
    """The picture that a link to the page is shown with: the first that its cells have drawn if that is its first.

    Else it is the first answer of the site.
    """
    own = re.search(r'src="pictures/([^"]+)\.svg"', page.picture)
    if not own or own[1] not in files.pixels:
        return address_of(*OPENING).replace(".html", ".png")
    (files.out / "pictures" / f"{own[1]}.png").write_bytes(files.pixels[own[1]])
    return f"pictures/{own[1]}.png"


def run_line(page: Page, files: Files) -> str:
    """How a reader runs this page."""
    (files.out / "files" / page.notebook).parent.mkdir(parents=True, exist_ok=True)
    notebook = json.loads((ROOT / "chapters" / page.notebook).read_text(encoding="utf-8"))
    for output in (each for cell in notebook["cells"] for each in cell.get("outputs", ())):
        # the pictures of this site, which no Jupyter shows
        for told in output.get("metadata", {}).values():
            for name in ("svg", "narrow"):
                told.pop(name, None)
    text = json.dumps(notebook, ensure_ascii=False, indent=1)
    (files.out / "files" / page.notebook).write_text(f"{text}\n", encoding="utf-8")
    return (
        '<p class="run"><strong>Run it.</strong> <code>make lab</code> in the repository opens the book in JupyterLab; '
        f'<a href="index.html#how-to-run-it">how to start</a>. This page is <a href="files/{page.notebook}" download>'
        f"{page.notebook}</a> with the outputs that are stored in it.{beside(page)}</p>"
    )


def beside(page: Page) -> str:
    """A sentence that links the pages of a lesson and its companions, from each of them to the others."""
    links = [
        f'<a href="{other.stem}.html">{KINDS[other.kind]}</a>'
        for other in page.family
        if other is not page
    ]
    return f" Beside it: {' and '.join(links)}." if links else ""


def families(pages: list[Page]) -> None:
    """Tell each page which others belong to its lesson; ``pages`` has companions behind their lesson."""
    for page in pages:
        page.family = [
            other for other in pages if Path(other.notebook).name == Path(page.notebook).name
        ]


def turns(pages: list[Page]) -> dict[str, tuple[Page | None, Page | None]]:
    """By stem the pages before and after one: a companion lies between its lesson and the next one."""
    line = [page for page in pages if not page.kind]
    found = {}
    for page in pages:
        at = line.index(page.family[0] if page.kind else page)
        before = page.family[0] if page.kind else line[at - 1] if at else None
        found[page.stem] = before, line[at + 1] if at + 1 < len(line) else None
    return found


def style() -> str:
    """The style sheet, with colours for code in light and in dark."""
    light, dark = (
        OWN_BACKGROUND.sub("", HtmlFormatter(style=name).get_style_defs(".code"))
        for name in ("xcode", "github-dark")
    )
    own = (HERE / "book.css").read_text(encoding="utf-8")
    return f"{own}\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def write_search(pages: list[Page], out: Path) -> None:
    """What the search looks through: a page's number, an anchor, a heading and how each cell begins.

    So many letters of a cell keep the index within the 170 kB that a first key may fetch.
    """
    entries = [
        (number, anchor, heading, words[:354])
        for number, page in enumerate(pages)
        for anchor, heading, words in page.search
    ]
    index = {
        "titles": [(page.stem, page.title) for page in pages],
        "entries": entries,
        "models": list(PUBLISHED_MODELS),
        "cards": [card.name for card in cards()],
    }
    (out / "search.json").write_text(
        json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
    )


def citation() -> dict[str, str]:
    """Title, author and date as CITATION.cff has them."""
    cff = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    patterns = {
        "title": r'^title: "(.+)"',
        "author": r'^  - name: "(.+)"',
        "date": r"^date-released: (\S+)",
    }
    return {name: re.search(each, cff, re.MULTILINE)[1] for name, each in patterns.items()}


def cited_as(facts: dict[str, str]) -> str:
    """The book for BibTeX."""
    return (
        f"@book{{memkit,\n  title   = {{{facts['title']}}},\n  author  = {{{{{facts['author']}}}}},\n"
        f"  year    = {{{facts['date'][:4]}}},\n  note    = {{Version {memkit.__version__}}}\n}}"
    )


def repository_of(site: str) -> str:
    """Where the sources of a site on GitHub Pages are; nothing for another address.

    >>> repository_of("https://somebody.github.io/memkit/"), repository_of("https://example.org/book/")
    ('https://github.com/somebody/memkit', '')
    """
    found = re.fullmatch(r"https://([\w-]+)\.github\.io/([\w.-]+)/", site)
    return f"https://github.com/{found[1]}/{found[2]}" if found else ""


def first_sentences(text: str, most: int = 200) -> str:
    """The first sentence, and as many more as fit into so many letters: what is shown with a link is never cut.

    >>> first_sentences("![A bar.](a.png) **One** [step](b.md). A second sentence.", most=20)
    'One step.'
    """
    words = re.sub(r"!\[.*?\]\(.*?\)|\*|\[(?=[^]]+\]\()|(?<=\w)\]\(.*?\)", "", text)
    whole, *others = re.split(r"(?<=[.?!])\s+", " ".join(words.split()))
    for sentence in others:
        if len(whole) + len(sentence) >= most:
            break
        whole += f" {sentence}"
    return whole


def write_sitemap(out: Path, site: str) -> None:
    """Every page's address, for search engines."""
    pages = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.html"))
    listed = "".join(f"<url><loc>{site}{page}</loc></url>" for page in pages if page != "404.html")
    (out / "sitemap.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?>'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{listed}</urlset>',
        encoding="utf-8",
    )


def missing_page() -> Page:
    """What a server shows for an address that leads nowhere."""
    page = Page(stem="404", title="This page is not here")
    page.html = (
        f"<h1>{page.title}</h1><p>The address may have a mistake, or the page has another name now. Search the book, "
        'or go to <a href="index.html">its first page</a>.</p>'
    )
    return page


def build(out: Path, site: str = "") -> None:
    """Write the whole site into an empty folder; ``site`` is the address at which it will stand, with its last slash.

    Pictures of links need that address; without it they are named from the page, which few readers of links follow.
    Raises: ValueError: ``out`` holds something that is no site.
    """
    if out.exists() and any(out.iterdir()) and not (out / "search.json").exists():
        raise ValueError(f"{out} is not empty and holds no site that could be written anew")
    shutil.rmtree(out, ignore_errors=True)
    (out / "pictures").mkdir(parents=True)
    # a build that fails leaves what the next one may replace
    (out / "search.json").write_text("{}", encoding="utf-8")
    files, panels = Files(ROOT, out), Panels(ROOT, out)
    writer = ChapterWriter(files, panels)
    chapters = [writer.page(path) for path in notebooks()]
    files.folder = ROOT / "chapters"
    families(chapters)
    for page in chapters:
        before, _, after = page.html.partition("</h1>")
        page.html = f"{before}</h1>{run_line(page, files)}{after}"
        if not page.kind and (other := OTHER_NAMES.get(page.stem[:2])):
            page.search.insert(0, (page.search[0][0], other, ""))
    sheets = handouts_page(sorted((ROOT / "chapters").glob("[0-9]*.ipynb")), files)
    pages = [
        first_page(files, site),
        *chapters,
        lessons_page(files, chapters),
        claims_page(files),
        questions_page(files),
        sheets,
        *(document_page(path, files) for path in DOCUMENTS),
    ]
    panels.make()
    frame = jinja2.Environment(autoescape=False).from_string(
        (HERE / "page.html.j2").read_text(encoding="utf-8")
    )
    turn = turns(pages)
    facts = citation()
    for page in [*pages, missing_page()]:
        before, after = turn.get(page.stem, (None, None))
        html = frame.render(
            book=pages[0].title,
            title=escape(page.title),
            stem=page.stem,
            headings=page.headings,
            html=EMPTY_HEADER.sub("<td></td>", panels.finished(page.html)),
            pages=[other for other in pages[1:] if not other.kind],
            family=page.family,
            kinds=KINDS,
            before=before,
            after=after,
            version=memkit.__version__,
            live=panels,
            description=escape(
                first_sentences(page.question) or "A textbook about memory in training."
            ),
            cited=escape(cited_as(facts)),
            facts=facts,
            links=links_of(f"{page.stem}.html", card_of(page, files), site),
            site=site,
            repository=repository_of(site),
            opening_film=film_name(OPENING[0], 0),
        )
        (out / f"{page.stem}.html").write_text(html, encoding="utf-8")
    (out / "book.css").write_text(style(), encoding="utf-8")
    for name in ("book.js", "answer.mjs", "live.mjs", "worker.mjs"):
        shutil.copy(HERE / name, out)
    shutil.copy(SCRIPT, out / "film.mjs")
    write_search(pages, out)
    if site:
        write_sitemap(out, site)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(
            "usage: python dev/site/build.py FOLDER [ADDRESS]   (such as https://example.org/book/)"
        )
    try:
        build(Path(sys.argv[1]), "".join(sys.argv[2:]))
    except ValueError as error:
        sys.exit(f"site: {error}")
