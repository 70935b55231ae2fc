"""The allocator lab as a reader meets it: JupyterLab, Notebook 7, keyboard and mouse."""

import pytest
from live_notebook import PANEL, changed_by, open_and_run, press, words, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

LAB = """
from stepscope.widgets.allocator_lab import AllocatorLab

AllocatorLab(limited=False, story="rounding and pools", step=0)
"""


def open_panel(page, lab, front="lab"):
    write_notebook(lab["folder"] / "allocator.ipynb", LAB)
    open_and_run(page, lab, "allocator.ipynb", front)
    page.locator(PANEL).locator(".memkit-view svg").wait_for()
    return page.locator(PANEL).nth(0)


@pytest.mark.parametrize("front", ["lab", "notebook"])
def test_every_control_obeys_the_keyboard_and_has_a_name(page, lab, artefacts, front):
    allocator = open_panel(page, lab, front)
    step = allocator.get_by_role("slider", name="Event", exact=True)
    assert "Event 1 of 9: loss wants 4 B" in press(page, allocator, step, "ArrowRight")
    assert "Event 9 of 9" in press(page, allocator, step, "End")
    story = allocator.get_by_role("combobox", name="Story")
    assert "Event 9 of 14" in press(page, allocator, story, "ArrowDown")
    typed = allocator.get_by_role("spinbutton", name="Event", exact=True)
    assert "Event 14 of 14" in changed_by(
        page, allocator, lambda: typed.fill("14") or typed.press("Enter")
    )
    assert "104.00 MiB reserved" in words(allocator)
    box = allocator.get_by_role("checkbox", name="expandable segments")
    assert "100.00 MiB reserved" in press(page, allocator, box, "Space")
    press(page, allocator, allocator.get_by_role("checkbox", name="limited card"), "Space")
    assert "CUDA out of memory" in words(allocator)
    page.screenshot(path=artefacts / f"allocator_lab_{front}.png")


def test_play_walks_through_the_story(page, lab):
    allocator = open_panel(page, lab)
    assert "Event 0 of" in words(allocator)
    changed_by(page, allocator, allocator.locator("button").first.click)


def test_the_chapter_runs_from_top_to_bottom(page, lab, artefacts):
    chapter = "chapters/07_my_job_died.ipynb"
    open_and_run(page, lab, chapter, wait_for=f"{PANEL}:has(select)", seconds=240)
    panel = page.locator(PANEL, has=page.get_by_role("combobox", name="Story")).first
    panel.scroll_into_view_if_needed()
    panel.locator(".memkit-view svg").wait_for()
    page.screenshot(path=artefacts / "chapter_07.png")
