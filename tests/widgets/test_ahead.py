"""A move sends its picture first, words wait for a pause, and what is drawn ahead is what the move then shows."""

import asyncio
import math
import re
import sys

import ipywidgets
import numpy as np
import pytest

from memkit import widgets
from memkit.allocator.stories import step_story
from memkit.timeline import Instant, MemoryTimeline
from memkit.widgets import ahead, memory_explorer
from memkit.widgets.bit_explorer import Bits
from memkit.widgets.panel import Number, Panel, View, switch

GRADIENTS = {"drawn": np.exp(np.random.default_rng(0).normal(-14, 3, 500))}
RUN = MemoryTimeline(
    instants=(Instant(name="end", total_bytes=0),), source="traced", events=tuple(step_story())
)
PANELS = {
    "memory explorer": (widgets.MemoryExplorer, "micro_batch_size", 9),
    "step timeline": (widgets.StepTimeline, "instant", 5),
    "frontier": (widgets.FrontierExplorer, "strategy", "full"),
    "planner": (widgets.BatchPlanner, "micro_batch_size", 4),
    "bits": (widgets.BitExplorer, "code", 0x1C),
    "line": (widgets.NumberLine, "zoom", 3),
    "rounding": (widgets.RoundingLab, "num_terms", 2048),
    "allocator": (widgets.AllocatorLab, "step", 7),
    "snapshot": (lambda: widgets.SnapshotView(RUN), "allocation", 4),
    "loss scaling": (lambda: widgets.LossScalingLab(GRADIENTS), "power", 13),
    "scaling": (widgets.ScalingLab, "scaling", "tensor"),
    "outliers": (widgets.OutlierLab, "half_decades", 7),
    "spike": (widgets.SpikeFilm, "step", 3),
    "states": (widgets.StateExplorer, "micro_batch_size", 3),
    "adapters": (widgets.AdapterExplorer, "rank", 17),
    "sharding": (widgets.ShardingExplorer, "micro_batch_size", 6),
}
every_panel = pytest.mark.parametrize("make, name, value", PANELS.values(), ids=PANELS)
LARGEST_PICTURE = 2**16
"""Bytes of HTML: a picture beyond it would take longer to send than to draw."""


def move(shown: Panel, name: str, value) -> None:
    """Move a control as a hand does."""
    control = shown.controls[name]
    (control.slider if isinstance(control, Number) else control).value = value


def changes_of(shown: Panel) -> list:
    """The widgets whose value changes from now on, in the order in which a page is told."""
    told, seen, waiting = [], set(), [shown]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            waiting += getattr(one, "children", ())
            if one.has_trait("value"):
                one.observe(lambda change: told.append(change["owner"]), "value")
    return told


@every_panel
def test_a_move_tells_the_page_nothing_before_the_picture(make, name, value):
    shown = make()
    told = changes_of(shown)
    move(shown, name, value)
    assert shown.error == ""
    page = [one for one in told if not isinstance(one, (Number, type(shown.controls[name])))]
    assert page[0] is shown.picture and told.count(shown.picture) == 1
    control = shown.controls[name]
    if isinstance(control, Number):
        assert told.index(shown.picture) < told.index(control.box)
        assert control.box.value == control.slider.value == value
    assert len(shown.picture.value) < LARGEST_PICTURE


@every_panel
def test_what_is_drawn_ahead_is_what_the_move_shows(make, name, value):
    shown, other = make(), make()
    faces, state = (shown.picture.value, shown.status.value, shown.table.value), shown.value
    drawn = shown._draw_ahead(name, value)
    assert (shown.picture.value, shown.status.value, shown.table.value, shown.value) == (*faces, state)
    assert {key: control.value for key, control in shown.controls.items()} == state
    move(other, name, value)
    draws = []
    shown.view = lambda **_: draws.append(1)
    move(shown, name, value)
    assert (draws, shown.error, shown.value) == ([], "", other.value)
    assert drawn[shown.picture] == shown.picture.value == other.picture.value
    assert drawn[shown.table] == shown.table.value == other.table.value
    assert shown.status.value == other.status.value


