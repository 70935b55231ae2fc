"""Every panel in JupyterLab under axe-core, in the light and in the dark theme."""

import sys
from pathlib import Path

import pytest
from live_notebook import PANEL, open_and_run, write_notebook

from memkit import widgets as kit
from stepscope import widgets as more

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
AXE = Path(sys.prefix) / "npm" / "node_modules" / "axe-core" / "axe.min.js"
NAMES = [f"kit.{name}" for name in sorted(set(kit.__all__) - {"Explorer", "Panel", "StepFilm"})]
NAMES += [f"more.{name}" for name in sorted(set(more.__all__) - {"SavedFilm"})]
IMPORTS = """
import numpy as np
import book
from memkit import widgets as kit
from stepscope import widgets as more
"""
RUN_AXE = """async (panel) => (await axe.run(panel, { resultTypes: ["violations"] })).violations
    .map((rule) => [rule.id, rule.nodes.length, rule.nodes[0].html.slice(0, 200), rule.nodes[0].failureSummary])"""
DARKEN = """(folder) => new Promise((done) => {
    const theme = document.createElement("link");
    Object.assign(theme, { rel: "stylesheet", href: `${folder}/index.css`, onload: done });
    Object.assign(document.body.dataset, { jpThemeLight: "false", jpThemeName: "JupyterLab Dark" });
    document.body.style.colorScheme = "dark";
    document.body.append(theme);
})"""
"""The dark theme's own file below the light one's: its variables win, and nobody's settings are written."""


UNNAME_A_MENU = """(panel) => {
    const menu = panel.querySelector("select"), label = menu.closest(".widget-dropdown").querySelector("label");
    label.remove();
    return label.textContent;
}"""
"""What axe-core has to find, or it looks at nothing."""


def test_axe_finds_nothing_in_any_panel_in_light_and_dark(page, lab):
    if not AXE.exists():
        pytest.skip(f"{AXE} is missing: `make site` fetches axe-core from npm")
    calls = [f"{name}()" for name in NAMES]
    calls += [
        "book.LedgerSearch(book.load_claims().values())",
        "book.QuestionCards(book.load_questions())",
    ]
    write_notebook(lab["folder"] / "axe.ipynb", IMPORTS, *calls)
    # JupyterLab attaches no cell that is out of view
    page.set_viewport_size({"width": 1400, "height": 20_000})
    open_and_run(page, lab, "axe.ipynb")
    panels = page.locator(PANEL)
    assert panels.count() == len(calls) >= 10
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = {}
    for scheme in ("light", "dark"):
        if scheme == "dark":
            page.emulate_media(color_scheme="dark")
            page.evaluate(DARKEN, f"{lab['url']}/lab/api/themes/@jupyterlab/theme-dark-extension")
            ground = page.locator(".jp-Notebook").first.evaluate(
                "e => getComputedStyle(e).backgroundColor"
            )
            assert sum(map(int, ground.strip("rgb()").split(",")[:3])) < 150, ground
        for number, name in enumerate(NAMES):
            if violations := panels.nth(number).evaluate(RUN_AXE):
                found[name, scheme] = violations
    assert not found
    nameless = panels.nth(0).evaluate(UNNAME_A_MENU)
    assert [rule for rule, *_ in panels.nth(0).evaluate(RUN_AXE)] == ["select-name"], nameless
