"""Photograph README's panel in a real JupyterLab: ``python scripts/panel_picture.py``. It needs a Chromium."""

import secrets
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from lab_server import QUIET_LAB, free_port, running_server
from live_notebook import PANEL, open_and_run, running_chromium, write_notebook

PICTURE = ROOT / "figures" / "panel.jpg"
CELL = "from memkit import widgets\nwidgets.MemoryExplorer()"


def main() -> None:
    """Run one cell in JupyterLab and keep the part of the page that its panel fills."""
    port, token = free_port(), secrets.token_hex(16)
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_notebook(folder / "panel.ipynb", CELL)
        options = [f"--port={port}", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}"]
        command = [sys.executable, "-m", "jupyterlab", *QUIET_LAB, *options]
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        server = running_server(command, f"{url}/api?token={token}", folder=folder)
        with server, running_chromium(chromium) as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 1600})
            open_and_run(page, {"url": url, "token": token}, "panel.ipynb")
            page.locator(PANEL).first.screenshot(path=PICTURE, type="jpeg", quality=80)


if __name__ == "__main__":
    main()
