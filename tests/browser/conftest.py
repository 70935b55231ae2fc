"""One Chromium for a file's tests, and a page of it for each."""

import pytest
from live_notebook import end_kernels, running_chromium

NOTEBOOK_7_OWN = (
    "Cannot read properties of undefined (reading 'schema')",
    "Command 'filebrowser:open-path' not registered.",
)
"""What Notebook 7.6's own script throws while it opens any notebook, one with a bare ``IntSlider`` too."""


@pytest.fixture(scope="module")
def browser(chromium_path):
    with running_chromium(chromium_path) as browser:
        yield browser


@pytest.fixture
def page(browser, lab):
    """A page that notes what went wrong in it (``broken``) and what it asked of other machines (``strangers``)."""
    context = browser.new_context(viewport={"width": 1400, "height": 1400})
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.broken, page.strangers = [], []
    page.on("pageerror", lambda error: is_own(error) or page.broken.append(str(error)))
    page.on("request", lambda request: page.strangers.append(request.url))
    yield page
    context.close()
    end_kernels(lab)


def is_own(error) -> bool:
    """Whether an error of a page is one of Notebook 7's own."""
    return error.message in NOTEBOOK_7_OWN and "/static/notebook/notebook_core" in error.stack
