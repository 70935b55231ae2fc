"""Roster in, points out: the file is read by Canvas's own rules (its gradebook_importer.rb), retold here."""

import csv
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nbgrader")

from nbgrader.api import Gradebook

from course.labs.roster import Roster

ROOT = Path(__file__).parents[2]
CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Root Account,Section,lab1 (4711),Final Score
,,,,,,Manual Posting,
    Points Possible,,,,,,12,(read only)
"Lovelace, Ada",101,s1,ada,uni.example,Spring,,
"Turing, Alan",102,s2,Alan@example.org,uni.example,Spring,,
"Noether, Emmy",103,s3,emmy,uni.example,Spring,,
"Student, Test",104,,f00,uni.example,Spring,,
"""
MOODLE = """\
First name,Last name,ID number,Email address
Ada,Lovelace,1,ada@example.org
Alan,Turing,2,alan@example.org
Emmy,Noether,3,emmy@example.org
"""


def read_by_canvas(text: str) -> dict[str, dict[str, str]]:
    """What Canvas takes from a file: by the student's id the points of each assignment, and what each has at most.

    Raises: ValueError: its *Invalid header row*.
    """
    header, *rows = csv.reader(io.StringIO(text))
    has_heads = len(header) > 3 and "Student" in header[0] and "ID" in header[1]
    columns = 3
    if re.search(r"SIS\s+Login\s+ID", header[2]):
        columns += 1
    elif re.search(r"SIS\s+User\s+ID", header[2]) and re.search(r"SIS\s+Login\s+ID", header[3]):
        has_integration = bool(re.search(r"Integration\s+ID", header[4]))
        columns += 2 + has_integration
        columns += bool(re.search(r"Root\s+Account", header[4 + has_integration]))
    if not has_heads or "Section" not in header[columns - 1]:
        raise ValueError("Invalid header row")
    assignments = header[columns:]
    found = {}
    for row in rows:
        who = "most" if "Points Possible" in row[0] else row[1]
        found[who] = dict(zip(assignments, row[columns:], strict=True))
    return found


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A gradebook: Ada has all points of lab1, Alan some, two days late; Emmy handed in nothing."""
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", here)  # nbgrader calls alembic by its name
    (tmp_path / "nbgrader_config.py").write_text(
        f"load_subconfig({str(ROOT / 'course' / 'nbgrader_config.py')!r})\n", encoding="utf-8"
    )
    (tmp_path / "class.csv").write_text(CANVAS, encoding="utf-8")
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db", "memkit") as gradebook:
        for lab in ("lab1", "lab2"):
            gradebook.add_assignment(lab)
            gradebook.add_notebook("notes", lab)
            gradebook.add_grade_cell("task", "notes", lab, max_score=12, cell_type="code")
        for student, points in (("ada", 12), ("jupyter-alan", 7.5)):
            gradebook.add_student(student)
            gradebook.add_submission("lab1", student)
            grade = gradebook.find_grade("task", "notes", "lab1", student)
            grade.auto_score = points
            grade.needs_manual_grade = False
        notebook = gradebook.find_submission_notebook("notes", "lab1", "jupyter-alan")
        notebook.late_submission_penalty = 1
        gradebook.db.commit()
    return tmp_path


def run(course, *arguments: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'chapters'}"}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=course, env=environment, capture_output=True, text=True, check=False
    )


def export(course, *more: str) -> subprocess.CompletedProcess:
    exporter = "--exporter=course.labs.roster.RosterExport"
    return run(course, "nbgrader", "export", exporter, "--to=points.csv", *more)


def test_canvas_takes_the_points(course):
    done = export(course, "--RosterExport.roster=class.csv")
    assert done.returncode == 0, done.stderr
    taken = read_by_canvas((course / "points.csv").read_text(encoding="utf-8"))
    assert taken == {
        "most": {"lab1 (4711)": "12"},
        "101": {"lab1 (4711)": "12"},
        "102": {"lab1 (4711)": "6.5"},
        "103": {"lab1 (4711)": ""},
    }


def test_moodle_s_list_gets_a_column(course):
    (course / "moodle.csv").write_text(MOODLE, encoding="utf-8")
    assert export(course, "--RosterExport.roster=moodle.csv").returncode == 0
    text = (course / "points.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["Email address"], row["lab1"]) for row in rows] == [
        ("ada@example.org", "12"),
        ("alan@example.org", "6.5"),
        ("emmy@example.org", ""),
    ]


def test_the_class_goes_into_the_gradebook(course):
    listed = run(course, "course.labs.roster", "class.csv")
    (course / "students.csv").write_text(listed.stdout, encoding="utf-8")
    done = run(course, "nbgrader", "db", "student", "import", "students.csv")
    assert done.returncode == 0, done.stderr
    with Gradebook(f"sqlite:///{course}/gradebook.db", "memkit") as gradebook:
        found = {s.id: (s.last_name, s.first_name) for s in gradebook.students}
    assert found["emmy"] == ("Noether", "Emmy") and found["alan"] == ("Turing", "Alan")
    assert "f00" not in found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Student,ID\nAda,1\n", "its columns are Student, ID; one of SIS Login ID, Username"),
        ("", "its columns are none"),
        ("Student,ID,SIS Login ID,Section\nA,1\n", "no SIS Login ID for A, 1"),
        ("Student,ID,SIS Login ID,Section\nA,1,ada,S\nB,2,Ada@x.org,S\n", "the login ada"),
        ("Student,ID,SIS Login ID,Section\nA,1,,S\n", "no SIS Login ID for A, 1"),
        (CANVAS.replace("ada,uni", "eva,uni"), "handed in and not in the class: ada"),
    ],
)
def test_a_list_that_cannot_be_used_is_one_sentence(course, text, words):
    (course / "class.csv").write_text(text, encoding="utf-8")
    done = export(course, "--RosterExport.roster=class.csv")
    assert done.returncode == 1 and words in done.stderr.splitlines()[-1]
    assert not (course / "points.csv").exists()


def test_points_of_an_earlier_export_are_named_as_such(course):
    (course / "class.csv").write_text("", encoding="utf-8")
    (course / "points.csv").write_text("of last week", encoding="utf-8")
    done = export(course, "--RosterExport.roster=class.csv")
    assert done.stderr.rstrip().endswith("; points.csv is an earlier export's")
    assert (course / "points.csv").read_text(encoding="utf-8") == "of last week"
    (course / "points.csv").unlink()


def test_answers_that_nobody_has_read_are_named(course):
    with Gradebook(f"sqlite:///{course}/gradebook.db", "memkit") as gradebook:
        gradebook.find_grade("task", "notes", "lab1", "ada").needs_manual_grade = True
        gradebook.db.commit()
        with pytest.raises(ValueError, match="a person has yet to read .*: lab1 of ada"):
            Roster(course / "class.csv").with_points(gradebook)
