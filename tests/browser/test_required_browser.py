"""A browser test that is skipped fails where MEMKIT_REQUIRE_BROWSER=1, and is a skip elsewhere."""

import os
import shutil
import subprocess
import sys

import pytest
from lab_server import ROOT

PLANTED = """
import pytest

@pytest.mark.browser
def test_in_a_browser(chromium_path):
    pass

@pytest.mark.skip
def test_of_another_kind():
    pass
"""


def run_without_chromium(folder, required: str) -> str:
    """The last line that pytest prints about ``PLANTED`` where no Chromium can be found."""
    for name in ("conftest.py", "lab_server.py", "layers.py"):
        shutil.copy(ROOT / "tests" / name, folder)
    (folder / "test_planted.py").write_text(PLANTED)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = browser: -\n  gpu: -\n  sweep: -\n")
    nowhere = {
        "PATH": str(folder),
        "PLAYWRIGHT_BROWSERS_PATH": str(folder),
        "MEMKIT_REQUIRE_BROWSER": required,
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rsE", "-p", "no:cacheprovider", folder],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | nowhere,
        cwd=folder,
    )
    return done.stdout


@pytest.mark.parametrize("required, outcome", [("0", "2 skipped"), ("1", "1 skipped, 1 error")])
def test_a_skip_is_a_failure_only_where_a_browser_is_required(tmp_path, required, outcome):
    printed = run_without_chromium(tmp_path, required)
    assert printed.splitlines()[-1].startswith(outcome), printed
    assert "apt install chromium" in printed
