"""The labs of chapters 03 and 06 in a real JupyterLab: a slider moves by keyboard, and words and picture follow."""

import pytest
from live_notebook import PANEL, open_and_run, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

LABS = "from memkit.widgets import OutlierLab, ScalingLab, SpikeFilm\n{}()"


def test_the_three_labs_follow_the_keyboard(page, lab, artefacts):
    """Arrow keys on two sliders and on a list; each time the words change, and the picture's text with them."""
    names = ("OutlierLab", "SpikeFilm", "ScalingLab")
    write_notebook(lab["folder"] / "labs.ipynb", *map(LABS.format, names))
    open_and_run(page, lab, "labs.ipynb", "lab")
    for number, key in enumerate(("ArrowRight", "ArrowRight", "ArrowDown")):
        panel = page.locator(PANEL).nth(number)
        status, picture = panel.locator("[role=status]"), panel.locator(".memkit-view svg")
        before, alt = status.inner_text(), picture.get_attribute("id")
        control = panel.locator("select" if key == "ArrowDown" else "[role=slider]").first
        control.scroll_into_view_if_needed()
        control.focus()
        page.keyboard.press(key)
        page.wait_for_function(
            "([panel, before]) => panel.querySelector('[role=status]').innerText !== before",
            arg=[panel.element_handle(), before],
            polling=50,
        )
        assert picture.get_attribute("id") != alt
        page.screenshot(path=artefacts / f"{names[number]}_moved.png")
