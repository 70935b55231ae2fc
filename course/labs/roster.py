"""The class as Canvas or Moodle lists it: in to nbgrader's gradebook, and the labs' points out to a file they take.

    python -m course.labs.roster class.csv > students.csv        # then: nbgrader db student import students.csv
    nbgrader export --exporter=course.labs.roster.RosterExport --RosterExport.roster=class.csv --to=points.csv

``class.csv`` is what Canvas exports of its gradebook (*Export Entire Gradebook*), or Moodle of a course's
participants or grades: a line a student, with a login or a mail address. The points go into the same lines.

Source: what Canvas reads, in its ``lib/gradebook_importer.rb`` (instructure/canvas-lms at 00b222d): the student's
columns end with *Section*, a row *Points Possible* may follow the header, and an assignment that it does not know
is made anew. Moodle asks for each column what it is (https://docs.moodle.org/en/Grade_import).
"""

import csv
import sys
from collections import Counter
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.plugins import ExportPlugin
from traitlets import Unicode

from course.labs.draws import same_name

LOGINS = "SIS Login ID", "Username", "Email address", "Email"
"""Columns with the name under which a student logs in, the first that is there counts."""
LAST_OF_STUDENT = "Section"
"""Behind it Canvas has assignments. A list without it has no points yet."""
POINTS = "Points Possible"
"""In the first column of the row that says how many points there are."""


class Roster:
    """The lines of a class: the columns that say who somebody is, as they are, by login.

    Raises: ValueError: no column with logins, a student without one, or two with the same.
    """

    def __init__(self, path: Path):
        with open(path, encoding="utf-8-sig", newline="") as file:
            self.header, *rows = [row for row in csv.reader(file) if any(row)] or [[]]
        rows = [[*row, *[""] * (len(self.header) - len(row))] for row in rows]
        named = [name for name in LOGINS if name in self.header]
        if not named:
            raise ValueError(
                f"{path}: its columns are {', '.join(self.header) or 'none'}; one of {', '.join(LOGINS)} is needed"
            )
        self.login = self.header.index(named[0])
        ends = LAST_OF_STUDENT in self.header
        self.width = self.header.index(LAST_OF_STUDENT) + 1 if ends else len(self.header)
        # without a name: Canvas's row of assignments that are posted by hand
        students = [row for row in rows if row[0].strip() and not is_no_student(row[0])]
        nameless = [", ".join(row[:2]) for row in students if not row[self.login].strip()]
        if nameless:
            raise ValueError(f"{path}: no {named[0]} for {'; '.join(nameless)}")
        logins = [same_name(row[self.login]) for row in students]
        twice = [name for name, times in Counter(logins).items() if times > 1]
        if twice:
            raise ValueError(f"{path}: two students with the login {', '.join(twice)}")
        self.rows = dict(zip(logins, students, strict=True))

    def students(self) -> list[tuple[str, str, str, str]]:
        """Login, last name, first name and mail address of everybody, as ``nbgrader db student import`` reads them."""
        found = []
        for login, row in self.rows.items():
            fields = dict(zip(self.header, row, strict=False))
            last, _, first = fields.get("Student", "").partition(", ")
            last, first = fields.get("Last name", last), fields.get("First name", first)
            email = fields.get("Email address", fields.get("Email", ""))
            found.append((login, last, first, email))
        return found

    def with_points(self, gradebook: Gradebook) -> list[list[str]]:
        """The class with a column for each lab that somebody has handed in; blank is who has not.

        Raises: ValueError: answers that a person has yet to read; somebody handed in who is not in the class.
        """
        labs = [lab for lab in gradebook.assignments if lab.num_submissions]
        given = {lab.name: gradebook.assignment_submissions(lab.name) for lab in labs}
        waiting = [
            f"{lab} of {submission.student_id}"
            for lab, submissions in given.items()
            for submission in submissions
            if submission.needs_manual_grade
        ]
        if waiting:
            raise ValueError(f"a person has yet to read (Formgrader): {', '.join(waiting)}")
        handed_in = {
            submission.student_id for submissions in given.values() for submission in submissions
        }
        strangers = sorted(name for name in handed_in if same_name(name) not in self.rows)
        if strangers:
            raise ValueError(f"handed in and not in the class: {', '.join(strangers)}")
        table = [[*self.header[: self.width], *(self.titled(lab.name) for lab in labs)]]
        if LAST_OF_STUDENT in self.header:
            most = [f"{lab.max_score:g}" for lab in labs]
            table.append([f"    {POINTS}", *[""] * (self.width - 1), *most])
        names = {same_name(name): name for name in handed_in}
        for login, row in self.rows.items():
            points = [score_of(gradebook, lab.name, names.get(login, login)) for lab in labs]
            table.append([*row[: self.width], *points])
        return table

    def titled(self, lab: str) -> str:
        """The lab's column as the list has it, such as ``lab1 (4711)``; else its name, under which it is made anew."""
        known = (name for name in self.header if name.partition(" (")[0] == lab)
        return next(known, lab)


def is_no_student(name: str) -> bool:
    """Whether the first column has what Canvas adds to a class: the most points, and its *Test Student*."""
    return POINTS in name or name == "Student, Test"


def score_of(gradebook: Gradebook, lab: str, student: str) -> str:
    """Points of a lab less those for being late; blank where nothing was handed in."""
    try:
        submission = gradebook.find_submission(lab, student)
    except MissingEntry:
        return ""
    return f"{max(0, submission.score - (submission.late_submission_penalty or 0)):g}"


class RosterExport(ExportPlugin):
    """``nbgrader export`` into the lines of a class."""

    roster = Unicode(help="what Canvas or Moodle exported: a line a student").tag(config=True)

    def export(self, gradebook: Gradebook) -> None:
        """Write the file; what cannot be is said in one line."""
        target = self.to or "points.csv"
        try:
            if not self.roster:
                raise ValueError("--RosterExport.roster=class.csv is missing")
            roster = Roster(Path(self.roster))
            table = roster.with_points(gradebook)
        except (ValueError, OSError) as error:
            earlier = f"; {target} is an earlier export's" if Path(target).exists() else ""
            sys.exit(f"nbgrader export: {error}{earlier}")
        with open(target, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(table)
        self.log.info("Points of %d students in %s", len(roster.rows), target)


if __name__ == "__main__":
    try:
        listed = Roster(Path(sys.argv[1])).students()
    except (IndexError, ValueError, OSError) as error:
        sys.exit(f"python -m course.labs.roster class.csv: {error}")
    writer = csv.writer(sys.stdout)
    writer.writerows([("id", "last_name", "first_name", "email"), *listed])
