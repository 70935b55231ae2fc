"""Panels and exercises that run in a page, against the same panels on the real ipywidgets and the book's own check."""

import gzip
import json
import os
import random
import re

import ipywidgets
import pytest
from bs4 import BeautifulSoup
from page_host import explorer_of

from book.exercises import ChoiceExercise, NumberExercise, exercises_of
from memkit.widgets import panel as panels

pytestmark = [pytest.mark.site, pytest.mark.browser]
LIVE = (
    "AdapterExplorer AllocatorLab BitExplorer FrontierExplorer MemoryExplorer ShardingExplorer"
).split()
"""The panels whose answers need neither torch nor numpy."""
WITH_A_PANEL = "01_memory_breakdown.html"
STATES = int(os.environ.get("SITE_STATES", "40"))
PLACES = ("alert", "verdict", "picture", "status", "more", "table", "frame")
ASK = """async ([calls]) => { const { ask } = await import("./live.mjs"), answers = [];
    for (const call of calls) answers.push(await ask(...call)); return answers; }"""


class Reader:
    """Somebody who moves the controls of a real panel, or presses what its picture offers, and notes what it shows."""

    def __init__(self, name: str, arguments: dict, seed: int = 0):
        self.explorer, self.random = explorer_of(name)(**arguments), random.Random(f"{name}{seed}")
        self.panel = self.explorer.panel

    def move(self, name: str, value: object) -> None:
        """Move the control as a reader does; a choice by its place in the menu."""
        control = self.panel.controls[name]
        setattr(control, "index" if isinstance(control, ipywidgets.Dropdown) else "value", value)

    def moves(self) -> tuple:
        """One move, also to a number that the panel refuses, as the page calls it."""
        marks = re.findall('data-pick="(.*?)"', self.panel.picture.value)
        if marks and self.random.random() < 0.3:
            self.explorer.pick(mark := self.random.choice(marks))
            return "picked", mark
        name, control = self.random.choice(list(self.panel.controls.items()))
        match control:
            case ipywidgets.Dropdown():
                value = self.random.randrange(len(control.options))
            case ipywidgets.Checkbox():
                value = not control.value
            case ipywidgets.Text():
                value = self.random.choice(("0.1", "1/3", "nan", "-7", "2**-9", "1e9", "x"))
            case panels.NumberBox():
                usual = range(control.slider.min, control.slider.max + 1, control.slider.step)
                power, any_number = 2 ** self.random.randrange(20), self.random.randrange(10**5)
                value = self.random.choice(
                    (0, 1, 3, 64, 1000, power, any_number, *self.random.choices(usual, k=7))
                )
        if value == (control.index if isinstance(control, ipywidgets.Dropdown) else control.value):
            return self.moves()  # a browser tells no change
        self.move(name, value)
        return "moved", name, json.dumps(value)

    def sees(self) -> dict[str, dict]:
        """What the panel shows now, by the names of its controls and of the places below them."""
        shown = {}
        for name, control in self.panel.controls.items():
            shown[name] = {"value": control.value}
            if isinstance(control, ipywidgets.Dropdown):
                shown[name] = {"value": control.index, "options": list(control._options_labels)}
            if isinstance(control, panels.NumberBox):
                shown[name]["max"] = control.slider.max
        narrow = self.explorer.shown.chart.narrow()
        shown["narrow"] = {"value": narrow.html()}
        shown["narrow_frame"] = {"value": f"<style>{narrow.frame_style()}</style>"}
        return shown | {name: {"value": getattr(self.panel, name).value} for name in PLACES}


def differences(answered: dict, expected: dict) -> list:
    """Where the page shows something else."""
    found = []
    for name, wanted in expected.items():
        for fact, value in wanted.items():
            shown = answered[name].get(fact)
            is_no_frame = name == "frame" and (shown, value) == ("<style></style>", "")
            # nobody here pauses for advice
            is_silent = name == "more" and value.endswith('"></div></div>')
            if shown != value and not is_no_frame and not is_silent:
                found.append((name, fact, str(shown)[:300], str(value)[:300]))
    return found


