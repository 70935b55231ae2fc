"""The instructor's guide says what the book and its checks say now."""

import re
import shutil

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbconvert import HTMLExporter

from book.questions import load_questions
from course import guide, handouts
from course.labs import NAMES, load_lab


def test_the_guide_s_tables_are_today_s():
    text = guide.GUIDE.read_text(encoding="utf-8")
    assert {name for _, name, _ in guide.BLOCK.findall(text)} == set(guide.TABLES)
    assert guide.guide(text) == text, "run: make guide"


def test_the_list_of_wrong_answers_is_today_s():
    assert guide.ANSWERS.read_text(encoding="utf-8") == guide.wrong_answers(), "run: make guide"


@pytest.mark.parametrize("name, least, most", [("workshop", 55, 65), ("halfday", 180, 240)])
def test_a_syllabus_leaves_time_for_questions(name, least, most):
    assert least <= guide.total(name) <= most


def test_a_lab_fits_an_hour_and_a_half_and_has_four_to_six_tasks():
    for name in NAMES:
        assert load_lab(name).minutes <= 90
        assert 4 <= len(load_lab(name).tasks) + 1 <= 6


@pytest.mark.parametrize("chapter", handouts.CHAPTERS, ids=lambda path: path.stem[:2])
def test_a_handout_has_the_chapter_s_goals_and_needs_no_network(chapter):
    page, cells = handouts.pages([chapter]), handouts.cells_of(chapter)
    assert "FORMULA" not in page and "$" not in re.sub(r"<code>.*?</code>", "", page)
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    rows = [line for line in handouts.section(cells, "Summary").splitlines() if line.startswith("| ")]
    assert page.count("<tr>") >= len(rows)


def test_every_printed_handout_is_one_page(tmp_path):
    browser = next(filter(None, map(shutil.which, handouts.BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium")
    (tmp_path / "all.html").write_text(handouts.pages(handouts.CHAPTERS), encoding="utf-8")
    printed = handouts.print_page(browser, tmp_path / "all.html").read_bytes()
    assert len(re.findall(rb"/Type\s*/Page[^s]", printed)) == len(handouts.CHAPTERS)


def test_the_questions_link_to_cells_of_pages():
    exporter = HTMLExporter(template_file=str(handouts.ROOT / "course/pages.html.j2"))
    page, _ = exporter.from_filename(str(handouts.ROOT / "chapters/B_questions_and_answers.ipynb"))
    found = BeautifulSoup(page, "html.parser").select(".jp-OutputArea a[href*='#cell-id=']")
    linked = [a["href"] for a in found]
    assert linked == [question.cell.replace(".ipynb::", ".html#cell-id=") for question in load_questions().values()]


def test_a_page_has_every_picture_s_alt_text_its_folds_and_links_to_pages():
    chapter = handouts.ROOT / "chapters/02_number_formats.ipynb"
    exporter = HTMLExporter(template_file=str(handouts.ROOT / "course/pages.html.j2"))
    page, _ = exporter.from_filename(str(chapter))
    cells = nbformat.read(chapter, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", ()) if "image/png" in output.get("data", ())]
    soup = BeautifulSoup(page, "html.parser")
    shown = [image["alt"] for image in soup.select(".jp-OutputArea img")]
    linked = {a["href"] for a in soup.select("a[href]") if not a["href"].startswith(("#", "https:"))}
    assert linked and linked <= {f"{path.stem}.html" for path in chapter.parent.glob("*.ipynb")}
    assert all(fold.find_all(recursive=False)[1:] for fold in soup.select("details")), "--embed-images empties them"
    assert shown == [output.metadata["image/png"]["alt"] for output in outputs] and shown
