"""The built site behind a server of its own, and one page of a Chromium that serves a file's tests."""

import sys
from pathlib import Path

import pytest
from live_notebook import running_chromium, served

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
AXE = Path(sys.prefix) / "npm" / "node_modules" / "axe-core" / "axe.min.js"
RUN_AXE = """async (rules) => (await axe.run(document, { resultTypes: ["violations"],
    ...(rules.length ? { runOnly: rules } : {}) })).violations
    .map((rule) => [rule.id, rule.nodes.length, rule.nodes[0].html.slice(0, 200), rule.nodes[0].failureSummary])"""


@pytest.fixture(scope="session")
def site() -> Path:
    if not (SITE / "search.json").exists():
        pytest.fail("build/site is missing: `make site` writes it")
    return SITE


@pytest.fixture(scope="session")
def address(site):
    with served(site) as address:
        yield address


@pytest.fixture(scope="module")
def pages(chromium_path, address):
    """A file's pages may ask only this server; what they asked of others and what went wrong in them is noted."""
    with running_chromium(chromium_path) as browser:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(120_000)
        strangers, broken = [], []

        def ask(route):
            if route.request.url.startswith((address, "data:", "blob:")):
                route.continue_()
            else:
                strangers.append(route.request.url)
                route.abort()

        context.route("**/*", ask)
        context.on("weberror", lambda error: broken.append(f"{error.page.url}: {error.error}"))
        yield context
        assert not strangers and not broken


@pytest.fixture
def page(pages):
    page = pages.new_page()
    yield page
    page.close()


@pytest.fixture
def breaks(page):
    """Makes the next ``times`` requests whose address has ``words`` fail, as without a network; all of them if 0."""
    made = []

    def abort(route):
        route.abort()

    def breaks(words: str, times: int = 0) -> None:
        made.append(f"**/*{words}*")
        page.context.route(made[-1], abort, times=times or None)

    def over() -> None:
        while made:
            page.context.unroute(made.pop(), abort)

    breaks.over = over
    yield breaks
    over()


@pytest.fixture(scope="session")
def axe():
    """What axe-core finds on a page, by all of its rules or by some."""

    def found(page, rules=()) -> list:
        if page.evaluate("typeof axe") == "undefined":
            page.evaluate(AXE.read_text(encoding="utf-8"))
        return page.evaluate(RUN_AXE, list(rules))

    return found
