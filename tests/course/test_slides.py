"""The workshop's slides: every section of the syllabus, with its outputs, and nothing that gives an answer away."""

import contextlib
import re

import pytest
from bs4 import BeautifulSoup

from course.slides import SYLLABI, item, page


@pytest.fixture(scope="module")
def soup(tmp_path_factory):
    with contextlib.chdir(tmp_path_factory.mktemp("elsewhere")):  # nbconvert looks for pictures
        return BeautifulSoup(page(), "html.parser")


def test_each_part_of_the_syllabus_begins_to_the_right(soup):
    """Oracle: the table of the guide."""
    stacks = [
        stack for stack in soup.select(".reveal .slides > section") if stack.get_text(strip=True)
    ]
    heads = [stack.get_text(" ", strip=True)[:80] for stack in stacks]
    assert len(heads) == len(SYLLABI["workshop"])
    for head, words in zip(heads, SYLLABI["workshop"], strict=True):
        name = item(words)[0].removeprefix("0 ")
        assert re.sub("^exercise", "Exercise", name).partition(",")[0] in head


def test_pictures_are_in_the_page_and_answers_are_not(soup):
    slides = soup.select_one(".reveal .slides")
    assert len(slides.select("img")) >= 5
    assert all(image["src"].startswith("data:") for image in slides.select("img"))
    assert "Solution" not in slides.get_text() and "check(" not in slides.get_text()
    assert "estimate_memory(setup)" in slides.get_text(), "what a chapter shows is shown"
