"""One Chromium for a file's tests, and a page of it for each."""

import os

import pytest
from live_notebook import end_kernels, running_chromium

PATIENCE_MS = 60_000
NOTEBOOK_7_OWN = (
    "Cannot read properties of undefined (reading 'schema')",
    "Command 'filebrowser:open-path' not registered.",
)
"""What Notebook 7.6's own script throws while it opens any notebook, one with a bare ``IntSlider`` too."""

SLOW_SOCKET = """
const Quick = window.WebSocket;
const late = () => {
  const waiting = [];
  let last = 0;
  return (deliver) => {
    const now = performance.now();
    last = Math.max(last, now + Math.random() * MOST);
    waiting.push(deliver);
    setTimeout(() => waiting.shift()(), last - now);
  };
};
window.WebSocket = class extends Quick {
  inward = late();
  outward = late();
  set onmessage(heard) {
    super.onmessage = (event) => this.inward(() => heard.call(this, event));
  }
  send(words) {
    this.outward(() => super.send(words));
  }
};
"""
"""Each message between page and kernel comes up to MOST ms late, in its order: what a busy machine does to a test."""


@pytest.fixture(scope="module")
def browser(chromium_path):
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE_MS)
    with running_chromium(chromium_path) as browser:
        yield browser


@pytest.fixture
def page(browser, lab):
    """A page that notes what went wrong in it (``broken``) and what it asked of other machines (``strangers``)."""
    context = browser.new_context(viewport={"width": 1400, "height": 1400})
    if most := int(os.environ.get("MEMKIT_SLOW_SOCKET", "0")):
        context.add_init_script(SLOW_SOCKET.replace("MOST", str(most)))
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.broken, page.strangers = [], []
    page.on("pageerror", lambda error: is_own(error) or page.broken.append(str(error)))
    own = ("data:", "blob:", lab["url"], lab["url"].replace("http", "ws"))
    page.on(
        "request", lambda request: request.url.startswith(own) or page.strangers.append(request.url)
    )
    yield page
    context.close()
    end_kernels(lab)
    assert not page.strangers and not page.broken


def is_own(error) -> bool:
    """Whether an error of a page is one of Notebook 7's own."""
    return error.message in NOTEBOOK_7_OWN and "/static/notebook/notebook_core" in error.stack