@pytest.fixture(scope="module")
def places(site) -> dict[str, dict]:
    """Every panel of the site by its name: arguments, and the file of its first moves."""
    found = {}
    for path in sorted(site.glob("*.html")):
        for place in BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").select(
            ".panel[data-panel]"
        ):
            found[place["data-panel"]] = (
                json.loads(place["data-arguments"]),
                site / place["data-moves"],
            )
    assert set(found) == set(LIVE)
    return found


@pytest.fixture(scope="module")
def opened(pages, address):
    """One page for all questions to one Python."""
    page = pages.new_page()
    page.goto(f"{address}index.html")
    return page


@pytest.mark.parametrize("name", LIVE)
def test_a_panel_answers_in_the_page_as_in_jupyter(name, places, opened, monkeypatch):
    monkeypatch.setattr(panels, "PAUSE_SECONDS", 10**6)
    reader, steps = Reader(name, places[name][0]), []
    calls = [("opened", name, name, json.dumps(places[name][0]))]
    state = reader.sees()
    for _ in range(STATES):
        call, *given = reader.moves()
        calls.append((call, name, *given))
        steps.append((given, reader.sees()))
    first, *answers = opened.evaluate(ASK, [calls])
    assert not differences(first, state)
    refused = 0
    for (given, expected), changes in zip(steps, answers, strict=True):
        first = {key: first[key] | changes.get(key, {}) for key in first}
        assert not differences(first, expected), given
        refused += bool(expected["alert"]["value"])
    assert refused < STATES


@pytest.mark.parametrize("name", LIVE)
def test_what_is_drawn_ahead_is_what_the_panel_shows(name, places, monkeypatch):
    monkeypatch.setattr(panels.Panel, "_say_more_in_a_pause", panels.Panel._say_more)
    opening, moves = json.loads(gzip.decompress(places[name][1].read_bytes()))
    for key in random.Random(name).sample(sorted(moves), 5):
        control, value = key.split(" ")
        reader = Reader(name, places[name][0])
        reader.move(control, json.loads(value))
        shown = {place: opening[place] | moves[key].get(place, {}) for place in opening}
        assert not differences(shown, reader.sees()), key


def test_the_first_control_moves_without_python_and_the_second_starts_it(page, address):
    page.goto(f"{address}{WITH_A_PANEL}")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    place = page.locator(".panel").first
    before = place.locator("[data-id=picture] svg").get_attribute("id")
    place.locator("select").first.select_option(index=1)
    page.wait_for_function(f"!document.getElementById('{before}')")
    assert not any("pyodide" in url for url in asked)
    place.locator("select[data-id=precision]").select_option(index=0)
    # below the picture, where a phone does not show it, a bar says the same
    page.wait_for_function("""document.querySelector(".panel.is-stale .memkit-view")?.dataset.stale
        .startsWith("Not yet: Python is being fetched, ")""")
    page.wait_for_selector(".panel[data-ready]:not(.is-stale)")
    reader = Reader("MemoryExplorer", {})
    reader.explorer.set(model=reader.panel.controls["model"].options[1])
    reader.panel.controls["precision"].index = 0
    shown = place.locator("[data-id=picture] svg").get_attribute("id")
    assert f'id="{shown}"' in reader.panel.picture.value
    place.locator("[type=number]").first.fill("0")
    place.locator("[type=number]").first.press("Tab")
    place.get_by_text("was not taken").wait_for()
    before = place.locator("[type=number]").first.input_value()
    place.locator("[type=number]").first.fill("")
    place.locator("[type=number]").first.press("Tab")
    assert place.locator("[type=number]").first.input_value() == before != ""
    place.get_by_role("button", name="Copy a link").click()
    page.wait_for_url("**#cell-id=explorer")


PICTURE = """place => { const view = place.querySelector(".memkit-view"), frame = view.getBoundingClientRect();
    const svg = [...view.querySelectorAll("svg")].find((each) => each.checkVisibility());
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    const texts = [...svg.querySelectorAll("text")];
    const sizes = texts.map((text) => text.getAttribute("font-size") * scale);
    const isOut = ({ left, right }) => left < frame.left - 1 || right > frame.right + 1;
    const out = texts.filter((text) => isOut(text.getBoundingClientRect())).map((text) => text.textContent);
    return { sideways: view.scrollWidth - view.clientWidth, out, letters: Math.min(...sizes) };
}"""


