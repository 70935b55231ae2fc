"""Panels and exercises that run in a page, against the same panels on the real ipywidgets and the book's own check."""

import gzip
import json
import os
import random

import ipywidgets
import pytest
from bs4 import BeautifulSoup

from book.exercises import ChoiceExercise, NumberExercise, exercises_of
from memkit import widgets
from memkit.widgets import panel as panels

pytestmark = [pytest.mark.site, pytest.mark.browser]
LIVE = (
    "AdapterExplorer AllocatorLab BatchPlanner CacheExplorer FrontierExplorer MemoryExplorer ShardingExplorer "
    "StateExplorer StepTimeline"
).split()
"""The panels whose answers need neither torch nor numpy."""
STATES = int(os.environ.get("SITE_STATES", "40"))
ASK = """async ([calls]) => { const { ask } = await import("./live.mjs"), answers = [];
    for (const call of calls) answers.push(await ask(...call)); return answers; }"""


def below(widget) -> list:
    """A widget and those in it, in the order that numbers them."""
    return [widget, *(found for child in getattr(widget, "children", ()) for found in below(child))]


def facts(widget) -> dict:
    """What a page should show of a real widget."""
    if isinstance(widget, ipywidgets.Box | ipywidgets.Play):
        return {}
    names = ("value", "min", "max") if isinstance(widget, ipywidgets.IntSlider) else ("value",)
    shown = {name: getattr(widget, name) for name in names if widget.has_trait(name)}
    if isinstance(widget, ipywidgets.Dropdown):
        shown |= {"value": widget.index, "options": list(widget._options_labels)}
    return shown


class Reader:
    """Somebody who moves the controls of a real panel at random, and notes what it shows."""

    def __init__(self, name: str, arguments: dict, seed: int = 0):
        self.explorer, self.random = getattr(widgets, name)(**arguments), random.Random(f"{name}{seed}")
        self.panel = self.explorer.panel
        self.widgets = below(self.panel)
        self.controls = [number for number, widget in enumerate(self.widgets) if isinstance(
            widget, (ipywidgets.Dropdown, ipywidgets.Checkbox, ipywidgets.IntText, ipywidgets.IntSlider)
        ) and not isinstance(widget, ipywidgets.Play)]  # fmt: skip

    def moves(self) -> tuple[int, object]:
        """One move, also to a number that the panel refuses."""
        number = self.random.choice(self.controls)
        widget = self.widgets[number]
        if isinstance(widget, ipywidgets.Dropdown):
            value = self.random.randrange(len(widget.options))
            widget.index = value
        else:
            if isinstance(widget, ipywidgets.Checkbox):
                value = not widget.value
            elif isinstance(widget, ipywidgets.IntSlider):
                value = self.random.randrange(widget.min, widget.max + 1, widget.step)
            else:
                power, any_number = 2 ** self.random.randrange(20), self.random.randrange(10**5)
                value = self.random.choice((0, 1, 3, 64, 1000, power, any_number))
            widget.value = value
        return number, value

    def sees(self) -> dict[str, dict]:
        """What the panel shows now, by the numbers of its widgets."""
        return {str(number): facts(widget) for number, widget in enumerate(self.widgets)}


def differences(answered: dict, expected: dict, reader: Reader) -> list:
    """Where the page shows something else. Advice that comes in a pause may stand in the status or not."""
    status = str(reader.widgets.index(reader.panel.status))
    found = []
    for number, wanted in expected.items():
        for name, value in wanted.items():
            shown = answered[number].get(name) if number in answered else None
            has_advice = number == status and value and str(shown).startswith(value.removesuffix("</div>"))
            if shown != value and not has_advice:
                found.append((number, name, str(shown)[:300], str(value)[:300]))
    return found


@pytest.fixture(scope="module")
def places(site) -> dict[str, dict]:
    """Every panel of the site by its name: arguments, and the file of its first moves."""
    found = {}
    for path in sorted(site.glob("*.html")):
        for place in BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").select(
            ".panel[data-panel]"
        ):
            found[place["data-panel"]] = (json.loads(place["data-arguments"]), site / place["data-moves"])
    return found


@pytest.fixture(scope="module")
def opened(page, address):
    page.goto(f"{address}index.html")
    return page


def test_the_panels_without_torch_and_numpy_move_on_the_site(places):
    assert set(LIVE) == set(places)


