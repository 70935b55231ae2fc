"""The panels as a reader meets them: JupyterLab or Notebook 7, a real browser, the keyboard."""

import io
import os
import re
import signal

import numpy as np
import pytest
from live_notebook import PANEL, PICTURE, changed_by, open_and_run, press, words, write_notebook
from PIL import Image

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

ALL = [
    "from memkit.widgets import BitExplorer\nBitExplorer(format='bfloat16', number='0.1')",
    "from memkit.widgets import FrontierExplorer\nFrontierExplorer()",
    "from memkit.widgets import MemoryExplorer\nMemoryExplorer()",
    "from stepscope.widgets import AdapterExplorer\nAdapterExplorer()",
    "from stepscope.widgets import AllocatorLab\nAllocatorLab()",
    "from stepscope.widgets import MemoryExplorer\nMemoryExplorer()",
    "from stepscope.widgets import PlanExplorer\nPlanExplorer()",
    "from stepscope.widgets import ShardingExplorer\nShardingExplorer()",
]
EXPLORER = "from memkit.widgets.memory_explorer import MemoryExplorer\nMemoryExplorer()"
LAB = "from stepscope.widgets import AllocatorLab\nAllocatorLab(limited=False, story='rounding and pools', step=0)"


def open_panels(page, lab, front):
    """An explorer, and a lab that plays, in a notebook of their own; returns them."""
    write_notebook(lab["folder"] / "panels.ipynb", EXPLORER, LAB)
    open_and_run(page, lab, "panels.ipynb", front)
    return page.locator(PANEL).nth(0), page.locator(PANEL).nth(1)


def pixels(page, panel) -> np.ndarray:
    """The panel's picture as the screen shows it."""
    box = panel.locator(".memkit-view svg").bounding_box()
    return np.asarray(Image.open(io.BytesIO(page.screenshot(clip=box))).convert("RGB")).astype(int)


def test_chapter_01_runs_and_a_slider_moves_by_keyboard(page, lab, artefacts):
    from playwright.sync_api import expect

    open_and_run(page, lab, "chapters/01_memory_breakdown.ipynb")
    panel = page.locator(PANEL, has=page.get_by_role("slider", name="Micro-batch")).first
    panel.scroll_into_view_if_needed()
    panel.locator(".memkit-view svg").scroll_into_view_if_needed()
    old_alt, old_pixels = panel.locator(".memkit-view svg").get_attribute("id"), pixels(page, panel)
    press(page, panel, panel.get_by_role("slider", name="Micro-batch"), "ArrowRight", PICTURE)
    expect(panel.locator(".memkit-view svg")).not_to_have_attribute("id", old_alt)
    page.screenshot(path=artefacts / "chapter_01_slider_moved.png")
    panel.locator(".memkit-view svg").scroll_into_view_if_needed()
    new_pixels = pixels(page, panel)
    assert new_pixels.shape == old_pixels.shape, "the picture changed its size"
    changed = (abs(new_pixels - old_pixels).max(axis=2) > 24).mean()
    assert 0.001 < changed < 0.5, changed


def test_a_mistyped_number_is_explained_and_the_panel_lives(page, lab):
    from playwright.sync_api import expect

    explorer, _ = open_panels(page, lab, "lab")
    box = explorer.get_by_role("spinbutton", name="Micro-batch")
    before, height = box.input_value(), explorer.bounding_box()["height"]
    box.fill("-4")
    box.press("Enter")
    alert = explorer.get_by_role("alert")
    alert.wait_for()
    assert "Micro-batch: -4 was not taken. It is below 1." in alert.inner_text()
    expect(box).to_have_value(before)
    assert explorer.bounding_box()["height"] == height
    box.fill("3")
    box.press("Enter")
    alert.wait_for(state="detached")
    assert explorer.locator(".memkit-view svg").count() == 1


def test_a_panel_keeps_its_height_whatever_its_menu_shows(page, lab):
    for panel, name in zip(open_panels(page, lab, "lab"), ("Model", "Story"), strict=True):
        menu, heights = panel.get_by_label(name), {panel.bounding_box()["height"]}
        for index in range(menu.locator("option").count() - 1, -1, -3):
            changed_by(page, panel, lambda: menu.select_option(index=index))  # noqa: B023 - called at once
            heights.add(panel.bounding_box()["height"])
        assert len(heights) == 1


