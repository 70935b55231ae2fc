"""Panels and exercises for a page: a reader's move is answered by what it has changed, in plain values.

The page's worker calls ``opened``, ``moved`` and ``checked``; the build calls the same functions for the pictures that
are drawn ahead. Every number in an answer is computed by ``memkit`` and ``book``, as in a notebook.
"""

import json
import math
from collections.abc import Iterator

import ipywidgets

from book.exercises import NumberExercise
from memkit import widgets
from memkit.widgets import panel as panels

panels.PAUSE_SECONDS = 0.3  # a page's Python serves one reader
SHOWN = ("value", "options", "min", "max", "step", "description", "disabled", "placeholder")


class Host:
    """One open panel. Its widgets have numbers, in the order in which they stand in it."""

    def __init__(self, name: str, arguments: dict):
        self.explorer = getattr(widgets, name)(**arguments)
        self.panel = self.explorer.panel
        self.widgets = list(below(self.panel))
        self.told = self.state()

    def state(self) -> dict[int, dict]:
        """What the page shows of every widget."""
        return {number: facts(widget) for number, widget in enumerate(self.widgets)}

    def changes(self) -> dict[int, dict]:
        """What has changed since it was asked last."""
        now, before = self.state(), self.told
        self.told = now
        return {
            number: {name: value for name, value in now[number].items() if before[number].get(name) != value}
            for number in now
            if now[number] != before[number]
        }

    def move(self, number: int, value: object) -> dict[int, dict]:
        """The reader has moved a control; a choice is told by its place in the menu."""
        widget = self.widgets[number]
        if isinstance(widget, ipywidgets.Button):
            widget.click()
        elif isinstance(widget, ipywidgets.Dropdown):
            widget.value = widget.pairs[value][1]
        else:
            widget.value = value
        return self.changes()


def below(widget) -> Iterator:
    """A widget, and every widget in it."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from below(child)


def facts(widget) -> dict:
    """What a page shows of one widget; of a menu the texts, and the place of the chosen one."""
    if isinstance(widget, ipywidgets.Box | ipywidgets.Play):
        return {}  # what stands in it, and the slider that it moves, say it
    shown = {name: getattr(widget, name) for name in SHOWN if hasattr(widget, name)}
    if isinstance(widget, ipywidgets.Dropdown):
        shown["options"] = [text for text, _ in widget.pairs]
        shown["value"] = [value for _, value in widget.pairs].index(widget.value)
    return shown


OPEN: dict[str, Host] = {}


def opened(key: str, name: str, arguments: str) -> str:
    """A panel is opened under a key of the page's; what it shows."""
    OPEN[key] = Host(name, json.loads(arguments))
    return json.dumps(OPEN[key].told)


def moved(key: str, number: int, value: str) -> str:
    """What a move has changed."""
    return json.dumps(OPEN[key].move(number, json.loads(value)))


def picked(key: str, mark: str) -> str:
    """What has changed since a mark of the picture was chosen."""
    OPEN[key].explorer.pick(mark)
    return json.dumps(OPEN[key].changes())


def rested(key: str) -> str:
    """What has changed in a pause: advice that takes longer to find."""
    return json.dumps(OPEN[key].changes())


def checked(record: str, text: str) -> str:
    """The book's feedback on an answer that was typed: a number, or arithmetic such as ``8 * 6_738_415_616``."""
    try:
        answer = eval(text, {"__builtins__": {}, **vars(math)})
    except Exception:  # noqa: BLE001 - whatever is typed
        return json.dumps(
            {"status": "not yet", "text": f"{text!r} is no number. Type one, such as 53.9e9 or 8 * 7e9."}
        )
    given = json.loads(record)
    feedback = NumberExercise(**given | {"also": tuple(given["also"])}).check(answer)
    return json.dumps({"status": feedback.status, "text": feedback.text})
