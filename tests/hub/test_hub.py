"""A hub of three, the real one: they learn at once, two of them break things, and nothing is left running."""

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch
from urllib.parse import quote

import psutil
import pytest
import requests
from lab_server import ROOT, free_port
from traitlets.config import Config

from book.card_cells import code_cells
from course import load, walk
from course.hub.wall import can_wall

pytestmark = pytest.mark.serial
PASSWORD = "three of us"
CONFIG = ROOT / "course/hub/jupyterhub_config.py"
README = (ROOT / "course/hub/README.md").read_text()


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A running hub; after the tests no process knows its folder any more."""
    folder, port = tmp_path_factory.mktemp("hub"), free_port()
    # no machine of ours has two
    shared = {"MEMKIT_HUB_CARDS": "3,MIG-pretended", "MEMKIT_GPU_GIB": "2"}
    with patch.dict(os.environ, shared), load.running_hub(folder, PASSWORD, port) as process:
        yield {"url": f"http://127.0.0.1:{port}", "folder": folder, "process": process}
        sockets = sockets_of(process)
        assert alive_in(folder) and sockets.exists()
    assert not alive_in(folder)
    assert not sockets.exists()


def alive_in(folder: Path) -> list[psutil.Process]:
    """Every process of this machine, whoever its parent is, that was told of the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            told = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        found += [process] * any(str(folder) in word for word in told)
    return found


def sockets_of(hub: psutil.Process) -> Path:
    """Where the hub's students keep their kernels' sockets."""
    for child in hub.children(recursive=True):
        with suppress(psutil.Error):  # one that has ended meanwhile
            if told := child.environ().get("JUPYTER_RUNTIME_DIR"):
                return Path(told).parent
    raise LookupError("no student's server")


@pytest.fixture(scope="module")
def figures(hub):
    options = argparse.Namespace(students=3, seconds=6, cells=2)
    return load.run_class(options, hub["url"], PASSWORD, hub["process"])


@pytest.fixture(scope="module")
def ann(hub, figures):
    """The one who breaks nothing, from a second browser: her server and her kernel are there already."""
    student = load.Student(name="student00", hub=hub["url"], password=PASSWORD)
    student.log_in()
    student.open_chapter()
    return student


def test_nobody_loses_anything_while_two_break_things(figures):
    assert figures["lost"] == []
    assert figures["failed_cells"] == []
    assert figures["breakers"] == {
        "student01": ("kills the kernel", "fills a played card"),
        "student02": ("fills the memory",),
    }
    assert figures["moves"] == 6


def test_what_a_student_holds_is_what_linux_says(figures):
    held = figures["chapter 01 opened"]["bytes_each"]
    assert 50e6 < held["p50"] < 1e9
    assert figures["chapter 01 run"]["bytes_each"]["p50"] > held["p50"]


def test_the_panel_needs_no_torch(hub, ann):
    """What is measured before torch is loaded is measured before torch is loaded."""
    kernel = ann.ask("kernels", "POST", json={"name": "python3"}).json()["id"]
    other = load.Student(name=ann.name, hub=ann.hub, password=PASSWORD, web=ann.web, kernel=kernel)
    other.connect()
    other.open_panel()
    assert other.run("import sys\nassert 'torch' not in sys.modules")[0] == ""


def test_a_kernel_speaks_over_ipc_with_one_thread_and_a_limit(ann):
    code = """
import os, resource, json
from ipykernel.connect import get_connection_info
assert json.loads(get_connection_info())['transport'] == 'ipc'
assert os.environ['OMP_NUM_THREADS'] == '1'
assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 3 * 2**30
assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == 5 * 2**30
assert resource.getrlimit(resource.RLIMIT_NPROC)[0] <= 4096
"""
    assert ann.run(code)[0] == ""


def test_three_servers_are_spread_over_two_cards(hub, figures):
    """What each server's process was told, as Linux has it."""
    told = [
        process.environ().get("CUDA_VISIBLE_DEVICES")
        for process in alive_in(hub["folder"])
        if "jupyterhub.singleuser" in process.cmdline() and process.name() != "bwrap"
    ]
    assert sorted(map(told.count, ("3", "MIG-pretended"))) == [1, 2]


ON_A_CARD = """
from book.gpu_cap import cap_gpu
CELL = {cell!r}
with pretend_card(total_bytes=8 * GIB):
    assert cap_gpu() == 2 * GIB
    try:
        exec(CELL.replace("torch.zeros(1,", "torch.zeros({sequences},"))
        told = "nothing"
    except torch.OutOfMemoryError as error:
        told = str(error)
assert told.startswith("{told}"), told
"""