@pytest.mark.parametrize("name", LIVE)
def test_on_a_phone_a_panel_s_picture_fits_and_can_be_read(name, page, address, site):
    """And it is the one of the setting that the panel names, before and after a move."""
    file = next(
        path.name
        for path in sorted(site.glob("*.html"))
        if f'data-panel="{name}"' in path.read_text()
    )
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}{file}")
    place = page.locator(f'[data-panel="{name}"]').first
    place.locator(".share").wait_for()  # the page's program has added its line
    reader = Reader(name, json.loads(place.get_attribute("data-arguments")))
    key, menu = next(
        (key, box)
        for key, box in reader.panel.controls.items()
        if isinstance(box, ipywidgets.Dropdown)
    )
    for index in (None, (menu.index + 1) % len(menu.options)):
        if index is not None:
            place.locator(f"select[data-id={key}]").select_option(index=index)
            reader.move(key, index)
        shown = place.locator("[data-id=narrow] svg")
        shown.and_(page.locator(f"#{reader.explorer.shown.chart.narrow().key}")).wait_for()
        found = place.evaluate(PICTURE)
        assert found["sideways"] <= 0 and not found["out"] and found["letters"] >= 11


def test_on_a_phone_a_panel_that_only_jupyter_moves_has_a_picture_that_fits_too(page, address):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}09_one_card.html")
    found = page.locator(".panel:not([data-panel])").first.evaluate(PICTURE)
    assert found["sideways"] <= 0 and not found["out"] and found["letters"] >= 11


PAIRS = (*range(int(os.environ.get("SITE_PAIRS", "2"))), 46)
"""Pair 46 ends the card's limit before it changes what would cut the event short under it: a link keeps the order."""


@pytest.mark.parametrize("pair", PAIRS)
def test_two_controls_are_answered_or_the_picture_says_that_they_are_not(
    pair, places, page, address, site
):
    """Never a picture of other settings without a word on it; and the settings' link shows the same."""
    drawn = random.Random(f"pair {pair}")
    name = drawn.choice(sorted(places))
    [file] = [
        path for path in sorted(site.glob("*.html")) if f'data-panel="{name}"' in path.read_text()
    ][:1]
    page.goto(f"{address}{file.name}")
    place = page.locator(f'[data-panel="{name}"]').first
    reader = Reader(
        name,
        json.loads(page.locator(f'[data-panel="{name}"]').first.get_attribute("data-arguments")),
        pair,
    )
    offered = {
        key: box
        for key, box in reader.panel.controls.items()
        if isinstance(box, ipywidgets.Dropdown)
        and len(box.options) > 1
        or isinstance(box, ipywidgets.Checkbox)
    }
    if len(offered) < 2:
        pytest.skip(f"{name} has fewer than two menus")
    place.locator("details:has(.controls)").evaluate_all(
        "folds => folds.forEach((fold) => { fold.open = true; })"
    )
    place.locator(".share").wait_for()  # the page's program has added its line
    height = place.bounding_box()["height"]
    for key in drawn.sample(sorted(offered), 2):
        element = place.locator(f'.controls [data-id="{key}"]').first
        if isinstance(offered[key], ipywidgets.Checkbox):
            element.click()
            reader.move(key, not offered[key].value)
        else:
            value = drawn.randrange(element.locator("option").count())
            element.select_option(index=value)
            reader.move(key, value)
        shown, is_stale = place.evaluate(
            "place => [place.querySelector('.memkit-view svg').id, place.matches('.is-stale')]"
        )
        assert is_stale or f'id="{shown}"' in reader.panel.picture.value
    page.wait_for_function(
        "name => !document.querySelector(`[data-panel=${name}]`).matches('.is-stale')", arg=name
    )
    settled = place.locator(".memkit-view svg").first.get_attribute("id")
    assert f'id="{settled}"' in reader.panel.picture.value
    assert place.bounding_box()["height"] == height
    said = place.locator("[data-id=status]").inner_text()
    place.get_by_role("button", name="Copy a link to these settings").click()
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_function(  # the picture's outline of the setting before may be another
        "([name, said]) => document.querySelector(`[data-panel=${name}] [data-id=status]`).innerText === said",
        arg=[name, said],
    )


