"""Every solution passes its check, every wrong answer gets its diagnosis, an unsolved chapter is green."""

import contextlib
import io
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from cells import CHAPTERS, after_setup, cells_of, home_of, notebooks_of
from wrong_answers.chapter_09 import ALSO_RIGHT, RIGHT

from book import check
from book.exercises import Exercise, JudgedExercise, NumberExercise, exercises_of
from book.exercises.tables import rows_of

KINDS = (
    "quick check",
    "estimate by hand",
    "implement",
    "debug",
    "measure and explain",
    "design under a constraint",
    "think",
    "stretch",
)
HEADER = re.compile(
    r"^\*\*Exercise (\d+\.(?:\d+|[a-z])) · (.+?)\*\* · difficulty (●+○*) · (\d+) min · (.+)$",
    re.MULTILINE,
)
FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)
PARTS = ("", "-stub", "-check", "-hints", "-solution")


def source_of(cell: dict) -> str:
    return "".join(cell["source"])


class Chapter:
    """The cells by id of a chapter's own notebook and of its exercises', and the names that an exercise begins with.

    Those are the names that cells tagged ``setup`` leave behind, and in a notebook of exercises what every cell leaves
    that is no exercise.
    """

    def __init__(self, number: int):
        self.number = f"{number:02}"
        paths = [path for path in notebooks_of(self.number) if path.parent.name != "further"]
        self.cells = {cell["id"]: cell for path in paths for cell in cells_of(path)}

    def names(self, cell_id: str) -> dict:
        path = home_of(self.number, cell_id)
        names = dict(after_setup(path))
        if path.parent.name == "exercises":
            for cell in cells_of(path):
                if cell["cell_type"] == "code" and not cell["id"].startswith("ex-"):
                    self.run(source_of(cell), names)
        return names

    def run(self, source: str, names: dict) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, f"chapter {self.number}", "exec"), names)

    def feedback(self, exercise_id: str, stub: str | None = None):
        """What the check cell shows after ``stub`` has run in place of the stub cell."""
        cell_id = cell_id_of(exercise_id)
        names = self.names(cell_id)
        self.run(source_of(self.cells[f"{cell_id}-stub"]) if stub is None else stub, names)
        return eval(source_of(self.cells[f"{cell_id}-check"]), names)

    def solution(self, exercise_id: str) -> str:
        return "\n".join(
            FENCE.findall(source_of(self.cells[f"{cell_id_of(exercise_id)}-solution"]))
        )


def cell_id_of(exercise_id: str) -> str:
    return "ex-" + exercise_id.replace(".", "-")


def cell_problems(chapter: Chapter, exercise: Exercise) -> list[str]:
    """Sentences about the five cells of one exercise; a lesson's own has its hints in the solution's cell."""
    prefix = cell_id_of(exercise.id)
    ids = [prefix + part for part in PARTS]
    order = [cell_id for cell_id in chapter.cells if cell_id in ids]
    if order not in (ids, [cell_id for cell_id in ids if not cell_id.endswith("-hints")]):
        return [f"{exercise.id} has the cells {', '.join(order)}; wanted {', '.join(ids)}"]
    text, stub, _, *rest = (source_of(chapter.cells[cell_id]) for cell_id in order)
    hints, start, end = "".join(rest).partition("<details><summary>Solution</summary>")
    solution = start + end
    problems = []
    header = HEADER.search(text)
    if header is None:
        problems.append(f"{prefix} has no header line")
    else:
        number, _, difficulty, _, kind = header.groups()
        if number != exercise.id:
            problems.append(f"{prefix} is headed {number}; the record says {exercise.id}")
        if len(difficulty) != 5:
            problems.append(f"{prefix} has difficulty {difficulty}; five marks are wanted")
        if kind.strip().removesuffix(", optional") not in KINDS:
            problems.append(f"{prefix} is of type {kind}; known: {', '.join(KINDS)}")
    if "..." not in stub and "NotImplementedError" not in stub:
        problems.append(f"{prefix}-stub leaves nothing open")
    if hints.count("<details>") != 2 or hints.count("</details>") != 2:
        problems.append(f"{prefix}-hints has {hints.count('<details>')} fold-outs; two are wanted")
    if solution.count("<details>") != 1 or not FENCE.search(solution.partition("<details>")[2]):
        problems.append(f"{prefix}-solution has no code inside a fold-out")
    return problems


def mistake_problems(exercise: Exercise) -> list[str]:
    """Sentences about wrong answers that do not get their own diagnosis."""
    mistakes = mistakes_of(exercise)
    problems = [] if mistakes else [f"{exercise.id} lists no wrong answer"]
    for answer, diagnosis in mistakes:
        feedback = exercise.check(answer)
        is_told = (
            diagnosis in feedback.text
            if isinstance(exercise, JudgedExercise)
            else diagnosis == feedback.text
        )
        if feedback.status != "not yet" or not diagnosis or not is_told:
            problems.append(f"{answer!r} got: {feedback!r}; wanted: {diagnosis}")
    return problems


def mistakes_of(exercise: Exercise) -> tuple[tuple[object, str], ...]:
    """The wrong answers of the record, and of a judged exercise those that its chapter's file lists."""
    chapter = int(exercise.id.partition(".")[0])
    name = f"wrong_answers.chapter_{chapter:02d}"
    listed = (
        import_module(name).WRONG
        if (Path(__file__).parents[1] / f"{name.replace('.', '/')}.py").exists()
        else {}
    )
    return (*exercise.mistakes, *listed.get(exercise.id, ()))