def test_the_outline_of_the_setting_before_is_the_one_of_this_move():
    straight, wandered = widgets.MemoryExplorer(), widgets.MemoryExplorer()
    for size in (2, 3):
        move(straight, "micro_batch_size", size)
    wandered._draw_ahead("micro_batch_size", 3)
    move(wandered, "micro_batch_size", 2)
    wandered._draw_ahead("micro_batch_size", 1)
    move(wandered, "micro_batch_size", 3)
    assert wandered.picture.value == straight.picture.value


def test_a_click_means_the_picture_that_is_shown():
    shown = widgets.FrontierExplorer(model="Llama-3.2-1B")
    _, chosen = chosen_point(shown)
    shown._draw_ahead("model", "GPT-2 small")
    shown._clicked(*chosen)
    assert shown.value["strategy"] == shown.controls["strategy"].options[1]


def chosen_point(shown) -> tuple[str, tuple[float, float]]:
    """Where on the picture the first strategy's point lies, found by looking everywhere."""
    for x in np.linspace(0, 1, 93):
        for y in np.linspace(0, 1, 44):
            if shown.picture_of_plane.at(x, y) == 0:
                return "none", (x, y)
    raise AssertionError("no point of the picture is the first strategy's")


# --- what the page asks ----------------------------------------------------------------------------------------------


def asked(shown: Panel, part, new, **other) -> dict:
    """The kernel's answer to a page that wants to know what a part's next value will show."""
    parts = [each for control in shown.controls.values() for each in ahead.parts_of(control)]
    answers = []
    shown._helper.send = lambda content, **_: answers.append(content)
    question = {"values": [ahead.shown_by(each) for each in parts], "part": parts.index(part), "next": new, **other}
    shown._helper._handle_custom_msg(question, [])
    [answer] = answers
    assert {key: answer[key] for key in question} == question
    return answer["shown"]


def test_a_slider_a_menu_a_box_and_a_button_are_answered():
    explorer, bits = widgets.MemoryExplorer(), widgets.BitExplorer()
    menu, button = explorer.controls["card"], bits.controls["code"].buttons[4]
    for shown, part, new, act in (
        (explorer, explorer.controls["micro_batch_size"].slider, 2, None),
        (explorer, menu, 3, lambda: setattr(menu, "index", 3)),
        (bits, bits.controls["saturates"], False, None),
        (bits, button, button.description, button.click),
    ):
        answer = asked(shown, part, new)
        (act or (lambda part=part, new=new: setattr(part, "value", new)))()
        assert shown.error == "" and answer[shown.picture.model_id] == shown.picture.value


def test_a_page_that_is_elsewhere_gets_no_picture():
    explorer = widgets.MemoryExplorer()
    slider = explorer.controls["micro_batch_size"].slider
    assert asked(explorer, slider, 2, values=[7]) is None
    assert asked(explorer, slider, 2) is not None


def test_what_cannot_be_shown_is_not_drawn_ahead_and_nobody_hears_of_it():
    timeline = widgets.StepTimeline()
    assert asked(timeline, timeline.controls["instant"].slider, 99) is None
    assert timeline.error == "" and timeline.alert.value == ""


def test_little_is_kept_however_long_one_plays():
    timeline = widgets.StepTimeline()
    for number in range(len(timeline.instants)):
        timeline._draw_ahead("instant", number)
    assert len(timeline._ahead) == ahead.MOST


def test_true_is_not_taken_for_a_one_that_was_drawn_ahead():
    explorer = widgets.MemoryExplorer(micro_batch_size=2)
    explorer._draw_ahead("micro_batch_size", 1)
    explorer.set(micro_batch_size=True)
    assert "micro_batch_size=True" in explorer.error


def test_the_page_learns_of_new_buttons():
    bits = widgets.BitExplorer()
    few = list(bits._helper.parts)
    bits.set(format="float32")
    buttons = bits.controls["code"].buttons
    assert len(bits._helper.parts) == len(few) + 32 - 8
    assert {button.model_id for button in buttons} <= set(bits._helper.parts)


