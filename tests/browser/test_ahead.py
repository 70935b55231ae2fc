"""The next picture stands in the page before its key is pressed, and it is never another than the kernel's."""

import base64
import random

import pytest
from live_notebook import PANEL, open_and_run, write_notebook

from memkit.widgets import BitExplorer, StepTimeline

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

TIMELINE = "from memkit.widgets import StepTimeline\nStepTimeline(instant=4)"
BITS = "from memkit.widgets import BitExplorer\nBitExplorer()"
LISTEN = """
window.order = [];
const Plain = window.WebSocket;
window.WebSocket = class extends Plain {
  constructor(...words) {
    super(...words);
    this.addEventListener("message", () => window.order.push("message"));
  }
};
"""
"""Notes every message that the page gets; installed before the page's own scripts."""
WATCH = """
(panel) => {
  const source = () => panel.querySelector("img").src;
  let last = source();
  document.addEventListener("keydown", () => window.order.push("key"), true);
  new MutationObserver(() => { if (source() !== last) { last = source(); window.order.push("picture"); } })
    .observe(panel, { childList: true, subtree: true, attributes: true });
}
"""


def open_panel(page, lab, source):
    """A panel alone in a notebook of a page that notes messages, keys and pictures in their order."""
    page.add_init_script(LISTEN)
    write_notebook(lab["folder"] / "ahead.ipynb", source)
    open_and_run(page, lab, "ahead.ipynb", wait_for=f"{PANEL} img")
    panel = page.locator(PANEL).first
    panel.evaluate(WATCH)
    return panel


def expected(panel) -> str:
    """The source of the picture of a panel of one's own, in another process than the page's kernel."""
    return f"data:image/png;base64,{base64.b64encode(panel.shown.png).decode()}"


def settle(page) -> None:
    """Wait until the kernel has said nothing for a second: what it draws ahead is there."""
    page.wait_for_function(
        """() => { const now = window.order.length;
          if (now !== window.heard) { window.heard = now; window.since = performance.now(); }
          return performance.now() - window.since > 1000; }""",
        polling=100,
    )


def source(panel) -> str:
    return panel.locator("img").get_attribute("src")


def test_no_message_comes_between_the_key_and_its_picture(page, lab):
    panel = open_panel(page, lab, TIMELINE)
    panel.get_by_role("slider", name="Instant").focus()
    instant = 4
    for key, step in (("ArrowRight", 1), ("ArrowRight", 1), ("ArrowLeft", -1)):
        settle(page)
        page.evaluate("window.order.length = 0")
        page.keyboard.press(key)
        instant += step
        page.wait_for_function("window.order.includes('picture')")
        assert page.evaluate("window.order.slice(0, window.order.indexOf('picture'))") == ["key"]
        assert source(panel) == expected(StepTimeline(instant=instant))
        assert f"Instant {instant}, " in panel.locator("[role=status]").inner_text()
        settle(page)
        assert page.evaluate("window.order.filter((word) => word === 'picture').length") == 1, "drawn twice"
    assert page.broken == []


def test_a_bit_is_flipped_at_once_and_back(page, lab):
    panel = open_panel(page, lab, BITS)
    button = panel.get_by_title("exponent bit 2", exact=True)
    button.focus()
    own = BitExplorer()
    for _ in range(2):
        settle(page)
        page.evaluate("window.order.length = 0")
        page.keyboard.press("Enter")
        page.wait_for_function("window.order.includes('picture')")
        assert "message" not in page.evaluate("window.order.slice(0, window.order.indexOf('picture'))")
        own.controls["code"].press(own.controls["code"].buttons[2])
        settle(page)
        assert source(panel) == expected(own)
        assert button.inner_text() == own.controls["code"].buttons[2].description


def test_however_one_plays_the_picture_is_the_kernel_s(page, lab):
    panel = open_panel(page, lab, TIMELINE)
    slider, chance = panel.get_by_role("slider", name="Instant"), random.Random(0)
    slider.focus()
    for _ in range(6):
        for _ in range(chance.randint(1, 5)):
            page.keyboard.press(chance.choice(("ArrowRight", "ArrowLeft")))
            page.wait_for_timeout(chance.choice((0, 30, 90, 160, 400)))
        settle(page)
        instant = int(slider.get_attribute("aria-valuenow").split(".")[0])
        assert source(panel) == expected(StepTimeline(instant=instant))
        assert f"Instant {instant}, " in panel.locator("[role=status]").inner_text()


def test_without_the_focus_the_page_asks_nothing(page, lab):
    panel = open_panel(page, lab, TIMELINE)
    settle(page)
    page.evaluate("window.order.length = 0")
    page.wait_for_timeout(1500)
    before = page.evaluate("window.order.filter((word) => word === 'message').length")
    panel.get_by_role("slider", name="Instant").focus()
    settle(page)
    assert page.evaluate("window.order.filter((word) => word === 'message').length") > before
