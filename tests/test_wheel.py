"""The package as it is installed: from a wheel, away from the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PROGRAM = """
import doctest, memkit
assert "site" in memkit.__file__, memkit.__file__
failed = tried = 0
for name in memkit.__all__:
    thing = getattr(memkit, name)
    if callable(thing):
        for test in doctest.DocTestFinder(recurse=False).find(thing, name):
            flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
            result = doctest.DocTestRunner(optionflags=flags).run(test)
            failed, tried = failed + result.failed, tried + result.attempted
from memkit.recomputation import points
assert points(memkit.models.GPT2_LARGE, 8, 1024), "traced peaks are package data"
print(tried, "examples,", failed, "failed")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The wheel's files in a folder of their own."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE-CODE"):
        (source / name).symlink_to(ROOT / name)
    for name in ("memkit", "book", "course"):
        _copied(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-q", "-w", str(folder)]
    done = subprocess.run(command, cwd=source, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def _copied(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(source)).write_bytes(path.read_bytes())


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=installed.parent, env=environment, check=False, capture_output=True, text=True
    )


def test_every_example_of_the_front_door_runs_from_the_wheel(installed):
    done = run(installed, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    count = done.stdout.splitlines()[-1]
    assert int(count.split()[0]) > 50 and count.endswith(" 0 failed"), done.stdout


def test_the_wheel_holds_the_package_alone(installed):
    assert {path.name.partition("-")[0] for path in installed.iterdir()} == {"memkit"}


def test_the_command_line_runs_from_the_wheel(installed):
    done = run(installed, "-m", "memkit", "snapshot", "nowhere.pickle")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "memkit: 'nowhere.pickle' is no file"
    assert "memkit = memkit.__main__:main" in next(installed.glob("*/entry_points.txt")).read_text()