def solution_problems(chapter: Chapter, exercise: Exercise) -> list[str]:
    """Feedback on the solution, and on the stub nobody filled in, that is not what it should be."""
    unsolved = chapter.feedback(exercise.id)
    solved = chapter.feedback(exercise.id, chapter.solution(exercise.id))
    return [
        f"{feedback!r}; wanted: {status}"
        for feedback, status in ((unsolved, "not attempted yet"), (solved, "right"))
        if feedback.status != status
    ]


NUMBERED = sorted(int(path.name[:2]) for path in CHAPTERS.glob("[0-9][0-9]_*.ipynb"))
ALL = [(number, exercise_id) for number in NUMBERED for exercise_id in exercises_of(number)]


@cache
def chapter_of(number: int) -> Chapter:
    """The chapter, its setup cells run once per process."""
    return Chapter(number)


@pytest.mark.parametrize("number, exercise_id", ALL)
def test_the_cells_of_an_exercise(number, exercise_id):
    assert not cell_problems(chapter_of(number), exercises_of(number)[exercise_id])


def test_several_purchases_are_right():
    game = exercises_of(9)["9.9"]
    assert [game.check(answer).status for answer in (RIGHT, *ALSO_RIGHT)] == ["right"] * 5


def test_a_function_that_changes_its_arguments_changes_no_question():
    """9.7: a list that is emptied or sorted in place stays whole for the right answer, and for the next reader."""

    def empties(plans, room_bytes):
        plans.clear()

    def sorts_in_place(plans, room_bytes):
        plans.sort(key=lambda plan: plan[2])
        return takes_the_first(plans, room_bytes)

    def takes_the_first(plans, room_bytes):
        return next((plan[0] for plan in plans if plan[1] <= room_bytes), None)

    told = [check("9.7", answer) for answer in (empties, sorts_in_place, takes_the_first)]
    assert [feedback.status for feedback in told] == ["not yet", "right", "not yet"]
    assert "the first of the list" in told[-1].text


@pytest.mark.parametrize("number, exercise_id", ALL)
def test_a_listed_wrong_answer_gets_its_diagnosis(number, exercise_id):
    assert not mistake_problems(exercises_of(number)[exercise_id])


@pytest.mark.parametrize("number, exercise_id", ALL)
def test_the_solution_passes_and_the_stub_is_not_attempted(number, exercise_id):
    assert not solution_problems(chapter_of(number), exercises_of(number)[exercise_id])


@pytest.mark.parametrize("number", NUMBERED)
def test_notebook_and_records_list_the_same_exercises(number):
    """In a notebook they stand in the order of the records."""
    listed, found = [cell_id_of(exercise_id) for exercise_id in exercises_of(number)], []
    for path in notebooks_of(f"{number:02}"):
        ids = [
            cell["id"]
            for cell in cells_of(path)
            if re.fullmatch(r"ex-\d+-(?:\d+|[a-z])", cell["id"])
        ]
        assert ids == [cell_id for cell_id in listed if cell_id in ids]
        found += ids
    assert sorted(found) == sorted(listed)


@pytest.mark.parametrize("number", range(7))
def test_a_notebook_of_exercises_says_which_stand_in_the_lesson(number):
    lesson, exercises = (cells_of(path) for path in notebooks_of(f"{number:02}")[:2])
    ids = {cell["id"] for cell in lesson}
    [standing] = [name for name in exercises_of(number) if cell_id_of(name) in ids]
    assert f"where {standing} stands." in "".join(exercises[0]["source"])


FEWEST_ANSWERS = 6


@pytest.mark.parametrize("number, exercise_id", ALL)
def test_an_exercise_knows_the_answers_that_readers_give(number, exercise_id):
    exercise = exercises_of(number)[exercise_id]
    num_known = len(mistakes_of(exercise)) + len(exercise.accepted)
    assert num_known >= FEWEST_ANSWERS, (
        f"exercise {exercise_id} knows {num_known} answers, and {FEWEST_ANSWERS} are wanted: let somebody try it, and "
        "add wrong ones to its table, and other forms of the right one to its also"
    )


@pytest.mark.parametrize("number, exercise_id", ALL)
def test_another_form_of_the_right_answer_passes(number, exercise_id):
    exercise = exercises_of(number)[exercise_id]
    assert not [
        given for answer in exercise.accepted if (given := exercise.check(answer)).status != "right"
    ]


@pytest.mark.parametrize("bad", ["99.1", "one"])
def test_an_unknown_exercise_is_said_and_not_raised(bad):
    assert "no such exercise" in check(bad, 1).text


def test_a_lab_s_letters_reach_answer_table_and_words():
    exercise = NumberExercise(
        id="9.4",
        letters={"P": 7, "billions": "P // 10**9"},
        formula="8 * P",
        because="8 * {P} bytes.",
        table="P ; 2 * P :: There are {P:,}.\n8 * billions * 10**9 if P % 10**9 else None :: {billions}B is a name.",
    )
    larger = exercise.given(P=3 * 10**9 + 8)
    assert [told for _, told in exercise.mistakes] == ["There are 7."] * 2 + ["0B is a name."]
    assert (larger.right, larger.mistakes[2]) == (
        8 * (3 * 10**9 + 8),
        (24 * 10**9, "3B is a name."),
    )
    assert len(exercise.given(P=10**9).mistakes) == 2, (
        "a row without a value is no mistake with these letters"
    )
    assert larger.check(larger.right).text == "8 * 3000000008 bytes."


def test_a_table_without_its_separator_is_refused():
    with pytest.raises(ValueError, match="table begins with '2 [*] P: two'"):
        rows_of("2 * P: two\n3 * P :: three")
