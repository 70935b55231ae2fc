"""Explorers in JupyterLab and Notebook 7: controls obey the keyboard and keep the focus, words and picture follow."""

import pytest
from live_notebook import PANEL, PICTURE, SAID, open_and_run, press, write_notebook

from memkit import widgets as kit

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

KEYS = {
    "ShardingExplorer": (
        ("combobox", "Ranks", "ArrowDown"),
        ("combobox", "Model", "ArrowDown"),
        ("combobox", "Precision", "ArrowUp"),
        ("combobox", "Sequence", "ArrowUp"),
        ("combobox", "Card", "ArrowDown"),
        ("combobox", "Stage", "ArrowUp"),
        ("spinbutton", "Micro-batch", "ArrowUp"),
        ("checkbox", "Recompute each block", "Space"),
    ),
    "AdapterExplorer": (
        ("slider", "Rank", "ArrowRight"),
        ("combobox", "Adapters in", "ArrowDown"),
        ("combobox", "Card", "ArrowDown"),
    ),
    "MemoryExplorer": (
        ("slider", "Micro-batch", "ArrowRight"),
        ("slider", "Micro-batch", "ArrowUp"),
        ("slider", "Micro-batch", "ArrowLeft"),
        ("slider", "Accumulation", "ArrowRight"),
        ("slider", "Sequence", "ArrowLeft"),
        ("combobox", "Model", "ArrowDown"),
        ("combobox", "Recipe", "ArrowUp"),
        ("combobox", "Optimizer", "ArrowUp"),
        ("combobox", "Attention", "ArrowUp"),
        ("combobox", "Recomputation", "ArrowDown"),
        ("combobox", "Card", "ArrowDown"),
        ("spinbutton", "Micro-batch", "ArrowUp"),
    ),
}
SAME_PICTURE = {("AdapterExplorer", "Card")}
"""A line beyond the bars."""


def shows(name: str) -> str:
    """A cell that opens the explorer of this name."""
    package = "memkit" if name in kit.__all__ else "stepscope"
    return f"from {package}.widgets import {name}\n{name}()"


@pytest.mark.parametrize("front", ["lab", "notebook"])
def test_controls_obey_the_keyboard(page, lab, artefacts, front):
    write_notebook(lab["folder"] / "keys.ipynb", *map(shows, KEYS))
    open_and_run(page, lab, "keys.ipynb", front)
    for number, (explorer, controls) in enumerate(KEYS.items()):
        panel = page.locator(PANEL).nth(number)
        panel.scroll_into_view_if_needed()
        if (more := panel.locator("summary", has_text="More controls")).count():
            more.press("Space")
        for role, name, key in controls:
            control = panel.get_by_role(role, name=name, exact=True)
            assert control.count() == 1, (role, name)
            press(page, panel, control, key, SAID if (explorer, name) in SAME_PICTURE else PICTURE)
            assert control.evaluate("e => e === document.activeElement"), f"{name} lost the focus"
        page.screenshot(path=artefacts / f"{explorer}_{front}.png")
