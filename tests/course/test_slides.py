"""The workshop's slides: every section of the syllabus, an answer after its question."""

import re
import zipfile

import pytest
from bs4 import BeautifulSoup

from course.slides import HOME, SYLLABI, item, page


@pytest.fixture(scope="module")
def stacks():
    return BeautifulSoup(page(), "html.parser").select(".slides > section")


def kinds(stack) -> list[str]:
    return [slide["data-kind"] for slide in stack.select("section")]


def test_each_part_of_the_syllabus_begins_to_the_right(stacks):
    """Oracle: the table of the guide."""
    assert len(stacks) == len(SYLLABI["workshop"])
    for stack, words in zip(stacks, SYLLABI["workshop"], strict=True):
        name = item(words)[0].removeprefix("0 ")
        assert stack.h1.get_text() == re.sub("^exercise", "Exercise", name)
        assert kinds(stack)[0] == "title"


def test_pictures_are_in_the_page_and_solutions_are_not(stacks):
    pictures = [image for stack in stacks for image in stack.select("img")]
    assert len(pictures) >= 7
    assert all(image["src"].startswith("data:") and image["alt"] for image in pictures)
    text = " ".join(stack.get_text() for stack in stacks)
    assert "Solution" not in text and "check(" not in text
    assert "class Meter(TorchDispatchMode)" in text and "estimate_memory" in text


def test_a_question_shows_its_choices_and_no_answer(stacks):
    """Lesson 01 asks how many states AdamW has before its first step; the slides after it run the step."""
    stack = next(stack for stack in stacks if "1.1" in stack.h1.get_text())
    after = kinds(stack)[kinds(stack).index("question") :]
    assert after == ["question", "code", "printed", "rule"]
    question = stack.select_one('[data-kind="question"]')
    assert [li.get_text() for li in question.select("li")] == [
        "none",
        "one per parameter",
        "two per parameter",
    ]
    assert not question.select("pre, img")


def test_each_slide_has_one_thing_and_the_rest_is_said(stacks):
    slides = [slide for stack in stacks for slide in stack.find_all("section", recursive=False)]
    notes = [slide.aside.extract().get_text(strip=True) for slide in slides]
    assert sum(map(bool, notes)) >= len(stacks)
    for slide in slides:
        assert len(slide.select("img, pre, table, h1, .words")) == 1, slide.get_text()[:80]


def test_a_rule_is_the_last_of_its_section(stacks):
    for stack in stacks:
        found = kinds(stack)
        assert "rule" not in found[: len(found) - found.count("rule")]
    assert sum(kinds(stack).count("rule") for stack in stacks) >= 5


def test_an_arrow_shows_the_next_slide_and_leaves_none_out(tmp_path):
    """reveal.js's default would take the arrow to the right from title to title, past four slides of five."""
    with zipfile.ZipFile(tmp_path / "reveal.whl", "w") as wheel:
        for name in (
            "dist/reset.css",
            "dist/reveal.css",
            "dist/reveal.js",
            "plugin/notes/notes.js",
        ):
            wheel.writestr(HOME + name, "")
    shown = page(wheel=tmp_path / "reveal.whl")
    assert re.search(r"Reveal\.initialize\({.*navigationMode: 'linear'.*}\)", shown)
