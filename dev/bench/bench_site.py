"""The website: from the click that starts Python in a page to the panel's first answer, against Pyodide alone.

Both workers fetch the same compressed files from a server on this machine, in a new page each time, so that what is
compared is the start of Python with and without the book in it. A reader's network comes on top of both.
"""

import shutil
import statistics
import sys
from pathlib import Path

from dev.bench import Row

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from live_notebook import running_chromium, served

SITE = ROOT / "build" / "site"
ROUNDS = 5
WITH_THE_BOOK = """async () => { const { ask } = await import("./live.mjs"), start = performance.now();
    await ask("opened", "first", "MemoryExplorer", "{}"); return performance.now() - start; }"""
BARE = """() => new Promise((answered) => { const start = performance.now();
    const worker = new Worker("./bare.mjs", { type: "module" });
    worker.onmessage = ({ data }) => data === "ready" && answered(performance.now() - start); })"""
BARE_END = """
const { loadPyodide } = await import("./live/pyodide.mjs");
const python = await loadPyodide({ indexURL: new URL("./live/", import.meta.url).href });
python.runPython("1 + 1");
postMessage("ready");
"""


def run() -> list[Row]:
    """The median of five starts each, taken in turn. Raises: FileNotFoundError: ``make site`` was not run."""
    if not (SITE / "search.json").exists():
        raise FileNotFoundError("build/site is missing: `make site` writes it")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    fetching = (SITE / "worker.mjs").read_text(encoding="utf-8").partition("const ready")[0]
    times = {WITH_THE_BOOK: [], BARE: []}
    with served(SITE) as address, running_chromium(chromium) as browser:
        for _ in range(ROUNDS):
            for way, taken in times.items():
                page = browser.new_context().new_page()
                page.route(
                    "**/bare.mjs",
                    lambda route: route.fulfill(
                        body=fetching + BARE_END, content_type="text/javascript"
                    ),
                )
                page.goto(f"{address}index.html")
                taken.append(page.evaluate(way))
                page.context.close()
    book, bare = (statistics.median(taken) for taken in times.values())
    detail = f"{book:.0f} ms from the click to the memory explorer's first answer, Pyodide alone {bare:.0f} ms"
    name = "site: a panel that starts Python against a bare Pyodide"
    return [Row(name=name, ratio=book / bare, at_most=2.0, detail=detail)]
