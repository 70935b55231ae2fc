"""A class that hands in: notebooks filled in from a release, and what nbgrader's gradebook says of them."""

import html
import os
import re
import sqlite3
from pathlib import Path

import nbformat
import pytest

from course.labs import load_lab
from course.labs.__main__ import nbgrader
from course.labs.sandbox import require_sandbox
from course.labs.sources import notebook_of


def no_sandbox() -> str:
    """Why no student's program can be run here; empty where one can, or where it has to."""
    if (
        "MEMKIT_REQUIRE_SANDBOX" in os.environ
    ):  # continuous integration: there a skipped test is a failed one
        return ""
    try:
        require_sandbox()
    except RuntimeError as error:
        return str(error)
    return ""


needs_sandbox = pytest.mark.skipif(bool(no_sandbox()), reason=no_sandbox())
SCRIPT = "<script>document.title = 'hers'</script>"
MARKERS = re.compile(r"^ *### (BEGIN|END) SOLUTION\n?", re.MULTILINE)


def hand_in(
    folder: Path, lab: str, student: str, cells: dict, first: str = "", *, copied_from: str = ""
) -> None:
    """A submission: ``cells`` by the answer's name, the rest as released; ``first`` is put in the very first cell.

    ``copied_from`` is a student whose numbers stand in the cells, written out.
    """
    notebook = nbformat.read(folder / "release" / lab / f"{lab}.ipynb", as_version=4)
    by_id = {cell.id: cell for cell in notebook.cells}
    by_id["student"].source = f"STUDENT = {(copied_from or student)!r}\n{first}"
    theirs = f"mine = {dict(load_lab(lab).numbers(copied_from))!r}\n" if copied_from else ""
    for task in load_lab(lab).tasks:
        if task.answer in cells:
            by_id[task.grade_id].source = theirs + cells[task.answer]
    by_id["prose"].source += f"\nSome words. {SCRIPT}" if cells else ""
    place = folder / "submitted" / student / lab
    place.mkdir(parents=True)
    nbformat.write(notebook, place / f"{lab}.ipynb")
    draws = folder / "release" / lab / "lab_numbers.py"
    (place / draws.name).write_text(draws.read_text(encoding="utf-8"), encoding="utf-8")


def hand_in_by_exchange(folder: Path, lab: str, students: tuple[str, ...]) -> Path:
    """nbgrader's own way for submissions that stand in ``submitted``: out to each student, back to the teacher.

    Returns the folder of students' homes; each fetched the lab, and what she handed in stands in it.
    """
    homes = folder.parent / "homes"
    exchange(folder, "release_assignment", lab, home=folder)
    for student in students:
        home, written = homes / student, folder / "submitted" / student / lab
        home.mkdir(parents=True)
        exchange(folder, "fetch_assignment", lab, home=home)
        written.replace(home / "written")
        for path in (home / "written").iterdir():
            path.replace(home / lab / path.name)
        exchange(folder, "submit", lab, f"--student={student}", home=home)
    exchange(folder, "collect", lab, home=folder)
    return homes


def exchange(folder: Path, *arguments: str, home: Path) -> str:
    """One of the commands that teacher and students type, each with a cache of her own."""
    (folder.parent / "exchange").mkdir(exist_ok=True)
    places = (f"--Exchange.root={folder.parent / 'exchange'}", f"--Exchange.cache={home / 'cache'}")
    return nbgrader(home, *arguments, "--course=memkit", *places)


def solutions(lab: str) -> dict[str, str]:
    """The cells of a student who solves every task, as the source notebook has them."""
    by_id = {cell.id: cell.source for cell in notebook_of(load_lab(lab)).cells}
    return {task.answer: MARKERS.sub("", by_id[task.grade_id]) for task in load_lab(lab).tasks}


def auto_scores(folder: Path) -> dict[tuple[str, str, str], float | None]:
    """(student, lab, grade id) → the autograder's points, from nbgrader's own file."""
    rows = sqlite3.connect(folder / "gradebook.db").execute(
        """SELECT submitted_assignment.student_id, assignment.name, base_cell.name, grade.auto_score
        FROM grade JOIN base_cell ON grade.cell_id = base_cell.id
        JOIN submitted_notebook ON grade.notebook_id = submitted_notebook.id
        JOIN submitted_assignment ON submitted_notebook.assignment_id = submitted_assignment.id
        JOIN assignment ON submitted_assignment.assignment_id = assignment.id"""
    )
    return {(student, lab, cell): score for student, lab, cell, score in rows}


def feedback(folder: Path, student: str, lab: str) -> str:
    """The words of the page that a student gets."""
    page = (folder / "feedback" / student / lab / f"{lab}.html").read_text(encoding="utf-8")
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))
