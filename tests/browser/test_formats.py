"""The bit explorer in a real JupyterLab: a bit is clicked, or reached by keyboard alone, and the value changes."""

import pytest
from live_notebook import PANEL, open_and_run, words, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

EXPLORER = "from memkit.widgets.bit_explorer import BitExplorer\nBitExplorer()"
LAB = "from memkit.widgets.rounding_lab import RoundingLab\nRoundingLab()"
LINE = "from memkit.widgets.number_line import NumberLine\nNumberLine()"


def panels(page, lab, front="lab"):
    """The three panels of chapter 02, in a notebook of their own."""
    write_notebook(lab["folder"] / "formats.ipynb", EXPLORER, LINE, LAB)
    open_and_run(page, lab, "formats.ipynb", front)
    return [page.locator(PANEL).nth(number) for number in range(3)]


def wait_for_words(page, panel, wanted: str) -> None:
    page.wait_for_function(
        "([panel, wanted]) => panel.querySelector('[role=status]').innerText.includes(wanted)",
        arg=[panel.element_handle(), wanted],
        polling=50,
    )


def test_a_clicked_bit_changes_the_value(page, lab, artefacts):
    explorer, _, _ = panels(page, lab)
    assert "= 1.5, a normal number" in words(explorer)
    alt = explorer.locator(".memkit-view svg").get_attribute("id")
    explorer.locator("[data-pick='0']").click(force=True)
    wait_for_words(page, explorer, "= −1.5, a normal number")
    assert explorer.locator(".memkit-view svg").get_attribute("id") != alt
    explorer.locator("[data-pick='1']").click(force=True)
    wait_for_words(page, explorer, "= −384, a normal number")
    page.screenshot(path=artefacts / "bit_explorer_clicked.png")


def test_the_explorer_fits_one_screen_with_its_bits_once(page, lab, artefacts):
    page.set_viewport_size({"width": 1200, "height": 900})
    explorer, _, _ = panels(page, lab)
    explorer.scroll_into_view_if_needed()
    page.screenshot(path=artefacts / "bit_explorer.png")
    assert explorer.bounding_box()["height"] <= 792
    assert explorer.locator("[data-field]").count() == 8


@pytest.mark.parametrize("front", ["lab", "notebook"])
def test_the_keyboard_alone_flips_a_bit(page, lab, front):
    explorer, _, _ = panels(page, lab, front)
    explorer.get_by_label("Number or code", exact=True).focus()
    for key in ("Tab", "Tab", "ArrowRight", "Space"):  # past the tick box to the picture, and to its sign bit
        page.keyboard.press(key)
    wait_for_words(page, explorer, "= −1.5, a normal number")
    explorer.locator("text", has_text="− 2^(7 − 7)").wait_for()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    wait_for_words(page, explorer, "= −384, a normal number")
    explorer.locator('.memkit-tip', has_text="exponent bit 3: 1").wait_for()


def test_codes_and_numbers_are_typed(page, lab):
    from playwright.sync_api import expect

    explorer, _, _ = panels(page, lab)
    number = explorer.get_by_label("Number or code", exact=True)
    number.fill("0 1111 110")
    number.press("Enter")
    wait_for_words(page, explorer, "= 448, a normal number")
    expect(number).to_have_value("448")
    explorer.locator("[data-pick=below]").click(force=True)
    wait_for_words(page, explorer, "= 416, a normal number")
    expect(number).to_have_value("416")  # the words may come first, from the page
    number.fill("two")
    number.press("Enter")
    explorer.get_by_role("alert").wait_for()
    expect(number).to_have_value("416")
    number.fill("0.1")
    number.press("Enter")
    wait_for_words(page, explorer, "0.1 is held as 0.1015625, 1.6 % off")
    explorer.get_by_role("combobox", name="Format").focus()
    page.keyboard.press("ArrowUp")
    wait_for_words(page, explorer, "float8_e5m2fnuz")


def test_line_and_lab_obey_the_keyboard(page, lab, artefacts):
    _, line, rounding = panels(page, lab)
    before = line.locator(".memkit-view svg").get_attribute("id")
    line.get_by_role("slider", name="Zoom").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "([panel, id]) => panel.querySelector('.memkit-view svg').id !== id", arg=[line.element_handle(), before]
    )
    assert "sticks at 0.5 after 383 of 4096" in words(rounding)
    term = rounding.get_by_label("Term", exact=True)
    term.fill("0.01")
    term.press("Enter")
    wait_for_words(page, rounding, "sticks at 4 after 350 of 4096")
    rounding.scroll_into_view_if_needed()
    page.screenshot(path=artefacts / "rounding_lab.png")
