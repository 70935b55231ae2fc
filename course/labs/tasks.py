"""A task, a lab, and what an answer is worth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from numbers import Real

from book.exercises import Exercise, FunctionExercise, JudgedExercise, agree
from book.exercises.tables import rows_of
from course.labs.draws import Numbers, draw

UNKNOWN = (
    "I cannot tell",
    "Your code raised",
    "is not a number",
    "the answer is a ",
    "has the wrong sign",
    "asks to do without it",
    "returned None. If it prints",
)
"""Parts of what a check says when it knows no mistake, or did not look further."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task: the exercise behind it with a student's numbers, and the cells around it.

    ``answer`` is the name that the student's cell binds; ``opening`` are the lines of it that stand there (the name
    with ``...``, if none are given). A mistake that the judge knows is worth half the points,
    unless its words are among ``worthless`` (what the stub says already). A judge of its own tells of nonsense too:
    of its words only those in ``near`` are worth half. ``shown`` are the checks that a student sees.
    """

    exercise_id: str
    title: str
    answer: str
    points: int
    minutes: int
    question: str
    solution: str
    exercise: Callable[[Mapping], Exercise]
    opening: str = ""
    shown: str = ""
    worthless: tuple[str, ...] = ()
    near: tuple[str, ...] = ()

    def __post_init__(self):
        if not self.opening:
            object.__setattr__(self, "opening", f"{self.answer} = ...")
        attempted = f'assert {self.answer} is not ..., "not attempted yet"'
        object.__setattr__(self, "shown", self.shown.strip() or attempted)

    @property
    def grade_id(self) -> str:
        return f"task-{self.exercise_id.replace('.', '-')}"

    def mark(self, answer: object, numbers: Mapping) -> "Mark":
        """Points for ``answer`` of the student who has these ``numbers``, and the words that go with them."""
        exercise = self.exercise(numbers)
        feedback = exercise.check(answer)
        if feedback.status == "right":
            return Mark(points=self.points, of=self.points, text=f"Right. {feedback.text}")
        if feedback.status != "not yet":
            return Mark(points=0, of=self.points, text="Not attempted.")
        is_known = self._knows(exercise, feedback.text) and not is_given(answer, numbers)
        return Mark(points=self.points / 2 if is_known else 0, of=self.points, text=feedback.text)

    def _knows(self, exercise: Exercise, words: str) -> bool:
        if any(part in words for part in (*self.worthless, *UNKNOWN)):
            return False
        return not isinstance(exercise, JudgedExercise) or any(part in words for part in self.near)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What an answer is worth, and why."""

    points: float
    of: int
    text: str

    def __str__(self) -> str:
        return f"{self.points:g} of {self.of} points. {self.text}"


@dataclass(frozen=True, kw_only=True)
class Prose:
    """The one question of a lab that a person reads, with what a good answer says."""

    question: str
    points: int
    rubric: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Lab:
    """One lab. ``imports`` are the lines of its setup cell; ``choices`` are what numbers are drawn from.

    Whatever is drawn, two mistakes lead to two answers, and none to one that is accepted: a test draws everything.
    """

    name: str
    title: str
    chapter: int
    goals: tuple[str, ...]
    imports: str
    choices: Mapping[str, Sequence]
    tasks: tuple[Task, ...]
    prose: Prose

    def numbers(self, student: str) -> Numbers:
        """The numbers of one student."""
        return draw(self.name, student, self.choices)

    @property
    def minutes(self) -> int:
        return sum(task.minutes for task in self.tasks) + 10


def needs_three_digits(number: float) -> bool:
    """Whether two digits miss the number by more than a check tolerates, half a percent.

    >>> needs_three_digits(1_447_000_000), needs_three_digits(1_403_000_000)
    (True, False)
    """
    return abs(float(f"{number:.1e}") - number) > 0.006 * number


def is_given(answer: object, numbers: Mapping) -> bool:
    """Whether an answer only repeats a number of the question."""
    is_number = isinstance(answer, Real) and not isinstance(answer, bool)
    return is_number and any(
        agree(answer, value) for value in numbers.values() if isinstance(value, Real)
    )


def with_part(exercise: FunctionExercise, part: str, words: str) -> FunctionExercise:
    """The exercise with one more addend, an expression in its arguments; leaving it out is a mistake of its own."""
    whole = exercise.given(without=exercise.right)
    right = f"without({', '.join(signature(exercise.right).parameters)})"
    rows = (f"({wrong}) + ({part}) :: {sentence}" for wrong, sentence in rows_of(exercise.table))
    table = "\n".join((f"{right} :: {words}", *rows))
    return replace(whole, right=whole.answer_of(f"{right} + ({part})"), table=table)
