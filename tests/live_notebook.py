"""A notebook in a real browser: open it in JupyterLab or Notebook 7, run it, find its panels."""

import functools
import http.server
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
import requests
from playwright.sync_api import Browser, Locator, Page, sync_playwright

QUIET_CHROMIUM = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PANEL = ".jp-OutputArea .memkit-panel"
SLIDER = f"{PANEL} [role=slider]"
ERROR = ".jp-OutputArea [data-mime-type='application/vnd.jupyter.error']"
PAGES = {"lab": "lab/tree", "notebook": "notebooks"}


@contextmanager
def running_chromium(path: str) -> Iterator[Browser]:
    """A headless Chromium with an empty profile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(QUIET_CHROMIUM))
        try:
            yield browser
        finally:
            browser.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files as a plain server does, without a line for each."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".js": "text/javascript",
    }

    def log_message(self, *_words):
        pass

    def copyfile(self, *given):
        with suppress(BrokenPipeError, ConnectionResetError):  # who left a page wants no more
            super().copyfile(*given)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A server of a folder on this machine; its address."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=folder)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


def write_notebook(path: Path, *cells: str) -> Path:
    """A notebook of code cells, never run."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(notebook, path)
    return path


def ask_server(lab: dict, path: str, method: str = "GET"):
    """The answer of the server's own interface."""
    headers = {"Authorization": f"token {lab['token']}"}
    answer = requests.request(method, f"{lab['url']}/api/{path}", headers=headers, timeout=20)
    answer.raise_for_status()
    return answer.json() if answer.content else None


def end_kernels(lab: dict) -> None:
    """End every kernel of the server, so that the next notebook starts a fresh one."""
    for session in ask_server(lab, "sessions"):
        ask_server(lab, f"sessions/{session['id']}", "DELETE")


def open_and_run(
    page: Page, lab: dict, name: str, front: str = "lab", wait_for: str = SLIDER, seconds: int = 180
) -> None:
    """Open a notebook, choose Run All Cells from the menu, and wait for an element (a panel's slider).

    Raises: RuntimeError: a cell of the notebook failed.
    """
    reset = "&reset" if front == "lab" else ""
    page.goto(
        f"{lab['url']}/{PAGES[front]}/{name}?token={lab['token']}{reset}",
        wait_until="domcontentloaded",
    )
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=60_000)
    # Jupyter's own notices lie over what is clicked
    page.add_style_tag(content=".Toastify {display: none}")
    deadline = time.monotonic() + 60
    while not _has_idle_kernel(lab, name):
        if time.monotonic() > deadline:
            raise RuntimeError("the notebook's kernel was not ready in 60 s")
        page.wait_for_timeout(100)
    page.wait_for_timeout(500)
    page.locator(".lm-MenuBar-itemLabel", has_text="Run").first.click()
    page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()
    page.wait_for_selector(f"{wait_for}, {ERROR}", timeout=seconds * 1000, state="attached")
    if page.locator(ERROR).count():
        raise RuntimeError(f"a cell failed: {page.locator(ERROR).first.inner_text()[-500:]}")
    wait_until_idle(page, lab, name, seconds)


def wait_until_idle(page: Page, lab: dict, name: str, seconds: int = 180) -> None:
    """Wait until the notebook's kernel has had nothing to do for a second and a half: its last cell has run.

    Raises: RuntimeError: it is still busy after ``seconds``.
    """
    deadline, idle = time.monotonic() + seconds, 0
    while idle < 15:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the kernel of {name} was still busy after {seconds} s")
        page.wait_for_timeout(100)
        idle = idle + 1 if _has_idle_kernel(lab, name) else 0


SAID = """(panel) => [...panel.querySelectorAll("[role=status]:not(.memkit-more *)")]
    .map((place) => place.innerText).join("\\n")"""


PICTURE = """(panel) => panel.querySelector(".memkit-view svg").id"""
"""Every picture has an identifier of its own."""


def words(panel: Locator) -> str:
    """What the panel says of its picture; the advice, which comes in a pause, would be taken for a key's answer."""
    return panel.evaluate(SAID)


def changed_by(page: Page, panel: Locator, act: Callable[[], object], shown: str = SAID) -> str:
    """Do something and wait until the panel's words, or its ``PICTURE``, differ; returns the new ones."""
    before = panel.evaluate(shown)
    act()
    page.wait_for_function(
        f"([panel, before]) => ({shown})(panel) !== before",
        arg=[panel.element_handle(), before],
        polling=50,
    )
    return panel.evaluate(shown)


def press(page: Page, panel: Locator, control: Locator, key: str, shown: str = SAID) -> str:
    """Focus the control, press the key, wait until the words, or the ``PICTURE``, differ; returns the new ones."""

    def act():
        control.focus()
        page.keyboard.press(key)

    return changed_by(page, panel, act, shown)


def _has_idle_kernel(lab: dict, name: str) -> bool:
    kernels = [
        session["kernel"] for session in ask_server(lab, "sessions") if session["path"] == name
    ]
    return any(kernel["connections"] and kernel["execution_state"] == "idle" for kernel in kernels)
