"""What a student may hand in beside a notebook: links, pipes and what never ends, and what becomes of it."""

import logging
import os
import re
import subprocess
from pathlib import Path

import nbformat
import pytest
from handing_in import needs_sandbox
from lab_server import ROOT
from nbformat.v4 import new_code_cell, new_notebook

from course.labs import autograding
from course.labs.autograding import LinksStayLinks, RunForStudent, set_aside


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A teacher's folder in which ada has handed in, and a file that no student may read."""
    monkeypatch.chdir(tmp_path)
    Path("submitted/ada/lab2").mkdir(parents=True)
    Path("submitted/ada/lab2/lab2.ipynb").write_text("hers")
    Path("source/lab2").mkdir(parents=True)
    Path("source/lab2/lab2.ipynb").write_text("solutions")
    return tmp_path


def left(folder: str = "submitted") -> set[str]:
    return {str(path) for path in Path(folder).rglob("*") if not path.is_dir() or path.is_symlink()}


def test_plain_files_stay(course):
    set_aside("*", "*", ["submitted/ada/lab2/lab2.ipynb"])
    assert left() == {"submitted/ada/lab2/lab2.ipynb"} and not Path("set_aside").exists()


@pytest.mark.parametrize("place", ["lab2.ipynb", "deep/peek.txt"])
@pytest.mark.parametrize("kind", ["link", "pipe", "large"])
def test_what_is_no_plain_file_is_set_aside_unread(course, capsys, place, kind):
    path = Path("submitted/ada/lab2", place)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if kind == "link":
        path.symlink_to(course / "source/lab2/lab2.ipynb")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, autograding.MOST_BYTES + 1)
    set_aside("*", "*", [str(course / "submitted/ada/lab2/lab2.ipynb")])
    assert str(path) not in left() and left("set_aside") == {f"set_aside/{path}"}
    assert place in capsys.readouterr().out
    assert Path("source/lab2/lab2.ipynb").read_text() == "solutions"


@pytest.mark.parametrize("place", ["submitted/eve", "submitted/eve/lab2"])
def test_a_folder_that_is_a_link_is_set_aside_and_what_it_points_to_stays(course, place):
    Path(place).parent.mkdir(exist_ok=True)
    Path(place).symlink_to(course / ("submitted/ada" if place.endswith("eve") else "source/lab2"))
    set_aside("*", "*", ["submitted/eve/lab2/lab2.ipynb"])
    assert not Path(place).exists() and Path("set_aside", place).is_symlink()
    assert left() == {"submitted/ada/lab2/lab2.ipynb"}
    assert Path("source/lab2/lab2.ipynb").read_text() == "solutions"


def test_collecting_follows_no_link_and_goes_on_after_a_pipe(course, caplog):
    Path("submitted/ada/lab2/peek.txt").symlink_to(course / "source/lab2/lab2.ipynb")
    os.mkfifo("submitted/ada/lab2/a_pipe")
    with caplog.at_level(logging.ERROR):
        LinksStayLinks(log=logging.getLogger()).do_copy("submitted/ada/lab2", "collected")
    assert Path("collected/peek.txt").is_symlink() and "a_pipe" in caplog.text
    assert Path("collected/lab2.ipynb").read_text() == "hers"


@needs_sandbox
@pytest.mark.parametrize("cell", ["while True:\n    print('x' * 10**6)", "while True: pass"])
def test_a_notebook_that_shows_without_end_or_never_ends_is_ended(course, monkeypatch, cell):
    monkeypatch.setattr(autograding, "SECONDS_FOR_CELLS", 300 if "print" in cell else 8)
    notebook = new_notebook(cells=[new_code_cell(cell), new_code_cell("1")])
    resources = {
        "nbgrader": {"student": "ada"},
        "metadata": {"path": str(course / "submitted/ada/lab2")},
    }
    step = RunForStudent(timeout=200, startup_timeout=300, iopub_timeout=300)
    nb, _ = step.preprocess(nbformat.from_dict(notebook), resources)
    kept = len(str(nb.cells[0].outputs))
    assert (step.num_shown > autograding.MOST_BYTES) == ("print" in cell)
    assert kept <= autograding.MOST_BYTES and not nb.cells[1].outputs


MONDAY = (ROOT / "course/MONDAY.md").read_text(encoding="utf-8")


def test_monday_s_lines_collect_and_give_back_and_follow_no_link(tmp_path):
    """The two loops as they stand, in bash: ada hands in, and eve puts links where her lab and her page would be."""
    collects, gives_back = re.findall("^for [a-z]+ in .+$", MONDAY, re.MULTILINE)
    for folder in ("source/lab1", "feedback/ada/lab1", "feedback/eve/lab1", "feedback/gone/lab1"):
        (tmp_path / "build/labs" / folder).mkdir(parents=True)
        (tmp_path / "build/labs" / folder / "lab1.html").write_text(f"of {folder}")
    solutions, homes = tmp_path / "build/labs/source", tmp_path / ".hub/homes"
    (homes / "ada/labs/lab1").mkdir(parents=True)
    (homes / "ada/labs/lab1/lab1.ipynb").write_text("hers")
    (homes / "eve").mkdir()
    (homes / "eve/labs").symlink_to(solutions)
    (homes / "eve/lab1_feedback.html").symlink_to(solutions / "lab1/lab1.html")
    subprocess.run(["bash", "-c", collects], cwd=tmp_path, check=True)
    submitted = tmp_path / "build/labs/submitted"
    assert [path.name for path in submitted.rglob("*.*")] == ["lab1.ipynb"]
    subprocess.run(["bash", "-c", gives_back], cwd=tmp_path / "build/labs", check=True)
    for name in ("ada", "eve"):
        page = homes / name / "lab1_feedback.html"
        assert page.read_text() == f"of feedback/{name}/lab1" and not page.is_symlink()
    assert (solutions / "lab1/lab1.html").read_text() == "of source/lab1"


def test_monday_keeps_the_class_s_list_where_the_labs_are():
    """No student's server sees ``build`` (``tests/hub/test_hub.py``), and ``class.csv`` alone is said inside of it."""
    assert set(re.findall(r"[\w./]*class\.csv", MONDAY)) == {"class.csv", "build/labs/class.csv"}
    assert "cd build/labs\n" in MONDAY.partition("--RosterExport.roster=class.csv")[0]
