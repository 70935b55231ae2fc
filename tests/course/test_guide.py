"""The instructor's guide says what the book and its checks say now."""

import re

import pytest

from course import guide
from course.labs import NAMES, load_lab
from course.slides import cells_of


def test_the_guide_s_tables_are_today_s():
    text = guide.GUIDE.read_text(encoding="utf-8")
    assert {name for _, name, _ in guide.BLOCK.findall(text)} == set(guide.TABLES)
    assert guide.guide(text) == text, "run: make guide"


def test_the_walk_runs_what_the_slides_show_and_what_comes_before_it():
    walked = guide.walked("workshop")
    talked = [cell for _, ids, _ in walked.values() for cell in ids]
    shown = [
        cell.id
        for words in guide.SYLLABI["workshop"]
        for cell in cells_of(words)
        if cell.cell_type == "code"
    ]
    assert (
        shown and [cell for cell in talked if cell in shown] == shown and "ex-1-a-check" in talked
    )
    for chapter, (cells, ids, after) in walked.items():
        code = [
            cell["id"] for cell in guide.notebook(chapter)["cells"] if cell["cell_type"] == "code"
        ]
        assert [cell["id"] for cell in cells] == code[: code.index(ids[-1]) + 1] and after


def test_the_list_of_wrong_answers_is_today_s():
    assert guide.ANSWERS.read_text(encoding="utf-8") == guide.wrong_answers(), "run: make guide"


@pytest.mark.parametrize(
    "name, least, most", [("workshop", 55, 90 * 3 // 4), ("halfday", 180, 240)]
)
def test_a_syllabus_leaves_time_for_questions(name, least, most):
    """A quarter of the workshop's 90 minutes is theirs."""
    assert least <= guide.total(name) <= most


def test_a_lab_fits_an_hour_and_a_half_and_has_four_to_six_tasks():
    for name in NAMES:
        assert load_lab(name).minutes <= 90
        assert 4 <= len(load_lab(name).tasks) + 1 <= 6


def test_the_session_of_monday_has_the_lessons_minutes():
    """Each row begins where the one before ends; a section or an exercise takes what the lesson says."""
    text = (guide.GUIDE.parent / "MONDAY.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+)–(\d+) \| ([^|]*) \|", text, re.MULTILINE)
    assert [end for _, end, _ in rows][:-1] == [start for start, *_ in rows][1:]
    assert rows[0][0] == "0" and rows[-1][1] == "80"
    taught = [(what, int(end) - int(start)) for start, end, what in rows]
    taught = [row for row in taught if re.match(r"\d|ex ", row[0])]
    assert taught == [(words, guide.item(words)[1]) for words in guide.SYLLABI["workshop"][:-1]]
