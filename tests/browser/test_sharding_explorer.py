"""The sharding explorer in JupyterLab and Notebook 7: every control by keyboard, and the words follow."""

import pytest
from live_notebook import PANEL, open_and_run, press, words, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


@pytest.mark.parametrize("front", ["lab", "notebook"])
def test_every_control_obeys_the_keyboard(page, lab, artefacts, front):
    write_notebook(lab["folder"] / "sharding.ipynb", "from memkit.widgets import ShardingExplorer\nShardingExplorer()")
    open_and_run(page, lab, "sharding.ipynb", front)
    panel = page.locator(PANEL).first
    assert "ZeRO-3 on 8" in words(panel)
    for role, name, key in (
        ("combobox", "Ranks", "ArrowDown"), ("combobox", "Model", "ArrowDown"), ("combobox", "Precision", "ArrowUp"),
        ("combobox", "Sequence", "ArrowUp"), ("combobox", "Card", "ArrowDown"), ("combobox", "Stage", "ArrowUp"),
        ("spinbutton", "Micro-batch", "ArrowUp"), ("checkbox", "Recompute each block", "Space"),
    ):  # fmt: skip
        control = panel.get_by_role(role, name=name, exact=True)
        assert control.count() == 1, (role, name)
        alt = panel.locator(".memkit-view svg").get_attribute("id")
        press(page, panel, control, key)
        assert panel.locator(".memkit-view svg").get_attribute("id") != alt, name
        assert control.evaluate("e => e === document.activeElement"), f"{name} lost the focus"
    assert "ZeRO-2 on 16" in words(panel)
    page.screenshot(path=artefacts / f"sharding_explorer_{front}.png")
    assert page.broken == []