def test_a_class_on_a_card_that_is_not_there(hub, ann):
    """Everybody runs lesson 03's cell at once, under the cap that each kernel is told.

    Who takes four sequences in place of one runs out alone, is told so, and runs it as it stands afterwards.
    """
    path = ROOT / "chapters/03_mixed_precision.ipynb"
    cells = {cell["id"]: cell["source"] for cell in code_cells(path)}
    [setup] = [
        cell["source"] for cell in code_cells(path) if "setup" in cell["metadata"].get("tags", [])
    ]
    whole = ON_A_CARD.format(cell=cells["card-autocast"], sequences=1, told="nothing")
    greedy = ON_A_CARD.format(
        cell=cells["card-autocast"], sequences=4, told="CUDA out of memory. Tried to allocate "
    )

    def runs(name: str) -> list[str]:
        student = load.Student(name=name, hub=hub["url"], password=PASSWORD)
        student.log_in()
        student.open_chapter(f"chapters/{path.name}")
        card = (ROOT / "tests/pretend_card.py").read_text(encoding="utf-8")
        cells_run = [setup, card, *[greedy] * (name == "student01"), whole]
        return [student.run(cell)[0] for cell in cells_run]

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(runs, ("student00", "student01", "student02"))) == [
            [""] * 3,
            [""] * 4,
            [""] * 3,
        ]


def test_an_assertion_in_a_kernel_is_heard_and_the_walk_tells_of_it(ann):
    assert ann.run("assert False")[0] == "AssertionError"
    told = walk.run_cells(
        ann, [{"source": ["import time\n", "time.sleep(0.2)"]}, {"source": ["assert False"]}]
    )
    assert [error for _, error in told] == ["", "AssertionError"] and told[0][0] >= 0.2


def test_jupyterlab_asks_for_no_news(ann):
    plugin = "@jupyterlab/apputils-extension:notification"
    told = json.loads(ann.ask(f"../lab/api/settings/{plugin}").json()["raw"] or "{}")
    defaults = ann.ask(f"../lab/api/settings/{plugin}").json()["schema"]["properties"]
    assert told == {}
    assert (defaults["fetchNews"]["default"], defaults["checkForUpdates"]["default"]) == (
        "false",
        False,
    )


def test_jupyterlab_shows_none_of_nbgrader_s_buttons(ann):
    page = re.search(
        r'"jupyter-config-data"[^>]*>(.*?)</script>', ann.ask("../lab").text, re.DOTALL
    )[1]
    assert "@jupyter/nbgrader" in json.loads(page)["disabledExtensions"]


def test_the_login_page_says_which_names_it_takes(hub):
    assert (
        "letters from a to z, digits, dots, - and _"
        in requests.get(f"{hub['url']}/hub/login", timeout=60).text
    )


def test_the_book_is_there(hub, figures):
    """Cell by cell the book's, and no output gives away what a cell is about to show."""
    theirs = hub["folder"] / "homes/student00/chapters/02_number_formats.ipynb"
    copied, book = (
        json.loads(path.read_text())["cells"]
        for path in (theirs, ROOT / "chapters/02_number_formats.ipynb")
    )
    assert [cell["source"] for cell in copied] == [cell["source"] for cell in book]
    assert any(cell.get("outputs") for cell in book)
    assert not any(cell.get("outputs") for cell in copied)
    beside = [theirs.parent / folder / theirs.name for folder in ("exercises", "further")]
    assert all(path.is_file() for path in beside) and not (theirs.parent / "book").exists()


def test_what_a_student_wrote_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMKIT_HUB_FOLDER", str(tmp_path / "hub"))
    config = runpy.run_path(str(CONFIG), {"get_config": Config})
    bring_the_book, student = config["bring_the_book"], SimpleNamespace(home_dir=tmp_path / "ann")
    (tmp_path / "release/lab1").mkdir(parents=True)
    (tmp_path / "release/lab1/lab1.ipynb").write_text("a lab")
    config["PARTS"]["labs"] = tmp_path / "release"
    bring_the_book(student)
    assert (tmp_path / "ann/labs/lab1/lab1.ipynb").read_text() == "a lab"
    written, lost = (
        tmp_path / "ann/chapters" / name for name in ("02_number_formats.ipynb", "claims.toml")
    )
    written.write_text("mine")
    lost.unlink()
    bring_the_book(student)
    assert written.read_text() == "mine"
    assert lost.read_bytes() == (ROOT / "chapters/claims.toml").read_bytes()


@pytest.mark.parametrize(
    ("typed", "home"),
    [
        ("ada.lovelace", "ada.lovelace"),
        ("Ada.Lovelace@Uni.example", "ada.lovelace"),
        ("jupyter-ada", "ada"),
        ("..", None),
        ("../eve@uni.example", None),
        ("@uni.example", None),
    ],
)
def test_a_student_s_home_has_the_login_that_the_roster_reads(tmp_path, monkeypatch, typed, home):
    monkeypatch.setenv("MEMKIT_HUB_FOLDER", str(tmp_path))
    monkeypatch.setenv("MEMKIT_HUB_ADDRESS", f"http://127.0.0.1:{free_port()}")
    config = runpy.run_path(str(CONFIG), {"get_config": Config})
    authenticator = config["SlowedAuthenticator"](config=config["c"])
    name = authenticator.normalize_username(typed)
    assert (name if authenticator.validate_username(name) else None) == home


