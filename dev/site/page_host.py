"""Panels and exercises for a page: a reader's move is answered by what it has changed, in plain values.

The page's worker calls ``opened``, ``moved``, ``picked``, ``rested`` and ``checked``; the build calls ``Host`` for the
pictures that are drawn ahead. Every number in an answer is computed by ``memkit``,
``stepscope`` and ``book``, as in a notebook.
"""

import ast
import json
import math
import re
from html import escape

from book.exercises import NumberExercise
from memkit import widgets
from memkit.pictures.svg import Chart
from memkit.units import html_table
from memkit.widgets.explorer import (
    FOLD,
    Bits,
    Choice,
    Entry,
    Number,
    Switch,
    html_places,
    values_of,
)


def explorer_of(name: str) -> type:
    """``memkit``'s explorer of this name, or else ``stepscope``'s, which a page with none of those never loads."""
    if name in widgets.__all__:
        return getattr(widgets, name)
    from stepscope import widgets as more

    return getattr(more, name)


def pictures_of(chart: Chart) -> str:
    """A picture's place, with its twin for a phone; the style sheet shows one of them."""
    return (
        f'<div class="memkit-view view" tabindex="0"><div data-id="picture">{chart.html()}</div>'
        f'<div data-id="narrow">{chart.narrow().html()}</div></div>'
    )


class Host:
    """One open explorer, and what its page was told last, by the names of the controls and of the places below them."""

    def __init__(self, name: str, arguments: dict):
        self.explorer = explorer_of(name)(**arguments)
        self.controls = {
            key: control
            for key, control in self.explorer.controls.items()
            if not isinstance(control, Bits)
        }
        self.said, self.said_of = (), None
        self.told = self.facts(rests=True)

    def facts(self, rests: bool = False) -> dict[str, dict]:
        """What the page shows; advice that takes longer to find is there when the controls rest."""
        explorer, shown = self.explorer, self.explorer.shown
        offered, ends = explorer.offered(explorer.state), shown.ends
        facts = {}
        for name, control in self.controls.items():
            facts[name] = {"value": explorer.state[name]}
            if isinstance(control, Choice):
                options = offered.get(name, control.options)
                facts[name] = {
                    "options": [
                        option[0] if isinstance(option, tuple) else str(option)
                        for option in options
                    ],
                    "value": values_of(options).index(explorer.state[name]),
                }
            if isinstance(control, Number):
                facts[name]["max"] = ends.get(name, control.high)
        if rests:
            self.said, self.said_of = tuple(shown.more()), shown
        narrow = shown.chart.narrow()
        places = html_places(explorer, self.said, self.said_of is not shown) | {
            "picture": shown.chart.html(),
            "narrow": narrow.html(),
            "table": html_table(shown.table),
            "frame": f"<style>{shown.chart.frame_style()}</style>",
            "narrow_frame": f"<style>{narrow.frame_style()}</style>",
        }
        return facts | {name: {"value": html} for name, html in places.items()}

    def changes(self, moved: str = "", rests: bool = False) -> dict[str, dict]:
        """What has changed since the page was told last; a control that was moved says its value in any case."""
        now, before = self.facts(rests), self.told
        self.told = now
        return {
            name: facts for name, facts in now.items() if facts != before[name] or name == moved
        }

    def move(self, name: str, value: object, rests: bool = False) -> dict[str, dict]:
        """The reader has moved a control; a choice is told by its place in the menu."""
        if isinstance(self.controls[name], Choice):
            options = self.explorer.offered(self.explorer.state).get(
                name, self.controls[name].options
            )
            value = values_of(options)[value]
        self.explorer.set(**{name: value})
        return self.changes(name, rests)

    def html(self) -> str:
        """The panel as elements of a page: controls above, below them the places for picture, words and table."""
        first = (name for name in self.controls if name not in self.explorer.asked_later)
        boxes = "".join(self.box(name, self.controls[name]) for name in first)
        for name, interval in getattr(self.explorer, "plays", {}).items():
            boxes += f'<button type="button" data-play="{interval}" data-for="{name}" disabled>Play</button>'
        later = "".join(self.box(name, self.controls[name]) for name in self.explorer.asked_later)
        if later:
            later = f'<details><summary>More controls</summary><div class="controls">{later}</div></details>'
        inside = {name: facts["value"] for name, facts in self.told.items()}
        return (
            f'<div class="memkit-panel"><div class="controls">{boxes}</div>{later}'
            f'<div class="memkit-verdict" data-id="verdict">{inside["verdict"]}</div>'
            f'<div class="memkit-alert" data-id="alert"></div>'
            f"{pictures_of(self.explorer.shown.chart)}"
            f'<div data-id="status">{inside["status"]}</div>'
            f'<div class="memkit-more" data-id="more">{inside["more"]}</div><div>{FOLD}</div>'
            f'<div class="memkit-table" data-id="table">{inside["table"]}</div>'
            f'<div data-id="frame">{inside["frame"]}</div>'
            f'<div data-id="narrow_frame">{inside["narrow_frame"]}</div></div>'
        )

    def box(self, name: str, control: Number | Choice | Switch | Entry) -> str:
        """One control with its label; a number has a slider beside its box."""
        facts, mark = self.told[name], f'data-id="{name}" disabled'
        value = escape(str(facts["value"]))
        match control:
            case Choice():
                options = "".join(
                    f"<option{' selected' if number == facts['value'] else ''}>{escape(text)}</option>"
                    for number, text in enumerate(facts["options"])
                )
                box = f"<select {mark}>{options}</select>"
            case Switch():
                box = f'<input type="checkbox" {mark}{" checked" if facts["value"] else ""}>'
            case Entry():
                box = f'<input type="text" {mark} value="{value}">'
            case _:
                box = f'<input type="number" step="any" {mark} value="{value}">'
        labelled = f"<label><span>{escape(control.label)}</span>{box}</label>"
        if not isinstance(control, Number):
            return labelled
        ends = f'min="{control.low}" max="{facts["max"]}" step="{control.step}" value="{value}"'
        slider = f'<input type="range" {mark} aria-label="{escape(control.label)}, slider" {ends}>'
        return f'<div class="number">{labelled}{slider}</div>'

    def single_moves(self) -> list[tuple[str, object]]:
        """Every value that a menu, a box to tick or a slider offers, each from the opening."""
        moves = []
        for name, control in self.controls.items():
            match control:
                case Choice():
                    values = range(len(self.told[name]["options"]))
                case Switch():
                    values = (False, True)
                case Number():
                    values = range(control.low, self.told[name]["max"] + 1, control.step)
                case _:
                    values = ()
            moves += [(name, value) for value in values]
        return moves


