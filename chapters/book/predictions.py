"""A guess before the answer, kept until the lesson's end: ``predict`` asks, ``compare_guesses`` shows both.

>>> predict("99-moons", "How many moons has Mars?", "0", "2", "14")
Your guess: How many moons has Mars? 0 · 2 · 14
>>> compare_guesses({"99-moons": "2"})
How many moons has Mars?
    your guess: none
    the answer: 2
"""

from collections.abc import Mapping
from html import escape

import ipywidgets

from memkit.units import Text, on_page

QUESTIONS: dict[str, "Prediction"] = {}
"""What has been asked in this kernel, by name."""


class Prediction:
    """A question with buttons, or with a field where there are no choices; ``guess`` is what the reader gave.

    In a live notebook it is a widget. Stored, it is the question alone, so that a page shows no answer.
    """

    def __init__(self, question: str, choices: tuple[str, ...]):
        self.question, self.choices = question, choices
        words = ipywidgets.HTML(f"<b>Your guess.</b> {escape(question)}")
        if choices:
            self.field = ipywidgets.ToggleButtons(options=choices, index=None, tooltips=choices)
            self.field.style.button_width = "auto"  # by its words, which were cut off otherwise
        else:
            self.field = ipywidgets.Text(placeholder="a number", continuous_update=False)
            self.field.tooltip = question
        self.view = ipywidgets.VBox([words, self.field])

    @property
    def guess(self) -> str | None:
        """The reader's answer as text, or ``None`` while there is none."""
        return self.field.value or None

    def __repr__(self) -> str:
        return " ".join((f"Your guess: {self.question}", " · ".join(self.choices))).strip()

    def _repr_mimebundle_(self, **_: object) -> dict:
        shown = (
            f"<p><b>Your guess.</b> {escape(self.question)} {escape(' · '.join(self.choices))}</p>"
        )
        return {**self.view._repr_mimebundle_(), "text/html": shown, "text/plain": repr(self)}


def predict(name: str, question: str, *choices: str) -> Prediction:
    """Ask for a guess, with a button for each choice, or with a field for a number.

    Asked again in the same words, it keeps the guess: who runs the cell once more has not taken it back.

    Raises: ValueError: an empty name or question.
    """
    if not (name and question):
        raise ValueError(f"name={name!r}, question={question!r}: a guess has a name and a question")
    before = QUESTIONS.get(name)
    QUESTIONS[name] = Prediction(question, choices)
    if before and (before.question, before.choices) == (question, choices):
        QUESTIONS[name].field.value = before.field.value
    return QUESTIONS[name]


def compare_guesses(answers: Mapping[str, str]) -> Text:
    """Each question with the reader's guess and the answer.

    Raises: ValueError: nothing was asked under a name; the cell that asks has not run.
    """
    compared = []
    for name, answer in answers.items():
        if name not in QUESTIONS:
            raise ValueError(
                f"no guess {name!r} was asked for; run the cells above. Asked: {', '.join(QUESTIONS)}"
            )
        asked = QUESTIONS[name]
        compared.append(
            f"{asked.question}\n    your guess: {asked.guess or 'none'}\n    the answer: {answer}"
        )
    return on_page(*compared, between="\n")
