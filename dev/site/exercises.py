"""Exercises on a page: a choice is answered from the replies to every letter, a number by the book's own check.

The check of a number runs in the page, in the same Python as the panels. What it compares with is worked out when the
site is built, so that it needs no torch; functions are checked in Jupyter, and the page says so.
"""

import json
import re
from html import escape

from book.exercises import ChoiceExercise, NumberExercise, exercises_of

IN_JUPYTER = '<p class="quiet">This answer is checked in Jupyter: <code>make lab</code>.</p>'


def exercise_html(exercise_id: str) -> str:
    """What stands on a page in place of an exercise's check."""
    exercise = exercises_of(int(exercise_id.partition(".")[0]))[exercise_id]
    if isinstance(exercise, ChoiceExercise):
        return choice_form(exercise)
    return number_form(exercise) if isinstance(exercise, NumberExercise) else IN_JUPYTER


def form(exercise, inside: str, data: str, value: object) -> str:
    """A form with a place for the reply, which is read out when it changes."""
    facts = f'data-exercise="{exercise.id}" data-{data}="{escape(json.dumps(value))}"'
    return (
        f'<form class="exercise" {facts}><fieldset disabled>'
        f'<legend>Your answer to {exercise.id}</legend>{inside}</fieldset><p class="reply" role="status"></p></form>'
    )


def choice_form(exercise: ChoiceExercise) -> str:
    """A button for each letter, with the replies to all of them."""
    letters = sorted({exercise.right, *dict(exercise.mistakes)})
    replies = {
        letter: {"status": (said := exercise.check(letter)).status, "text": said.text}
        for letter in letters
    }
    buttons = "".join(
        f'<label><input type="radio" name="answer" value="{letter}"> {letter}</label> '
        for letter in letters
    )
    return form(exercise, f"{buttons}<button>Check</button>", "replies", replies)


def number_form(exercise: NumberExercise) -> str:
    """A line for a number or for arithmetic."""
    counted = re.sub(r"^the .*|^share.*", "", exercise.unit)
    words = f"A number{f' of {escape(counted)}' if counted else ''}, or arithmetic such as 8 * 7e9"
    line = f'<label>{words}: <input name="answer" type="text" autocomplete="off"></label> '
    button = '<button class="again" hidden>Check</button><span class="live"></span>'
    return form(exercise, f"{line}{button}", "record", record_of(exercise))


def record_of(exercise: NumberExercise) -> dict:
    """The exercise with its letters put in: the right number, and every wrong one with its sentence."""
    table = "\n".join(f"{number!r} :: {plain(sentence)}" for number, sentence in exercise.mistakes)
    return {
        "id": exercise.id,
        "because": plain(exercise.check(exercise.right).text),
        "formula": repr(exercise.right),
        "unit": exercise.unit,
        "tolerance": exercise.tolerance,
        "also": [repr(number) for number in exercise.accepted],
        "table": table,
    }


def plain(sentence: str) -> str:
    """A sentence whose braces are braces."""
    return sentence.replace("{", "{{").replace("}", "}}")


def guess_html(question: str, *choices: str) -> str:
    """A guess before an answer: buttons or a field, whose form a page reads where it shows the answer.

    >>> guess_html("How many moons has Mars?").partition("<input ")[2]
    'name="guess" aria-label="How many moons has Mars?"></fieldset></form>'
    """
    asked = escape(question)
    fields = "".join(
        f'<label><input type="radio" name="guess" value="{escape(choice)}"> {escape(choice)}</label> '
        for choice in choices
    )
    fields = fields or f'<input name="guess" aria-label="{asked}">'
    return (
        f'<form class="guess" data-guess="{asked}"><fieldset><legend><b>Your guess.</b> {asked}</legend>'
        f"{fields}</fieldset></form>"
    )
