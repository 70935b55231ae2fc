"""One Chromium for a file's tests, and a page of it for each."""

import pytest
from live_notebook import end_kernels, running_chromium


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
    page.on("pageerror", lambda error: page.broken.append(str(error)))
    page.on("request", lambda request: page.strangers.append(request.url))
    yield page
    context.close()
    end_kernels(lab)
