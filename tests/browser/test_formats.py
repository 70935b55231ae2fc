"""The bit explorer in a real JupyterLab: a bit is clicked, or reached by keyboard alone, and the value changes."""

import pytest
from live_notebook import PANEL, SAID, open_and_run, words, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

EXPLORER = "from memkit.widgets.bit_explorer import BitExplorer\nBitExplorer()"


def opened(page, lab, front="lab"):
    """The explorer, in a notebook of its own."""
    write_notebook(lab["folder"] / "formats.ipynb", EXPLORER)
    open_and_run(page, lab, "formats.ipynb", front, wait_for=PANEL)  # it has no slider to wait for
    return page.locator(PANEL)


def wait_for_words(page, panel, wanted: str) -> None:
    page.wait_for_function(
        f"([panel, wanted]) => ({SAID})(panel).includes(wanted)",
        arg=[panel.element_handle(), wanted],
        polling=50,
    )


def test_a_clicked_bit_changes_the_value(page, lab, artefacts):
    explorer = opened(page, lab)
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
    explorer = opened(page, lab)
    explorer.scroll_into_view_if_needed()
    page.screenshot(path=artefacts / "bit_explorer.png")
    assert explorer.bounding_box()["height"] <= 792
    assert explorer.locator("[data-field]").count() == 8


@pytest.mark.parametrize("front", ["lab", "notebook"])
def test_the_keyboard_alone_flips_a_bit(page, lab, front):
    explorer = opened(page, lab, front)
    explorer.get_by_label("Number", exact=True).focus()
    # past the tick box to the picture, and to its sign bit
    for key in ("Tab", "Tab", "ArrowRight", "Space"):
        page.keyboard.press(key)
    wait_for_words(page, explorer, "= −1.5, a normal number")
    explorer.locator("text", has_text="− 2^(7 − 7)").wait_for()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    wait_for_words(page, explorer, "= −384, a normal number")
    explorer.locator(".memkit-tip", has_text="exponent bit 3: 1").wait_for()


def test_numbers_are_typed(page, lab):
    from playwright.sync_api import expect

    explorer = opened(page, lab)
    number = explorer.get_by_label("Number", exact=True)
    number.fill("448")
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