def test_the_table_folds_out_by_keyboard_and_stays_open(page, lab):
    explorer, _ = open_panels(page, lab, "lab")
    table = explorer.locator("table")
    assert not table.is_visible()
    explorer.locator(".memkit-fold summary").focus()
    page.keyboard.press("Enter")
    table.wait_for(state="visible")
    press(page, explorer, explorer.get_by_role("slider", name="Micro-batch"), "ArrowRight", PICTURE)
    assert table.is_visible()
    assert table.get_by_role("columnheader", name="activations").count() == 1


@pytest.mark.parametrize("front", ["lab", "notebook"])
def test_what_has_the_focus_is_ringed_and_escape_leads_back_to_the_cells(
    page, lab, artefacts, front
):
    explorer, _ = open_panels(page, lab, front)
    cell = page.locator(".jp-Notebook .jp-Cell").first
    for role, name in (
        ("slider", "Micro-batch"),
        ("spinbutton", "Micro-batch"),
        ("combobox", "Model"),
    ):
        control = explorer.get_by_role(role, name=name, exact=True)
        page.keyboard.press("Shift")  # the keyboard is in use
        control.focus()
        outline = (
            "e => [getComputedStyle(e).outlineStyle, parseFloat(getComputedStyle(e).outlineWidth)]"
        )
        assert control.evaluate(outline) == ["solid", 3], (role, name)
        page.screenshot(path=artefacts / f"focus_{role}_{front}.png")
        before = words(explorer)
        page.keyboard.press("Escape")
        assert cell.evaluate("e => e === document.activeElement"), (role, name)
        page.keyboard.press("ArrowDown")
        page.wait_for_function(
            "document.querySelectorAll('.jp-Notebook .jp-Cell')[1].matches('.jp-mod-active')"
        )
        assert words(explorer) == before


def test_a_panel_whose_kernel_has_died_says_so(page, lab, artefacts):
    """Oracle: the process itself is killed, as the kernel of a machine without memory is."""
    from playwright.sync_api import expect

    number = lab["folder"] / "kernel.pid"
    tell = f"import os, pathlib; pathlib.Path({str(number)!r}).write_text(str(os.getpid()))"
    write_notebook(lab["folder"] / "dying.ipynb", tell, EXPLORER)
    open_and_run(page, lab, "dying.ipynb", "lab")
    panel = page.locator(".memkit-panel").first
    os.kill(int(number.read_text()), signal.SIGKILL)
    expect(panel).to_have_class(re.compile("jupyter-widgets-disconnected"))
    told = panel.evaluate("e => getComputedStyle(e, '::after').content")
    assert told == '"The kernel has stopped, so nothing here answers. Run the cells again."'
    page.screenshot(path=artefacts / "kernel_died.png")


def test_the_panels_fit_a_page_of_800_pixels(page, lab, artefacts):
    page.set_viewport_size({"width": 1000, "height": 1300})
    explorer, _ = open_panels(page, lab, "notebook")
    explorer.scroll_into_view_if_needed()
    page.screenshot(path=artefacts / "panels_narrow.png")
    panel, picture = explorer.bounding_box(), explorer.locator(".memkit-view svg").bounding_box()
    assert picture["x"] + picture["width"] <= panel["x"] + panel["width"] + 1
    assert picture["width"] / picture["height"] == pytest.approx(800 / 430, rel=0.02)


@pytest.mark.parametrize("cell", ALL)
def test_a_panel_fits_a_laptop_and_its_controls_a_phone(page, lab, cell):
    """JupyterLab with its file browser open leaves some 850 pixels of 1,280."""
    page.set_viewport_size({"width": 1280, "height": 800})
    write_notebook(lab["folder"] / "one_panel.ipynb", cell)
    open_and_run(page, lab, "one_panel.ipynb", wait_for=PANEL)
    panel = page.locator(PANEL)
    assert panel.bounding_box()["height"] <= 800
    page.keyboard.press("Control+b")  # closes the file browser
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function(
        "panel => panel.clientWidth < 390", arg=panel.element_handle(), polling=50
    )
    too_wide = """panel => [...panel.querySelectorAll("select, input, [role=slider]")]
        .filter(e => e.getBoundingClientRect().right > panel.getBoundingClientRect().right + 1).length"""
    assert panel.evaluate(too_wide) == 0
