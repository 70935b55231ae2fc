"""The questions: whole, tied to a cell of the book, and no number in an answer that the ledger does not prove."""

import json
import re
import tomllib

import pytest
from cells import exists
from free_numbers import free_numbers

from book.claims import load_claims
from book.questions import QUESTIONS, load_questions

TABLES = tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))
LOADED = load_questions()

GOOD = {
    "question": "Why?",
    "answer": "Because of {C028.moments_gb} GB",
    "because": "So it is.",
    "cell": "further/01_memory_breakdown.ipynb::convention-switch",
    "wrong": [["Never", "Ever."], ["Always", "Not."]],
}


def unproved(table: dict) -> list[str]:
    """Numbers written by hand where a figure should stand; what a wrong choice says may be any number."""
    said = [table["answer"], table["because"], *(reason for _, reason in table["wrong"])]
    return [number for text in said for number in free_numbers(text)]


def test_they_are_numbered_without_a_gap():
    assert list(LOADED) == [f"Q{number:02d}" for number in range(1, len(LOADED) + 1)]


@pytest.mark.parametrize("question_id", TABLES)
def test_every_number_of_an_answer_is_a_proved_figure_and_a_cell_shows_it(question_id):
    table = TABLES[question_id]
    named = set(re.findall(r"\{(C\d{3})\.", json.dumps(table)))
    assert not unproved(table)
    assert all(load_claims()[claim_id].proof for claim_id in named)
    assert exists(f"chapters/{LOADED[question_id].cell or LOADED[question_id].about}")


@pytest.mark.parametrize("question_id", LOADED)
def test_every_choice_gets_its_own_reply(question_id):
    question = LOADED[question_id]
    replies = {choice: question.reply(choice) for choice in question.choices}
    assert len(set(replies.values())) == len(replies) >= 3
    assert [choice for choice, reply in replies.items() if reply.startswith("Right.")] == [
        question.answer
    ]
    assert all(len(choice) <= 130 for choice in replies)


def test_the_answer_is_not_always_in_the_same_place():
    places = {question.choices.index(question.answer) for question in LOADED.values()}
    assert len(places) == 4


def test_an_answer_does_not_stand_out_by_its_length():
    longest = [max(question.choices, key=len) == question.answer for question in LOADED.values()]
    assert sum(longest) < 0.4 * len(longest)


def test_a_number_written_by_hand_is_seen():
    assert unproved(GOOD | {"because": "It is 56 GB."}) == ["56"]
    assert not unproved(GOOD)