@pytest.mark.parametrize("chapter", range(13))
def test_an_exercise_on_the_page_says_what_the_book_s_check_says(chapter, site, opened):
    texts = [path.read_text(encoding="utf-8") for path in site.glob(f"{chapter:02}_*.html")]
    soups = [BeautifulSoup(text, "html.parser") for text in texts]
    forms = {form["data-exercise"]: form for soup in soups for form in soup.select("form.exercise")}
    exercises = exercises_of(chapter)
    asked, wanted = [], []
    for key, exercise in exercises.items():
        if isinstance(exercise, ChoiceExercise):
            replies = json.loads(forms[key]["data-replies"])
            for letter, reply in replies.items():
                feedback = exercise.check(letter)
                assert reply == {"status": feedback.status, "text": feedback.text}
        elif isinstance(exercise, NumberExercise):
            told = exercise.accepted, dict(exercise.mistakes)
            for answer in (exercise.right, *told[0], *told[1], 0, -1, exercise.right * 3, 2**70):
                asked.append(("checked", forms[key]["data-record"], f"{answer:,}"))
                feedback = exercise.check(answer)
                wanted.append({"status": feedback.status, "text": feedback.text})
            for typed in ("a lot", "9**9**9"):  # the second is a number of 370 million digits
                asked.append(("checked", forms[key]["data-record"], typed))
                said = f"{typed!r} is no number. Type one, such as 53.9e9 or 8 * 7e9."
                wanted.append({"status": "not yet", "text": said})
    assert opened.evaluate(ASK, [asked]) == wanted


def test_a_choice_is_answered_in_the_page_without_python(page, address, site):
    [file] = sorted(
        path.name
        for path in site.glob("*.html")
        if "data-replies" in path.read_text(encoding="utf-8")
    )[:1]
    page.goto(f"{address}{file}")
    form = page.locator("form.exercise[data-replies]").first
    replies = json.loads(form.get_attribute("data-replies"))
    reply, send = form.locator(".reply"), form.get_by_role("button")
    send.click()
    assert reply.inner_text() == "Not attempted yet. Give an answer first."
    for letter, said in replies.items():
        form.locator(f"[type=radio][value={letter}]").check()
        send.click()
        assert reply.inner_text() == f"{said['status'].capitalize()}. {said['text']}"


def panel_shows(place, reader: Reader) -> bool:
    """Whether a panel's picture can be seen, and is that of the settings that its own menus name."""
    for key, control in reader.panel.controls.items():
        menu = place.locator(f"select[data-id={key}]")
        if (
            isinstance(control, ipywidgets.Dropdown)
            and menu.evaluate("menu => menu.selectedIndex") != control.index
        ):
            return False
    picture = place.locator(".memkit-view svg").first
    return (
        picture.is_visible() and f'id="{picture.get_attribute("id")}"' in reader.panel.picture.value
    )


def test_what_a_browser_keeps_over_back_is_not_named_above_a_panel_s_opening_picture(page, address):
    """Firefox sets menus that have no name, and Chromium those with one, before the page's own program runs."""
    another = page.context.new_page()
    another.add_init_script("""document.addEventListener("readystatechange", () => {
        if (document.readyState !== "interactive") return;
        document.querySelector(".panel select[data-id=model]").selectedIndex = 1;
        document.querySelector(".panel [type=number]").value = 77;
    })""")
    another.goto(f"{address}{WITH_A_PANEL}")
    place = another.locator(".panel").first
    place.locator(".share").wait_for()
    assert panel_shows(place, Reader("MemoryExplorer", {}))
    number = place.locator("[type=number]").first
    assert number.input_value() == number.get_attribute("value") != "77"
    another.close()


def test_after_back_the_claims_are_those_of_the_verdict_that_the_menu_names(page, address):
    page.goto(f"{address}claims.html")
    page.select_option("[name=verdict]", "wrong")
    page.goto(f"{address}01_memory_breakdown.html")
    page.go_back()
    page.wait_for_load_state("load")
    assert page.input_value("[name=verdict]") == "wrong"
    page.locator("form.filter output", has_text=" of ").wait_for()
    assert (
        0
        < page.locator(".claim:visible").count()
        == page.locator(".claim[data-verdict=wrong]").count()
    )


