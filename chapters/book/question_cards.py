"""The cards at the end of a lesson's exercises: pick a choice and read why it is right or wrong."""

from collections.abc import Mapping
from html import escape

import ipywidgets as widgets

from book.questions import Question
from memkit.widgets.panel import key_helpers

FULL = widgets.Layout(width="auto", max_width="790px")


class QuestionCards(widgets.VBox):
    """One question at a time with its choices; the page without a kernel shows all of them, answers folded."""

    def __init__(self, questions: Mapping[str, Question]):
        self.questions = dict(questions)
        self.right: set[str] = set()
        options = [(f"{key[1:]}. {shown.question}", key) for key, shown in self.questions.items()]
        self.which = widgets.Dropdown(options=options, description="Question", layout=FULL)
        self.onward = widgets.Button(description="Next question")
        self.text, self.reply = widgets.HTML(), widgets.HTML()
        self.picked = widgets.RadioButtons(options=[""], layout=FULL)
        self.picked.add_class("memkit-choices")
        super().__init__(
            [self.which, self.text, self.picked, self.reply, self.onward, *key_helpers()]
        )
        self.add_class("memkit-panel")
        self.which.observe(self._ask, "value")
        self.picked.observe(self._answer, "value")
        self.onward.on_click(self._go_on)
        self._ask()

    def _ask(self, _change: object = None) -> None:
        shown = self.questions[self.which.value]
        self.text.value = f"<p><strong>{escape(shown.question)}</strong></p>"
        # first, because where something is picked new options pick the first of them
        self.picked.value = None
        self.picked.options = shown.choices
        self.reply.value = self._status("Pick one.")

    def _answer(self, change: Mapping) -> None:
        if change["new"] is None:
            return
        shown = self.questions[self.which.value]
        if change["new"] == shown.answer:
            self.right.add(self.which.value)
        self.reply.value = self._status(shown.reply(change["new"]))

    def _go_on(self, _button: object) -> None:
        ids = list(self.questions)
        self.which.value = ids[(ids.index(self.which.value) + 1) % len(ids)]

    def _status(self, words: str) -> str:
        score = f"{len(self.right)} of {len(self.questions)} answered rightly."
        return f'<div role="status" aria-live="polite">{escape(words)}<br>{score}</div>'

    def _repr_mimebundle_(self, **kwargs) -> dict:
        """The live cards, and for a page without a kernel every question with its answers folded."""
        bundle = super()._repr_mimebundle_(**kwargs)
        bundle["text/plain"] = (
            f"{len(self.questions)} questions, {len(self.right)} of them answered"
        )
        bundle["text/html"] = "\n".join(
            page_of(key, shown) for key, shown in self.questions.items()
        )
        return bundle


def page_of(key: str, shown: Question) -> str:
    """One question as HTML, each choice with its reply folded under it."""
    choices = "".join(
        f"<details><summary>{escape(choice)}</summary><p>{escape(shown.reply(choice))}</p></details>"
        for choice in shown.choices
    )
    return f"<p><strong>{key[1:]}. {escape(shown.question)}</strong></p>{choices}"
