"""Question cards and ledger search: what they answer, and what a page without a kernel shows."""

import json
import re

import pytest

from book import LedgerSearch, QuestionCards, load_questions
from book.claims import LEDGER, load_claims


@pytest.fixture
def cards():
    return QuestionCards(load_questions())


@pytest.fixture
def search():
    search = LedgerSearch(load_claims().values())
    search.page.value = "all"
    return search


def test_the_search_begins_with_the_claims_that_name_a_page():
    search = LedgerSearch(load_claims().values())
    assert search.matches() == [claim for claim in load_claims().values() if claim.printed]
    search.page.value = "ours"
    assert search.matches() == [claim for claim in load_claims().values() if not claim.printed]


def test_the_questions_of_a_lesson_are_those_whose_cell_it_has():
    lessons = {question.lesson for question in load_questions().values()}
    parts = [load_questions(lesson) for lesson in sorted(lessons)]
    assert sum(map(len, parts)) == len(load_questions()) and all(parts)
    for part in parts:
        cards = QuestionCards(part)
        for _ in part:
            cards.onward.click()
        assert cards.right == set() and "Pick one." in cards.reply.value
    assert list(load_questions("06")) == [
        key
        for key, shown in load_questions().items()
        if shown.place.rpartition("/")[2].startswith("06_")
    ]


def test_a_picked_choice_is_answered_and_counted_once(cards):
    question = cards.questions["Q07"]
    cards.which.value = "Q07"
    wrong = next(iter(question.wrong))
    cards.picked.value = wrong
    assert question.wrong[wrong] in cards.reply.value and "0 of" in cards.reply.value
    for _ in range(2):
        cards.picked.value = None
        cards.picked.value = question.answer
        assert "Right." in cards.reply.value and "1 of" in cards.reply.value


def test_the_next_question_comes_unanswered_and_the_last_leads_to_the_first(cards):
    cards.picked.value = cards.questions["Q01"].answer
    cards.onward.click()
    assert (
        cards.which.value == "Q02"
        and cards.picked.value is None
        and "Pick one." in cards.reply.value
    )
    cards.which.value = list(cards.questions)[-1]
    cards.onward.click()
    assert cards.which.value == "Q01"


def test_the_page_shows_every_question_with_its_answers_folded(cards):
    page = cards._repr_mimebundle_()["text/html"]
    choices = sum(len(question.choices) for question in cards.questions.values())
    assert page.count("<details>") == page.count("</details>") == choices
    assert page.count("<p>Right.") == len(cards.questions)


def test_all_words_are_searched_for_in_any_order(search):
    search.words.value = "GPT-3 Selective"
    assert {"C184", "C185"} <= {claim.id for claim in search.matches()}
    search.words.value = "c028"
    assert [claim.id for claim in search.matches()] == ["C028"] and "1 of" in search.status.value


def test_subject_and_verdict_narrow_the_list(search):
    search.subject.value = "I"
    search.verdict.value = "wrong"
    found = search.matches()
    assert found and {(claim.group, claim.verdict) for claim in found} == {("I", "wrong")}
    search.words.value = "no such words anywhere"
    assert search.matches() == [] and "Try fewer words" in search.found.value


def test_the_page_shows_the_whole_ledger(search):
    page = search._repr_mimebundle_()["text/html"]
    assert re.findall(r"<p><strong>(C\d{3})</strong>", page) == list(load_claims())


def test_every_link_of_an_entry_leads_to_a_cell_that_is_there(search):
    linked = re.findall(
        r'<a href="([^"#]+)#cell-id=([^"]+)"', search._repr_mimebundle_()["text/html"]
    )
    ids = {
        chapter: {
            cell["id"]
            for cell in json.loads((LEDGER.parent / chapter).read_text(encoding="utf-8"))["cells"]
        }
        for chapter in dict(linked)
    }
    places = [(claim.cell, claim.about) for claim in search.claims]
    assert len(linked) == sum(any(place) for place in places) > 0
    page = search._repr_mimebundle_()["text/html"]
    assert (
        page.count("with other numbers in <a") == sum(about is not None for _, about in places) > 0
    )
    assert [link for link in linked if link[1] not in ids[link[0]]] == []


def test_what_is_searched_for_is_text(search):
    search.words.value = "<script>"
    assert "<script>" not in search.found.value + search.status.value