@pytest.mark.parametrize("way", ["button", "next choice"])
def test_where_a_panel_s_moves_cannot_be_fetched_it_shows_none_and_they_can_be_asked_again(
    way, page, address, breaks
):
    breaks("live/MemoryExplorer-", times=1)
    page.goto(f"{address}{WITH_A_PANEL}")
    place, reader, wanted = page.locator(".panel").first, Reader("MemoryExplorer", {}), 1
    place.locator("select[data-id=model]").select_option(index=1)
    place.get_by_text("could not be fetched").wait_for()
    hidden = place.locator(".memkit-view svg, .memkit-verdict, [data-id=status]")
    assert not any(place.is_visible() for place in hidden.all())
    if way == "button":
        place.get_by_role("button", name="Try again").click()
    else:
        wanted = 5
        place.locator("select[data-id=model]").select_option(index=wanted)
    reader.move("model", wanted)
    page.wait_for_function("!document.querySelector('.panel').matches('.is-stale, .is-failed')")
    assert panel_shows(place, reader)


def test_without_a_network_a_panel_shows_no_answer_to_two_controls_and_starts_python_when_it_is_back(
    page, address, breaks
):
    page.goto(f"{address}{WITH_A_PANEL}")
    place, reader = page.locator(".panel").first, Reader("MemoryExplorer", {})
    opening, other = reader.panel.controls["precision"].index, 0
    assert opening != other
    for key, value in (("model", 1), ("precision", other)):  # the second needs Python
        place.locator(f"select[data-id={key}]").select_option(index=value)
        page.wait_for_function(
            "document.querySelector('.panel').matches('.is-failed, :not(.is-stale)')"
        )
        breaks("live/")
    place.get_by_text("could not be started").wait_for()
    assert not place.locator(".memkit-view svg").first.is_visible()
    # back to what was drawn ahead
    place.locator("select[data-id=precision]").select_option(index=opening)
    page.wait_for_function("!document.querySelector('.panel').matches('.is-stale, .is-failed')")
    reader.move("model", 1)
    assert panel_shows(place, reader)
    place.locator("select[data-id=precision]").select_option(index=other)
    page.wait_for_function("document.querySelector('.panel').matches('.is-failed')")
    breaks.over()
    place.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".panel[data-ready]:not(.is-stale)")
    reader.move("precision", other)
    assert panel_shows(place, reader)


def test_a_python_that_dies_is_started_again_with_all_that_was_moved(page, address):
    page.goto(f"{address}{WITH_A_PANEL}")
    place, reader = page.locator(".panel").first, Reader("MemoryExplorer", {})
    for key in ("model", "precision"):
        place.locator(f"select[data-id={key}]").select_option(index=1)
        reader.move(key, 1)
    page.wait_for_selector(".panel[data-ready]:not(.is-stale)")
    page.evaluate("""async () => {
        const { ask } = await import("./live.mjs"), panel = document.querySelector(".panel").live;
        clearTimeout(panel.pause);  // what it asks half a second after a move would meet the death first
        await ask("checked", "{}", "1").catch(() => {});  // an error of a call ends nothing
        panel.key = "a key that this Python has never heard of";
    }""")
    place.locator("select[data-id=recomputation]").select_option(index=1)
    reader.move("recomputation", 1)
    place.get_by_text("Python has stopped").wait_for()
    assert not place.locator(".memkit-view svg").first.is_visible()
    place.get_by_role("button", name="Try again").click()
    page.wait_for_function("!document.querySelector('.panel').matches('.is-stale, .is-failed')")
    assert panel_shows(place, reader)


def test_a_film_that_has_ended_plays_from_its_start(page, address, places, site):
    [file] = [
        path.name
        for path in site.glob("*.html")
        if "data-play=" in path.read_text(encoding="utf-8")
    ][:1]
    page.goto(f"{address}{file}")
    button = page.locator("[data-play]").first
    slider = page.locator(f"[type=range][data-id={button.get_attribute('data-for')}]").first
    slider.fill(slider.get_attribute("max"))
    # pressed and looked at in one go: a moment later the film has left its start
    pressed = "(button, slider) => { button.click(); return [button.innerText, slider.value, slider.min]; }"
    words, value, start = button.evaluate(pressed, slider.element_handle())
    assert words == "Stop" and value == start
