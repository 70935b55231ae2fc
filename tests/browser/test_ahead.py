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
window.order = []; window.asked = 0;
window.longest = 0; window.unanswered = new Map(); window.stirred = performance.now();
const Plain = window.WebSocket, decoder = new TextDecoder();
const ids = (data) => {
  const text = typeof data === "string" ? data : decoder.decode(data);
  return { all: [...text.matchAll(/"msg_id": ?"([^"]+)"/g)].map((found) => found[1]), text };
};
window.WebSocket = class extends Plain {
  set onmessage(heard) {
    const told = (event) => {
      const { all, text } = ids(event.data), now = performance.now();
      window.order.push("message");
      window.stirred = now;
      if (text.includes('"idle"') && unanswered.has(all[1])) {
        window.longest = Math.max(window.longest, now - unanswered.get(all[1]));
        unanswered.delete(all[1]);
      }
      heard.call(this, event);
    };
    super.onmessage = (event) => window.held ? window.held.push(() => told(event)) : told(event);
  }
  send(data) {
    const { all, text } = ids(data);
    if (all.length) unanswered.set(all[0], performance.now());
    if (text.includes("comm_msg")) window.asked += 1;
    window.stirred = performance.now();
    super.send(data);
  }
};
window.hold = () => { window.held = []; window.order.length = 0; };
window.release = () => { const late = window.held; window.held = null; late.forEach((tell) => tell()); };
"""
"""Notes what page and kernel say to each other, and can hold back what the page hears; installed before its scripts."""
WATCH = """
(panel) => {
  const source = () => panel.querySelector("img").src;
  let last = source();
  window.longest = 0;
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
    """Wait until every message is answered and none came for so long that the page asks for nothing more."""
    page.evaluate("window.stirred = performance.now()")
    page.wait_for_function(
        "unanswered.size === 0 && performance.now() - window.stirred > 1000 + 3 * window.longest", polling=100
    )


def shown_at_once(page, key: str) -> None:
    """Press a key while the page hears nothing, and wait for the picture that it has of its own."""
    page.evaluate("hold()")
    page.keyboard.press(key)
    page.wait_for_function("window.order.includes('picture')")
    assert "message" not in page.evaluate("window.order")
    page.evaluate("release()")


def source(panel) -> str:
    return panel.locator("img").get_attribute("src")


def test_no_message_comes_between_the_key_and_its_picture(page, lab):
    panel = open_panel(page, lab, TIMELINE)
    panel.get_by_role("slider", name="Instant").focus()
    instant = 4
    for key, step in (("ArrowRight", 1), ("ArrowRight", 1), ("ArrowLeft", -1)):
        settle(page)
        shown_at_once(page, key)
        instant += step
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
        shown_at_once(page, "Enter")
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
    page.evaluate("window.asked = 0")
    page.wait_for_timeout(1500)
    assert page.evaluate("window.asked") == 0
    panel.get_by_role("slider", name="Instant").focus()
    page.wait_for_function("window.asked > 0")
