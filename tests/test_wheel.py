"""The package as it is installed: from a wheel, away from the repository."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import lazy_loader
import pytest
from packaging.requirements import Requirement

from memkit import TrainingSetup, estimate_memory, models
from stepscope.allocator import predicted_snapshot, replay_trace, write_snapshot

ROOT = Path(__file__).parent.parent

PROGRAM = """
import doctest, inspect, memkit, stepscope
assert "site" in memkit.__file__ and "site" in stepscope.__file__, (memkit.__file__, stepscope.__file__)
failed = tried = 0
for name, package in [(name, package) for package in (memkit, stepscope) for name in package.__all__]:
    thing = inspect.unwrap(getattr(package, name))
    if callable(thing):
        for test in doctest.DocTestFinder(recurse=False).find(thing, name):
            flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
            result = doctest.DocTestRunner(optionflags=flags).run(test)
            failed, tried = failed + result.failed, tried + result.attempted
from memkit.recomputation import points
assert points(memkit.TrainingSetup(model=memkit.models.GPT2_LARGE))
print(tried, "examples,", failed, "failed")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The wheel's files in a folder of their own."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    for name in ("memkit", "stepscope", "chapters/book", "course"):
        _copied(ROOT / name, source / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ".",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(folder),
    ]
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
        [sys.executable, *arguments],
        cwd=installed.parent,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )


def run_alone(installed: Path, *arguments: str) -> subprocess.CompletedProcess:
    """The command line where Python has the wheel, lazy_loader and nothing else: ``-S`` leaves site-packages out."""
    source, target = Path(lazy_loader.__file__).parent, installed.parent / "alone" / "lazy_loader"
    if not target.exists():
        _copied(source, target)
        _copied(installed, target.parent)
    return run(target.parent, "-S", "-m", "stepscope", *arguments)


def test_every_example_of_the_front_door_runs_from_the_wheel(installed):
    done = run(installed, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    count = done.stdout.splitlines()[-1]
    assert int(count.split()[0]) > 50 and count.endswith(" 0 failed"), done.stdout


def test_the_wheel_holds_the_package_and_its_metadata_alone(installed):
    assert {path.name.partition("-")[0] for path in installed.iterdir()} == {
        "memkit",
        "memkit_book",
        "stepscope",
    }


def test_the_command_line_runs_from_the_wheel(installed):
    done = run(installed, "-m", "stepscope", "snapshot", "nowhere.pickle")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "stepscope: 'nowhere.pickle' is no file"
    commands = next(installed.glob("*/entry_points.txt")).read_text().splitlines()
    assert {
        f"{name} = stepscope.tool.command_line:command" for name in ("stepscope", "memkit")
    } <= set(commands)


def test_a_ci_job_reads_a_recording_without_the_heavy_packages(installed, tmp_path):
    timeline = estimate_memory(TrainingSetup(model=models.GPT2_SMALL, seq_len=128))
    path = write_snapshot(predicted_snapshot(replay_trace(timeline)), tmp_path / "recording.pickle")
    below, above = (
        run_alone(installed, "snapshot", str(path), "--fail-above", size)
        for size in ("9GiB", "9MiB")
    )
    assert (below.returncode, above.returncode) == (0, 1), below.stderr
    assert above.stderr.splitlines()[-1].endswith(" is above 9.00 MiB")


def test_a_plan_needs_no_torch_and_says_that_it_was_not_traced(installed):
    done = run_alone(
        installed, "fit", "GPT-2 XL", "--card", "T4", "--tokens", "32768", "--seq-len", "1024"
    )
    assert done.returncode == 0, done.stderr
    assert "not traced: no torch here" in " ".join(done.stdout.split())


def test_a_message_is_read_without_torch(installed, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED", encoding="utf-8")
    done = run_alone(installed, "why", str(log), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["row"] == "outside"


def test_a_report_without_torch_says_what_to_install(installed):
    done = run_alone(installed, "report", "my_module.py:build")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith(
        "PyTorch, which is not installed: pip install torch"
    )


def test_the_wheel_wants_six_packages_and_no_notebook(installed):
    metadata = next(installed.glob("*/METADATA")).read_text(encoding="utf-8")
    lines = [
        line.partition(": ")[2]
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist: ")
    ]
    plain = {wanted.name for wanted in map(Requirement, lines) if wanted.marker is None}
    assert plain == {"anywidget", "ipywidgets", "lazy_loader", "numpy", "torch"}
    assert "Name: memkit-book" in metadata.splitlines()
