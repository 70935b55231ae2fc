"""A guess is asked for, kept, and set beside the answer; stored, the question alone is there."""

import json

import ipywidgets
import pytest
from cells import cells_of

from book import compare_guesses, predict
from dev.notebooks import CHAPTERS, LESSONS


def test_a_guess_is_kept_until_it_is_compared():
    asked = predict("t-1", "How many?", "one", "two")
    assert compare_guesses({"t-1": "two"}) == "How many?\n    your guess: none\n    the answer: two"
    asked.field.value = "one"
    assert compare_guesses({"t-1": "two"}) == "How many?\n    your guess: one\n    the answer: two"
    assert predict("t-1", "How many?", "one", "two").guess == "one"  # run again, it is still there
    assert predict("t-1", "How many?", "one", "three").guess is None  # another question has none


def test_without_choices_it_is_a_field_for_a_number():
    asked = predict("t-2", "How many MiB?")
    assert isinstance(asked.field, ipywidgets.Text)
    asked.field.value = "350"
    assert asked.guess == "350"


def test_what_is_stored_is_the_question():
    bundle = predict("t-3", "a < b?", "yes & no")._repr_mimebundle_()
    assert bundle["text/plain"] == "Your guess: a < b? yes & no"
    assert "a &lt; b?" in bundle["text/html"] and "yes &amp; no" in bundle["text/html"]


@pytest.mark.parametrize("name, question", [("", "Why?"), ("t-4", "")])
def test_a_guess_has_a_name_and_a_question(name, question):
    with pytest.raises(ValueError, match="a guess has a name and a question"):
        predict(name, question)


def test_a_guess_that_nobody_asked_for_is_refused():
    with pytest.raises(ValueError, match="no guess 't-none' was asked for"):
        compare_guesses({"t-none": "1"})


LESSON_PATHS = [path for number in LESSONS for path in CHAPTERS.glob(f"{number}_*.ipynb")]


@pytest.mark.parametrize("path", LESSON_PATHS, ids=lambda path: path.name[:2])
def test_every_guess_of_a_lesson_is_compared_at_its_end(path):
    sources = ["".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == "code"]
    asked = [source.split('"')[1] for source in sources if source.startswith("predict(")]
    [compared] = [source for source in sources if "compare_guesses(" in source]
    assert asked and len(asked) <= 5
    assert all(json.dumps(name) in compared for name in asked)
    assert compared.count(f'"{path.name[:2]}-') == len(asked)
