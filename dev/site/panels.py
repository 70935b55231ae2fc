"""Panels on a page: their first moves are drawn ahead, and after a click they run the book's own Python.

A panel is opened by its name, without torch, numpy and ipywidgets. Where that works it moves on
the page too; where it does not, the page shows the picture that the notebook stores, and says how to move it.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from html import escape
from pathlib import Path

import lazy_loader
from page_host import explorer_of, pictures_of

from memkit import widgets as kit
from memkit.widgets.panel import SCRIPT
from stepscope import widgets as more

HERE = Path(__file__).resolve().parent
SCRIPTS = ("pyodide.mjs", "pyodide.asm.mjs")
LARGE = ("pyodide.asm.wasm", "python_stdlib.zip", "memkit.zip")
PACKAGES = "memkit", "stepscope"
LEFT_OUT = ("program", "tracing", "measuring", "tool")
"""Rooms that no page can import, or has a use for."""
OWN_PAGES = {
    "LedgerSearch": ("claims", "Search all claims"),
    "QuestionCards": ("questions", "Every question, with a reply to each choice"),
}
TOO_SLOW = {"PlanExplorer": "Its plans take a browser about a minute."}
IN_JUPYTER = '<p class="quiet">{}This panel moves in Jupyter: <code>make lab</code>.</p>'


class Panels:
    """Collects the panels of all pages, and then makes each of them once."""

    # a film needs no Python in the page
    names = (*OWN_PAGES, *({*kit.__all__, *more.__all__} - {"StepFilm", "SavedFilm"}))

    def __init__(self, root: Path, out: Path):
        self.root, self.out = root, out
        self.asked: dict[str, tuple[str, dict, str]] = {}

    def html(self, name: str, arguments: dict | None, stored: str) -> str:
        """What stands on the page for a panel, whose stored picture this is: a mark that ``finished`` replaces."""
        if name in OWN_PAGES:
            stem, words = OWN_PAGES[name]
            return f'<p class="run"><a href="{stem}.html">{words}</a> on a page of their own.</p>'
        if arguments is None:
            return stored + IN_JUPYTER.format("")
        if name in TOO_SLOW:
            pictures = pictures_of(explorer_of(name)(**arguments).shown.chart)
            return f'<div class="panel">{pictures}</div>{IN_JUPYTER.format(f"{TOO_SLOW[name]} ")}'
        key = f"<!--panel {name} {json.dumps(arguments, sort_keys=True)}-->"
        self.asked[key] = (name, arguments, stored)
        return key

    def make(self) -> None:
        """Write what runs in the page, and draw the first moves of every panel that was asked for."""
        live = self.out / "live"
        live.mkdir()
        npm = Path(sys.prefix) / "npm" / "node_modules" / "pyodide"
        if not npm.exists():
            raise ValueError(f"{npm} is missing: `make site` fetches Pyodide from npm")
        for name in SCRIPTS:
            shutil.copy(npm / name, live)
        lock = json.loads((npm / "pyodide-lock.json").read_text(encoding="utf-8"))
        (live / "pyodide-lock.json").write_text(
            json.dumps(lock | {"packages": {}}), encoding="utf-8"
        )
        with zipfile.ZipFile(npm / "python_stdlib.zip") as library:
            library = packed({name: library.read(name) for name in library.namelist()})
        contents = (npm / "pyodide.asm.wasm").read_bytes(), library, book(self.root)
        for name, data in zip(LARGE, contents, strict=True):
            (live / f"{name}.gz").write_bytes(gzip.compress(data, 9, mtime=0))
        shutil.copy(SCRIPT, live / "in_page.mjs")
        with ThreadPoolExecutor(2) as pool:
            made = pool.map(self.panel, *zip(*self.asked.values(), strict=True))
        self.made = dict(zip(self.asked, made, strict=True))

    def panel(self, name: str, arguments: dict, stored: str) -> str:
        """One panel as it opens; its moves are a file that the page fetches at the first touch."""
        words, live = json.dumps(arguments, sort_keys=True), self.out / "live"
        key = hashlib.sha256(
            (live / "memkit.zip.gz").read_bytes() + f"{name}{words}".encode()
        ).hexdigest()[:12]
        kept = self.out.parent / "ahead" / f"{name}-{key}.json.gz"
        kept.parent.mkdir(exist_ok=True)
        if not kept.exists():
            path = os.pathsep.join(map(str, (HERE, self.root, self.root / "chapters")))
            command = [sys.executable, str(HERE / "ahead.py"), name, words, str(kept)]
            done = subprocess.run(
                command,
                env=os.environ | {"PYTHONPATH": path},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 3:
                return stored + IN_JUPYTER.format("")
            if done.returncode:
                raise ValueError(f"{name} could not be drawn ahead:\n{done.stderr}")
        made = json.loads(gzip.decompress(kept.read_bytes()))
        moves = gzip.compress(json.dumps([made["opening"], made["moves"]]).encode(), 9, mtime=0)
        (live / f"{name}-{key}.json.gz").write_bytes(moves)
        facts = f'data-panel="{name}" data-arguments="{escape(words)}" data-moves="live/{name}-{key}.json.gz"'
        return f'<div class="panel" {facts}>{made["html"]}<div class="live"></div></div>'

    def finished(self, html: str) -> str:
        """A page with its panels in it."""
        for key, panel in self.made.items():
            html = html.replace(key, panel)
        return html

    @cached_property
    def fetched(self) -> int:
        """What a click fetches, in bytes as a server sends them: scripts compressed, the large files as they are."""
        live = self.out / "live"
        scripts = sum(len(gzip.compress((live / name).read_bytes(), 6)) for name in SCRIPTS)
        return scripts + sum((live / f"{name}.gz").stat().st_size for name in LARGE)


def packed(files: dict[str, bytes]) -> bytes:
    """A zip of files that are stored as they are, the same bytes each time: compressed as a whole it gets smaller."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as made:
        for name, data in files.items():
            made.writestr(zipfile.ZipInfo(name), data)
    return archive.getvalue()


def book(root: Path) -> bytes:
    """The part of the book that runs without torch, and what the page's worker calls."""
    files = [file for name in PACKAGES for file in (root / name).rglob("*")]
    files = [file for file in files if file.suffix in (".py", ".pyi", ".csv", ".json")]
    files = [file for file in files if file.relative_to(root).parts[1] not in LEFT_OUT]
    exercises = [
        path
        for path in (root / "chapters" / "book" / "exercises").glob("*.py")
        if not path.stem.startswith("chapter_")
    ]
    files += [root / "chapters/book/__init__.py", root / "chapters/book/__init__.pyi", *exercises]
    sources = {
        str(file.relative_to(root)).removeprefix("chapters/"): file.read_bytes()
        for file in sorted(files)
    }
    sources["page_host.py"] = (HERE / "page_host.py").read_bytes()
    return packed(sources | {"lazy_loader/__init__.py": Path(lazy_loader.__file__).read_bytes()})
