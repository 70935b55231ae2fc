"""The allocator lab and the snapshot view as a reader meets them: JupyterLab, Notebook 7, keyboard and mouse."""

import pytest
from live_notebook import PANEL, changed_by, open_and_run, press, words, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

LAB = """
from memkit.widgets.allocator_lab import AllocatorLab

AllocatorLab(limited=False, story="rounding and pools", step=0)
"""
VIEW = """
from memkit.allocator.stories import step_story
from memkit.timeline import Instant, MemoryTimeline
from memkit.widgets.snapshot_view import SnapshotView

end = Instant(name="end", total_bytes=0)
SnapshotView(MemoryTimeline(instants=(end,), source="traced", events=tuple(step_story())))
"""


def open_panels(page, lab, front="lab"):
    write_notebook(lab["folder"] / "allocator.ipynb", LAB, VIEW)
    open_and_run(page, lab, "allocator.ipynb", front)
    page.locator(PANEL).nth(1).locator(".memkit-view svg").wait_for()
    return page.locator(PANEL).nth(0), page.locator(PANEL).nth(1)


@pytest.mark.parametrize("front", ["lab", "notebook"])
def test_every_control_obeys_the_keyboard_and_has_a_name(page, lab, artefacts, front):
    allocator, view = open_panels(page, lab, front)
    step = allocator.get_by_role("slider", name="Event", exact=True)
    assert "Event 1 of 9: loss wants 4 B" in press(page, allocator, step, "ArrowRight")
    assert "Event 9 of 9" in press(page, allocator, step, "End")
    story = allocator.get_by_role("combobox", name="Story")
    assert "Event 9 of 14" in press(page, allocator, story, "ArrowDown")
    typed = allocator.get_by_role("spinbutton", name="Event", exact=True)
    assert "Event 14 of 14" in changed_by(page, allocator, lambda: typed.fill("14") or typed.press("Enter"))
    assert "104.00 MiB reserved" in words(allocator)
    box = allocator.get_by_role("checkbox", name="expandable segments")
    assert "100.00 MiB reserved" in press(page, allocator, box, "Space")
    press(page, allocator, allocator.get_by_role("checkbox", name="limited card"), "Space")
    assert "CUDA out of memory" in words(allocator)
    page.screenshot(path=artefacts / f"allocator_lab_{front}.png")
    number = view.get_by_role("slider", name="Allocation", exact=True)
    assert "Allocation 2 of" in press(page, view, number, "ArrowRight")
    assert "Allocated at event" in press(page, view, number, "End")
    order = view.get_by_role("combobox", name="Order")
    assert "in order of allocation" in press(page, view, order, "ArrowDown")
    assert order.evaluate("e => e === document.activeElement")
    view.scroll_into_view_if_needed()
    page.screenshot(path=artefacts / f"snapshot_view_{front}.png")


def test_a_click_selects_the_allocation_under_it(page, lab, artefacts):
    _, view = open_panels(page, lab)
    picture = view.locator(".memkit-view svg")
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()

    def click(x, y):
        return lambda: page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])

    low = changed_by(page, view, click(0.9, 0.81))  # the first weights lie at the bottom from start to end
    assert "4.00 MiB, weights." in low and "Made by w0." in low
    high = changed_by(page, view, click(0.9, 0.6))
    assert "Made by" in high and high != low
    page.screenshot(path=artefacts / "snapshot_view_clicked.png")
    page.mouse.click(box["x"] + 5, box["y"] + 5)  # beside the bands
    page.wait_for_timeout(500)
    assert words(view) == high


def test_the_arrow_keys_go_through_the_marks_and_tell_them_as_the_pointer_does(page, lab):
    _, view = open_panels(page, lab)
    tip, marks = view.locator(".memkit-tip"), view.locator("[data-pick]")
    view.locator(".memkit-view").focus()
    for number in (0, 1):
        page.keyboard.press("ArrowRight")
        assert tip.inner_text() == marks.nth(number).locator("title").text_content() and "MiB" in tip.inner_text()
    before = words(view)
    page.keyboard.press("Enter")
    page.wait_for_function("([panel, old]) => panel.querySelector('[role=status]').innerText !== old",
                           arg=[view.element_handle(), before])
    marks.nth(0).hover(force=True)
    assert tip.inner_text() == marks.nth(0).locator("title").text_content()


def test_a_click_in_one_panel_leaves_the_other_alone(page, lab):
    allocator, view = open_panels(page, lab)
    before = words(allocator), words(view)
    allocator.locator(".memkit-view svg").click(position={"x": 400, "y": 60})
    page.wait_for_timeout(700)
    assert (words(allocator), words(view)) == before


def test_play_walks_through_the_story(page, lab):
    allocator, _ = open_panels(page, lab)
    assert "Event 0 of" in words(allocator)
    changed_by(page, allocator, allocator.locator("button").first.click)


def test_the_chapter_runs_from_top_to_bottom(page, lab, artefacts):
    chapter = "chapters/07_measuring_and_oom.ipynb"
    open_and_run(page, lab, chapter, wait_for=f"{PANEL}:has(select)", seconds=240)
    for number, name in enumerate(("Story", "Order")):
        panel = page.locator(PANEL, has=page.get_by_role("combobox", name=name)).first
        panel.scroll_into_view_if_needed()
        panel.locator(".memkit-view svg").wait_for()
        page.screenshot(path=artefacts / f"chapter_07_{number}.png")