def test_the_readme_s_link_brings_a_repository(ann, hub):
    course = hub["folder"] / "homes/student00/origin"  # behind the wall /tmp is another
    course.mkdir()
    (course / "lesson.txt").write_text("bytes")
    author = ["-c", "user.name=teacher", "-c", "user.email=teacher@example.org"]
    for words in (
        ["init", "-q", "-b", "2027-spring"],
        ["add", "."],
        [*author, "commit", "-qm", "lesson"],
    ):
        subprocess.run(["git", "-C", str(course), *words], check=True)
    [link] = re.findall(r"^https://HUB(/hub/user-redirect/git-pull.+)$", README, re.MULTILINE)
    link = link.replace(quote("https://example.org/course", safe=""), quote(str(course), safe=""))
    page = ann.web.get(hub["url"] + link, timeout=60)
    assert page.url.startswith(f"{ann.server}/git-pull?")
    query = page.url.partition("?")[2]
    said = ann.ask(f"../git-pull/api?{query}&targetpath=course").text
    assert '"phase": "finished"' in said
    assert (hub["folder"] / "homes/student00/course/lesson.txt").read_text() == "bytes"


def test_one_cannot_ask_another_s_server(ann, hub):
    other = ann.web.get(f"{hub['url']}/user/student01/api/contents/", timeout=30)
    assert other.status_code in (403, 404)
    assert requests.get(f"{hub['url']}/user/student00/api/contents/", timeout=30).status_code == 403


@pytest.mark.parametrize(
    ("name", "password"), [("eve", "wrong password"), ("../eve", PASSWORD), ("", PASSWORD)]
)
def test_a_wrong_password_or_name_is_refused(hub, name, password):
    eve = load.Student(name=name, hub=hub["url"], password=password)
    with pytest.raises(requests.HTTPError, match="403"):
        eve.log_in()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"PASSWORD": "short"}, "MEMKIT_HUB_PASSWORD has 5 letters"),
        ({"MEMORY": "lots"}, "MEMKIT_HUB_MEMORY='lots'"),
        ({"DISK": "all"}, "MEMKIT_HUB_DISK='all'"),
        ({"PROCESSES": "0"}, "MEMKIT_HUB_PROCESSES='0'"),
        ({"STUDENTS": "many"}, "MEMKIT_HUB_STUDENTS='many'"),
        ({"ADDRESS": "localhost"}, "MEMKIT_HUB_ADDRESS='localhost'"),
        ({"ADDRESS": "taken"}, "answers at http"),
        ({"PREFIX": "elsewhere"}, "`make hub` installs it"),
    ],
)
def test_what_cannot_work_is_told_before_it_starts(hub, tmp_path, monkeypatch, names, words):
    monkeypatch.setenv("MEMKIT_HUB_FOLDER", str(tmp_path))
    for name, value in names.items():
        monkeypatch.setenv(f"MEMKIT_HUB_{name}", hub["url"] if value == "taken" else value)
    if "PREFIX" in names:
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(SystemExit, match=re.escape(words)):
        runpy.run_path(str(CONFIG), {"get_config": Config})


def test_a_broken_promise_is_told():
    calm = {"p50": 20.0, "p95": 30.0, "max": 50.0}
    good = {
        "lost": [],
        "failed_cells": [],
        "moves": 9,
        "move_ms": calm,
        "moves_in_mishaps": 3,
        "move_ms_in_mishaps": calm,
        "the memory explorer stands, no torch": {"bytes_each": {"p50": 2e8, "p95": 2e8}},
    }
    assert all(kept for kept, _ in load.verdicts(good))
    for changed in (
        {"lost": ["student01: her kernel forgot"]},
        {"failed_cells": ["setup"]},
        {"moves": 0},
        {"move_ms": calm | {"p95": 61.0}},
        {"move_ms_in_mishaps": calm | {"p95": 61.0}},
        {"the memory explorer stands, no torch": {"bytes_each": {"p50": 2e8, "p95": 2.11e8}}},
    ):
        assert [kept for kept, _ in load.verdicts(good | changed)].count(False) == 1


def test_a_student_sees_no_other_s_files_and_no_lab_s_solution(hub, ann):
    """What her kernel lists, where the hub's own process sees three homes and seven labs."""
    if not can_wall():
        pytest.skip("bubblewrap does not start here")
    homes = hub["folder"] / "homes"
    assert len(list(homes.iterdir())) == 3 and list((ROOT / "course/labs").glob("lab_*.py"))
    code = f"""
import os
assert os.listdir({str(homes)!r}) == ["student00"]
assert os.listdir({str(ROOT / "course")!r}) == ["hub"]
assert os.listdir({str(ROOT / "course/hub")!r}) == ["student"] and not os.listdir({str(ROOT / "tests")!r})
labs = {str(ROOT / "build")!r}  # gradebook, and the class's list
assert not os.path.isdir(labs) or not os.listdir(labs)
import sys
for place in ({str(ROOT / "memkit")!r}, {str(ROOT / "course/hub/student")!r}, sys.prefix):
    assert not os.access(place, os.W_OK), place
numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
assert 1 in numbers and len(numbers) < 20
"""
    assert ann.run(code)[0] == ""