@pytest.mark.parametrize("name", LIVE)
def test_a_panel_answers_in_the_page_as_in_jupyter(name, places, opened, monkeypatch):
    monkeypatch.setattr(panels, "PAUSE_SECONDS", 10**6)
    reader, steps = Reader(name, places[name][0]), []
    calls = [("opened", name, name, json.dumps(places[name][0]))]
    state = reader.sees()
    for _ in range(STATES):
        number, value = reader.moves()
        calls.append(("moved", name, number, json.dumps(value)))
        steps.append((number, value, reader.sees()))
    first, *answers = opened.evaluate(ASK, [calls])
    assert not differences(first, state, Reader(name, places[name][0]))
    refused = 0
    for (number, value, expected), changes in zip(steps, answers, strict=True):
        first = {key: first[key] | changes.get(key, {}) for key in first}
        assert not differences(first, expected, reader), (number, value)
        refused += bool(expected[str(reader.widgets.index(reader.panel.alert))]["value"])
    assert refused < STATES


@pytest.mark.parametrize("name", LIVE)
def test_what_is_drawn_ahead_is_what_the_panel_shows(name, places, monkeypatch):
    monkeypatch.setattr(panels.Panel, "_say_more_in_a_pause", panels.Panel._say_more)
    opening, moves = json.loads(gzip.decompress(places[name][1].read_bytes()))
    for key in random.Random(name).sample(sorted(moves), 5):
        number, value = key.split(" ")[0], json.loads(key.split(" ")[1])
        reader = Reader(name, places[name][0])
        widget = reader.widgets[int(number)]
        setattr(widget, "index" if isinstance(widget, ipywidgets.Dropdown) else "value", value)
        shown = {number: opening[number] | moves[key].get(number, {}) for number in opening}
        assert not differences(shown, reader.sees(), reader), key


def test_the_first_control_moves_without_python_and_the_second_asks_for_it(page, address):
    page.goto(f"{address}index.html")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    place = page.locator(".panel").first
    before = place.locator(".memkit-view svg").get_attribute("id")
    place.locator("select").first.select_option(index=1)
    page.wait_for_function(f"!document.getElementById('{before}')")
    assert not any("pyodide" in url for url in asked)
    place.locator("select").nth(1).select_option(index=0)
    place.get_by_text("Press the button").wait_for()
    place.get_by_role("button", name="Move all controls together").press("Enter")
    page.wait_for_selector(".panel[data-ready]")
    reader = Reader("MemoryExplorer", {})
    reader.explorer.set(model=reader.panel.controls["model"].options[1])
    reader.panel.controls["precision"].index = 0
    shown = place.locator(".memkit-view svg").get_attribute("id")
    assert f'id="{shown}"' in reader.panel.picture.value
    place.locator("[type=number]").first.fill("0")
    place.locator("[type=number]").first.press("Tab")
    place.get_by_text("cannot be").wait_for()


@pytest.mark.parametrize("chapter", range(12))
def test_an_exercise_on_the_page_says_what_the_book_s_check_says(chapter, site, opened):
    [path] = site.glob(f"{chapter:02}_*.html")
    soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    forms = {form["data-exercise"]: form for form in soup.select("form.exercise")}
    exercises = exercises_of(chapter)
    asked, wanted = [], []
    for key, exercise in exercises.items():
        if isinstance(exercise, ChoiceExercise):
            replies = json.loads(forms[key]["data-replies"])
            for letter, reply in replies.items():
                feedback = exercise.check(letter)
                assert reply == {"status": feedback.status, "text": feedback.text}
        elif isinstance(exercise, NumberExercise):
            wrong = [number for number, _ in exercise.mistakes]
            for answer in (
                exercise.right,
                *exercise.accepted,
                *wrong,
                0,
                -1,
                7.25,
                exercise.right * 3,
                2**70,
            ):
                asked.append(("checked", forms[key]["data-record"], repr(answer)))
                feedback = exercise.check(answer)
                wanted.append({"status": feedback.status, "text": feedback.text})
            asked.append(("checked", forms[key]["data-record"], "a lot"))
            wanted.append(
                {"status": "not yet", "text": "'a lot' is no number. Type one, such as 53.9e9 or 8 * 7e9."}
            )
    assert opened.evaluate(ASK, [asked]) == wanted
