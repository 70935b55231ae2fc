"""Who handed in the same code: by notebooks that were written so."""

import re

import nbformat
import pytest
from handing_in import solutions

from course.labs import load_lab
from course.labs.alike import alike, main, shape_of
from course.labs.sources import notebook_of

TASKS = {task.answer: task for task in load_lab("lab2").tasks}


def write(folder, place: str, cells: dict[str, str]) -> None:
    """Lab 2 with these cells by the answer's name, the others blank."""
    notebook = notebook_of(load_lab("lab2"))
    by_id = {cell.id: cell for cell in notebook.cells}
    for answer, task in TASKS.items():
        by_id[task.grade_id].source = cells.get(answer, "# your lines here")
    path = folder / place / "lab2" / "lab2.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)


@pytest.fixture
def course(tmp_path):
    right = solutions("lab2")
    renamed = re.sub(r"\bbits\b", "number", right["upper_bits"]) + "\n# all mine"
    write(tmp_path, "release", {})
    write(tmp_path, "submitted/ada", right)
    write(tmp_path, "submitted/bob", {"upper_bits": renamed, "total": "total = 1024"})
    write(tmp_path, "submitted/cyd", {"upper_bits": "def upper_bits(bits):\n    return bits >> 13"})
    write(tmp_path, "submitted/dan", {"total": "total   =   1024"})
    write(tmp_path, "submitted/eve", {"total": "total = ("})
    return tmp_path


def test_renamed_code_is_the_same_and_a_blank_is_nobody_s(course):
    assert dict(alike(course, "lab2")) == {
        TASKS["total"].title: ("bob", "dan"),
        TASKS["upper_bits"].title: ("ada", "bob"),
    }


def test_other_code_is_other_code():
    assert shape_of("total = 2 * n") != shape_of("total = 3 * n")
    assert shape_of("a = b + c") != shape_of("a = b + b"), "names that differ stay apart"


def test_what_cannot_be_read_is_one_line(course, capsys):
    assert main([str(course), "lab2"]) == 0 and "ada, bob" in capsys.readouterr().out
    for arguments in ([], [str(course), "lab3"], [str(course), "lab99"]):
        assert main(arguments) == 2 and capsys.readouterr().err.count("\n") == 1
