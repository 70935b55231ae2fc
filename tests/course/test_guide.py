"""The instructor's guide says what the book and its checks say now."""

import re
import shutil

import pytest

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


def test_every_printed_handout_is_one_page_and_the_first_chapter_s_two(tmp_path):
    browser = next(filter(None, map(shutil.which, handouts.BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium")
    (tmp_path / "all.html").write_text(handouts.pages(handouts.CHAPTERS), encoding="utf-8")
    printed = handouts.print_page(browser, tmp_path / "all.html").read_bytes()
    assert len(re.findall(rb"/Type\s*/Page[^s]", printed)) == len(handouts.CHAPTERS) + 1  # chapter 01 has two