OPEN: dict[str, Host] = {}


def opened(key: str, name: str, arguments: str) -> str:
    """A panel is opened under a key of the page's; what it shows."""
    OPEN[key] = Host(name, json.loads(arguments))
    return json.dumps(OPEN[key].told)


def moved(key: str, name: str, value: str) -> str:
    """What a move has changed."""
    return json.dumps(OPEN[key].move(name, json.loads(value)))


def picked(key: str, mark: str) -> str:
    """What has changed since a mark of the picture was chosen."""
    OPEN[key].explorer.pick(mark)
    return json.dumps(OPEN[key].changes())


def rested(key: str) -> str:
    """What has changed in a pause: advice that takes longer to find."""
    return json.dumps(OPEN[key].changes(rests=True))


def checked(record: str, text: str) -> str:
    """The book's feedback on an answer that was typed: a number, or arithmetic such as ``8 * 6,738,415,616``."""
    typed = text.replace("×", "*").replace("^", "**")
    if "(" not in typed:  # there a comma may stand between two arguments
        typed = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", typed)
    try:
        tree = ast.parse(typed.strip(), mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant):
                # 9**9**9 overflows; with integers the page would stand still
                node.value = float(node.value)
        answer = eval(compile(tree, "answer", "eval"), {"__builtins__": {}, **vars(math)})
        answer = int(answer) if answer == int(answer) else answer
    except Exception:  # noqa: BLE001 - whatever is typed
        return json.dumps(
            {
                "status": "not yet",
                "text": f"{text!r} is no number. Type one, such as 53.9e9 or 8 * 7e9.",
            }
        )
    given = json.loads(record)
    feedback = NumberExercise(**given | {"also": tuple(given["also"])}).check(answer)
    return json.dumps({"status": feedback.status, "text": feedback.text})