def test_a_panel_works_without_anywidget(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    timeline = widgets.StepTimeline(instant=3)
    assert timeline._helper is None and timeline.error == ""
    timeline.controls["instant"].slider.value = 4
    assert timeline.value == {"instant": 4}


# --- words that wait -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drawn_ahead", "pause", "other"),
    [("1", "PAUSE_SECONDS", "LONG_PAUSE_SECONDS"), ("0", "LONG_PAUSE_SECONDS", "PAUSE_SECONDS")],
)
def test_advice_is_never_thought_out_while_a_slider_moves(monkeypatch, drawn_ahead, pause, other):
    """It waits for a pause; on cores that a class shares, which ``MEMKIT_AHEAD=0`` says, for the longer one."""
    thought = []
    monkeypatch.setenv("MEMKIT_AHEAD", drawn_ahead)
    monkeypatch.setattr(memory_explorer, "advice_in_words", lambda setup: thought.append(setup) or ("Halve it.",))
    monkeypatch.setattr(ahead, pause, 0.05)
    monkeypatch.setattr(ahead, other, 10**6)

    async def drag() -> tuple[int, str]:
        explorer = widgets.MemoryExplorer()
        for size in range(2, 12):
            explorer.controls["micro_batch_size"].slider.value = size
        during = len(thought), explorer.status.value
        for _ in range(400):
            if thought:
                break
            await asyncio.sleep(0.05)
        assert "Halve it." in explorer.status.value and explorer.status.value.startswith(during[1][:-6])
        return during

    number, said = asyncio.run(drag())
    assert number == 0 and "Peak " in said and "Halve" not in said
    assert [setup.micro_batch_size for setup in thought] == [11]


def test_words_that_fail_in_a_pause_are_explained():
    class Forgetful(Panel):
        def view(self, dark):
            png = widgets.StepTimeline().shown.png
            return View(png=png, alt="bars", words=("Here.",), more=lambda: (f"{1 // 0}",))

    async def wait() -> str:
        forgetful = Forgetful({"dark": switch("dark", False)})
        for _ in range(400):
            if forgetful.error:
                break
            await asyncio.sleep(0.05)
        return forgetful.error

    assert re.match("ZeroDivisionError", asyncio.run(wait()))


TYPED = {
    ipywidgets.IntText: (-7, -(10**9)), ipywidgets.Text: ("nonsense", ""), ipywidgets.FloatText: (math.nan, -math.inf),
}  # fmt: skip


@every_panel
def test_what_cannot_be_typed_is_one_sentence_and_the_box_goes_back(make, name, value):
    shown = make()
    for control in shown.controls.values():
        box = control.box if isinstance(control, Number) else control
        for nonsense in TYPED.get(type(box), ()):
            before = box.value, control.value, shown.value, shown.picture.value
            box.value = nonsense
            assert shown.error and str(nonsense) in shown.error
            assert "\n" not in shown.error and "Error" not in shown.error
            assert shown.alert.value.count('role="alert"') == 1
            assert (box.value, control.value, shown.value, shown.picture.value) == before
    move(shown, name, value)
    assert shown.error == shown.alert.value == ""


def test_every_control_that_is_typed_in_is_tried():
    kinds = {type(control) for make, _, _ in PANELS.values() for control in make().controls.values()}
    chosen = {ipywidgets.Dropdown, ipywidgets.Checkbox, Bits}  # of what is there
    assert kinds - chosen - set(TYPED) == {Number}


@every_panel
def test_use_makes_no_widget_and_no_handler(make, name, value):
    shown = make()
    first = shown.value[name]

    def counted():
        alive = ipywidgets.widgets.widget._instances.values()  # every widget that a page knows
        kinds = [kind for one in alive for kind in one._trait_notifiers.values()]
        return len(alive), sum(len(handlers) for kind in kinds for handlers in kind.values())

    for step in range(12):
        move(shown, name, (value, first)[step % 2])
        shown._draw_ahead(name, value)
        if step == 1:
            before = counted()
    assert shown.error == "" and counted() == before
