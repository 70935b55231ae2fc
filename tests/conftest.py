"""What several tests share: the marks gpu and browser, a Chromium, a running JupyterLab."""

import os

# Before torch is loaded anywhere: two test processes share two cores, and sums do not depend on their number.
os.environ["OMP_NUM_THREADS"] = "1"

import contextlib
import importlib.util
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from lab_server import QUIET_LAB, ROOT, free_port, running_server
from layers import is_swept

# The same examples on every machine and in every run; HYPOTHESIS_PROFILE=search looks for new ones.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_BROWSER = (
    "no Chromium found; get one with `apt install chromium` or `playwright install chromium`"
)


def _load_torchvision_without_cuda():
    """A wheel built for CUDA lacks its compiled operators beside a torch for CPUs. transformers imports it; no test
    calls them. One that loads brings its own, which may not be defined twice."""
    import torch

    with contextlib.suppress(ImportError, RuntimeError, OSError):
        import torchvision  # noqa: F401

        return None
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # half of it, of which the next import would be given the rest
    with contextlib.suppress(RuntimeError):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library


TORCHVISION = _load_torchvision_without_cuda() if importlib.util.find_spec("torchvision") else None


@pytest.fixture(autouse=True)
def _the_folder_is_left_as_it_was():
    """The next test would look for its files elsewhere."""
    before = os.getcwd()
    yield
    assert os.getcwd() == before


def pytest_collection_modifyitems(items):
    """Tests marked ``gpu`` run where there is a CUDA card; ``layers`` says which are left to ``make sweep``."""
    for item in items:
        if is_swept(item.nodeid):
            item.add_marker(pytest.mark.sweep)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA card"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """With MEMKIT_REQUIRE_BROWSER=1 a browser test that is skipped has failed."""
    report = yield
    if (
        report.skipped
        and item.get_closest_marker("browser")
        and os.environ.get("MEMKIT_REQUIRE_BROWSER") == "1"
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped, and MEMKIT_REQUIRE_BROWSER=1 forbids it: {report.longrepr}"
    return report


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """A Chromium of the system, or the one Playwright has downloaded."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    if importlib.util.find_spec("playwright"):
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            if Path(playwright.chromium.executable_path).exists():
                return playwright.chromium.executable_path
    pytest.skip(NO_BROWSER)


@pytest.fixture(scope="session")
def artefacts() -> Path:
    """Folder for screenshots and reports that outlive the tests."""
    folder = ROOT / "artefacts"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def lab(tmp_path_factory) -> Iterator[dict]:
    """A JupyterLab that serves a copy of the book: ``{"url": ..., "token": ..., "folder": ...}``."""
    folder = tmp_path_factory.mktemp("lab")
    for part in ("chapters", "figures"):
        shutil.copytree(ROOT / part, folder / part)
    port, token = free_port(), secrets.token_hex(16)
    options = [
        f"--port={port}",
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={folder}",
    ]
    command = [sys.executable, "-m", "jupyterlab", *QUIET_LAB, *options]
    url = f"http://127.0.0.1:{port}"
    with running_server(command, f"{url}/api?token={token}", folder=folder):
        yield {"url": url, "token": token, "folder": folder}
