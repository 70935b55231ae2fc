"""``make lab`` without a browser: the server starts and chapter 00 is the page it offers."""

import json
import secrets
import shutil
import sys

import pytest
import requests
from lab_server import QUIET_LAB, ROOT, free_port, running_server

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """What ``make lab`` serves in this environment: a function from a path to the bytes of the page."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    port, token = free_port(), secrets.token_hex(16)
    arguments = " ".join([*QUIET_LAB, f"--port={port}", f"--IdentityProvider.token={token}"])
    installed = f"{sys.prefix}/.book"
    command = [
        "make",
        "lab",
        f"VENV={sys.prefix}",
        f"--old-file={installed}",
        f"LAB_ARGS={arguments}",
    ]
    url = f"http://127.0.0.1:{port}"

    def page(path: str) -> bytes:
        return requests.get(f"{url}/{path}?token={token}", timeout=60).content

    with running_server(
        command, f"{url}/api?token={token}", folder=tmp_path_factory.mktemp("server")
    ) as log:
        page.log = log
        yield page


def test_the_printed_address_is_chapter_00_in_jupyterlab(served):
    assert "/lab/tree/my_chapters/00_start_here.ipynb?token=" in served.log.read_text()
    assert b"<title>JupyterLab</title>" in served("lab/tree/my_chapters/00_start_here.ipynb")
    asks = json.loads(served("lab/api/settings/@jupyterlab/apputils-extension:notification"))
    assert asks["schema"]["properties"]["fetchNews"]["default"] == "false", (
        "a reader is not asked about news"
    )


def test_the_chapter_is_a_notebook_that_can_be_opened(served):
    chapter = json.loads(served("api/contents/my_chapters/00_start_here.ipynb"))
    assert chapter["type"] == "notebook"
    assert chapter["content"]["cells"][0]["source"].startswith("# 0 · ")


def test_pictures_beside_the_chapters_are_served(served):
    [picture] = sorted((ROOT / "figures").glob("01_step_timeline.png"))
    assert served(f"files/figures/{picture.name}") == picture.read_bytes()
