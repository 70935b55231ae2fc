"""A server behind the wall, by bubblewrap itself: what it sees, what it may write, and how it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from lab_server import ROOT

from course.hub import wall
from course.hub.wall import can_wall, ignore_requests_to_end, walled

pytestmark = pytest.mark.skipif(not can_wall(), reason="bubblewrap does not start here")

LOOK = """
import os, sys
from pathlib import Path
homes, solutions, own = map(Path, sys.argv[1:])
print(sorted(path.name for path in homes.iterdir()), list(solutions.iterdir()))
(own / "written.txt").write_text("mine")
print(sum(name.isdigit() for name in os.listdir("/proc")))
try:
    (homes / "bob" / "notes.txt").write_text("not mine")
except OSError as error:
    print(type(error).__name__)
"""

SERVER = """
import signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000.25"], start_new_session=True)
def end(*_):
    print("ended in its own time", flush=True)
    sys.exit(0)
signal.signal(signal.SIGINT, end)
print("up", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def folder(tmp_path):
    for name in ("homes/ada", "homes/bob", "solutions"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "homes/bob/notes.txt").write_text("bob's")
    (tmp_path / "solutions/lab.py").write_text("answer = 42")
    return tmp_path


def test_others_and_solutions_are_not_there_and_ones_own_files_are(folder):
    homes, solutions, own = folder / "homes", folder / "solutions", folder / "homes/ada"
    command = [sys.executable, "-c", LOOK, *map(str, (homes, solutions, own))]
    done = subprocess.run(
        walled(command, [homes, solutions], [], [own]), capture_output=True, text=True, check=True
    )
    seen, num_processes, refused = done.stdout.splitlines()
    assert seen == "['ada'] []" and int(num_processes) <= 3 and refused == "FileNotFoundError"
    assert (own / "written.txt").read_text() == "mine"
    assert (homes / "bob/notes.txt").read_text() == "bob's"


TOUCH = """
import os, sys
for place in sys.argv[1:]:
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT))
        print("written", os.path.getsize(place))
    except OSError as error:
        print(type(error).__name__)
"""


def test_nothing_that_others_run_can_be_changed(folder, monkeypatch):
    """The kit, the settings of every server, the environment, the account's home; /tmp is the server's own."""
    (folder / "key").write_text("secret")
    monkeypatch.setattr(wall, "PRIVATE", (*wall.PRIVATE, folder))
    settings = ROOT / "course/hub/student/jupyter_server_config.json"
    places = [ROOT / "memkit/units.py", settings, Path(sys.prefix, "pyvenv.cfg"), folder / "key"]
    places += [settings.with_suffix(".py"), "/tmp/mine"]
    command = walled(
        [sys.executable, "-c", TOUCH, *map(str, places)], [ROOT / "course"], [settings.parent], []
    )
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    refused, own = ["OSError"], ["written 0"]
    assert done.stdout.splitlines() == refused * 3 + own + refused + own
    assert (folder / "key").read_text() == "secret" and not Path("/tmp/mine").exists()


def sleepers() -> list[psutil.Process]:
    return [
        p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "1000.25"]
    ]


def started(folder: Path) -> subprocess.Popen:
    command = walled([sys.executable, "-c", SERVER], [folder / "solutions"], [], [])
    server = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=ignore_requests_to_end,  # noqa: PLW1509 - as the hub's spawner does
    )
    assert server.stdout.readline() == "up\n" and len(sleepers()) == 1
    return server


def gone(seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while sleepers() and time.monotonic() < end:
        time.sleep(0.05)
    return not sleepers()


@pytest.mark.serial
def test_it_ends_in_its_own_time_and_with_it_what_it_has_started(folder):
    server = started(folder)
    os.killpg(server.pid, signal.SIGINT)
    assert server.communicate(timeout=60)[0] == "ended in its own time\n"
    assert server.returncode == 0 and gone()


@pytest.mark.serial
def test_it_can_be_killed_and_outlives_its_parent(folder):
    server = started(folder)
    os.killpg(server.pid, signal.SIGTERM)  # which this program leaves alone
    time.sleep(0.5)
    assert server.poll() is None
    os.killpg(server.pid, signal.SIGKILL)
    assert server.wait(timeout=60) == -signal.SIGKILL and gone()
