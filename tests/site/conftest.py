"""The built site behind a server of its own, and one page of a Chromium that serves a file's tests."""

import functools
import http.server
import threading
from pathlib import Path

import pytest
from live_notebook import running_chromium

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
TYPES = {".mjs": "text/javascript", ".js": "text/javascript"}


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files as a plain server does, without a line for each."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | TYPES

    def log_message(self, *_words):
        pass


@pytest.fixture(scope="session")
def site() -> Path:
    if not (SITE / "search.json").exists():
        pytest.fail("build/site is missing: `make site` writes it")
    return SITE


@pytest.fixture(scope="session")
def address(site):
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=site)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def page(chromium_path, address):
    """A page that may ask only this server; what it asked of others and what went wrong in it is noted."""
    with running_chromium(chromium_path) as browser:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.strangers, page.broken = [], []

        def ask(route):
            if route.request.url.startswith((address, "data:", "blob:")):
                route.continue_()
            else:
                page.strangers.append(route.request.url)
                route.abort()

        context.route("**/*", ask)
        page.on("pageerror", lambda error: page.broken.append(f"{page.url}: {error}"))
        yield page
        assert not page.strangers and not page.broken
