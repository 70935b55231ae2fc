"""The explorers of chapter 08 in a real JupyterLab: slider, lists and words by keyboard, and the picture follows."""

import pytest
from live_notebook import PANEL, open_and_run, press, words, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

EXPLORERS = ("StateExplorer", "AdapterExplorer")


def test_the_explorers_of_chapter_08_obey_the_keyboard(page, lab, artefacts):
    """Every kind of control of both; each time the words and the picture's text change, and the focus stays."""
    cells = (f"from memkit.widgets import {name}\n{name}()" for name in EXPLORERS)
    write_notebook(lab["folder"] / "states.ipynb", *cells)
    open_and_run(page, lab, "states.ipynb", "lab")
    for number, controls in enumerate((
        (("combobox", "Its step", "ArrowDown"), ("combobox", "Optimizer", "ArrowUp"),
         ("combobox", "Trained", "ArrowDown"), ("slider", "Micro-batch", "ArrowRight")),
        (("slider", "Rank", "ArrowRight"), ("combobox", "Adapters in", "ArrowDown"),
         ("combobox", "Card", "ArrowDown")),
    )):  # fmt: skip
        panel = page.locator(PANEL).nth(number)
        panel.scroll_into_view_if_needed()
        for role, name, key in controls:
            control = panel.get_by_role(role, name=name, exact=True)
            assert control.count() == 1, (role, name)
            before, alt = words(panel), panel.locator(".memkit-view svg").get_attribute("id")
            assert press(page, panel, control, key) != before
            if name not in ("Optimizer", "Card"):  # the choice among the bars, and a line beyond them
                assert panel.locator(".memkit-view svg").get_attribute("id") != alt, name
            assert control.evaluate("e => e === document.activeElement"), f"{name} lost the focus"
        page.screenshot(path=artefacts / f"{EXPLORERS[number]}_moved.png")
