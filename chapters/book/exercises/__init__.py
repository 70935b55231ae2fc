"""Exercises that say which mistake this is.

An exercise is a record: its right answer, and a table of the wrong answers that readers give, each with the words
that help; or a judge that tells them apart. ``check("1.2", answer)`` compares the reader's answer with both. It never
raises: what goes wrong inside the reader's code is part of the feedback, and a stub that nobody filled in is "not
attempted yet".

The records of chapter N are the tuple ``EXERCISES`` in ``book/exercises/chapter_NN.py``. Everything a stub leaves open
is written ``...``, in a value or as what a function returns. A lab takes a record and gives its letters other values.

Reading order:

- ``tables``: a row is an expression in letters and a sentence
- ``slips``: another unit, and addends that are missing, doubled or too many
- ``answers``: what a reader's answer is, and how far off, in words
- ``chapter_00``: what a check does
- ``chapter_01``: where the bytes of a training step go
- ``chapter_02``: what a number of 16, 8 or 4 bits holds
- ``training_loops``: a reader's loop, run and judged
- ``chapter_03``: what mixed precision keeps, and how its loops go wrong
- ``chapter_04``: what recomputation keeps and what it costs
- ``chapter_05``: gradient accumulation, equal to the big batch, and its price
- ``chapter_06``: what eight bits hold, and what they save
- ``chapter_07``: reading memory and running out of it
- ``chapter_08``: the moments of a run around its steps
- ``chapter_09``: the highest moment, states in few bits, steps elsewhere, plans
- ``chapter_10``: what adapters train and keep, and a base in 4 bits
- ``chapter_11``: what a rank keeps, gathers and sends
- ``chapter_12``: who stands on the card beside a UNet, bytes a pixel, tokens of a video
- ``chapter_13``: packed rows, a sequence over several cards, what an engine keeps and its share
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from numbers import Real
from types import FunctionType
from typing import Self

from book.exercises.answers import (
    NotAttempted,
    guarded,
    how_far,
    is_open,
    is_stub_error,
    kind_of,
    listed,
    names_in,
    plain,
    shown,
)
from book.exercises.slips import agree, part_slip, unit_slip
from book.exercises.tables import filled, function_of, rows_of, value_of, values_of
from memkit.units import as_one_of


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """What ``check`` tells: ``right``, ``not yet`` or ``not attempted yet``, and the words that go with it."""

    exercise_id: str
    status: str
    text: str = ""

    def __repr__(self) -> str:
        return f"Exercise {self.exercise_id}: {self.status}" + (
            f". {self.text}" if self.text else ""
        )


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise; the kinds below say how an answer is compared.

    ``table`` has a row for each wrong answer that readers give, with the sentence that says what went wrong in it;
    where several ways lead to the same answer, the sentence names them all. ``because`` is shown with a right
    answer: one sentence on why it is right, or what it is good for. Both are written in ``letters``, which have
    values, or expressions in the letters before them. ``also`` lists further forms of the right answer that readers
    give; a test wants each to pass.
    """

    id: str
    because: str
    letters: Mapping[str, object] = field(default_factory=dict)
    table: str = ""
    also: tuple[object, ...] = ()

    def given(self, **letters: object) -> Self:
        """The same exercise with other values for some letters."""
        return replace(self, letters={**self.letters, **letters})

    @cached_property
    def values(self) -> dict[str, object]:
        """The value of every letter."""
        return values_of(self.letters)

    def answer_of(self, expression: object) -> object:
        """The answer that an expression of the table or of ``also`` stands for."""
        return value_of(expression, self.values)

    @cached_property
    def mistakes(self) -> tuple[tuple[object, str], ...]:
        """Wrong answers with their sentences; a row whose expression is None is none with these letters."""
        rows = (
            (self.answer_of(row), filled(sentence, self.values))
            for row, sentence in rows_of(self.table)
        )
        return tuple((answer, sentence) for answer, sentence in rows if answer is not None)

    @property
    def accepted(self) -> tuple[object, ...]:
        """Further forms of the right answer."""
        return tuple(map(self.answer_of, self.also))

    def diagnose(self, answer: object) -> str | None:
        """What is wrong with ``answer`` in words, or ``None`` if it is right."""
        raise NotImplementedError

    def check(self, answer: object) -> Feedback:
        """Feedback on ``answer``, whatever it is and does."""
        try:
            if is_open(answer):
                raise NotAttempted
            diagnosis = self.diagnose(
                guarded(answer) if isinstance(answer, FunctionType) else answer
            )
        except Exception as error:  # noqa: BLE001 - the reader's code may raise anything
            if is_stub_error(error):
                return Feedback(exercise_id=self.id, status="not attempted yet")
            notes = getattr(error, "__notes__", [])
            diagnosis = ". ".join([f"Your code raised {type(error).__name__}: {error}", *notes])
            if not callable(answer) and "object is not callable" in str(error):
                diagnosis = f"{kind_of(answer)}; the answer is a function."
        if diagnosis is None:
            return Feedback(
                exercise_id=self.id, status="right", text=filled(self.because, self.values)
            )
        return Feedback(exercise_id=self.id, status="not yet", text=diagnosis)


@dataclass(frozen=True, kw_only=True)
class NumberExercise(Exercise):
    """The answer is a number of ``unit``, right within the relative ``tolerance`` (0: exact).

    ``formula`` is the right answer, an expression in the letters. A number that an estimate by hand rounds has a
    tolerance.
    """

    formula: str
    unit: str = "bytes"
    tolerance: float = 0.0

    @property
    def right(self) -> float:
        """The right answer."""
        return self.answer_of(self.formula)

    def diagnose(self, answer: object) -> str | None:
        answer, right = plain(answer), self.right
        if isinstance(answer, bool) or not isinstance(answer, Real):
            counted = self.unit and self.unit.split()[0] not in ("the", "share")
            return (
                f"{kind_of(answer)}; the answer is a number{f' of {self.unit}' if counted else ''}."
            )
        if agree(answer, right, self.tolerance) or any(
            agree(answer, form) for form in self.accepted
        ):
            return None
        for mistaken, sentence in self.mistakes:
            if agree(answer, mistaken, max(self.tolerance, 1e-9)):
                return sentence
        if self.tolerance and agree(answer, float(f"{right:.2g}")):
            return "Right as far as it goes, but rounded: give one digit more."
        slip = unit_slip([answer], [right], self.unit, self.tolerance)
        return slip or f"{how_far(answer, right)} I cannot tell which mistake this is."


@dataclass(frozen=True, kw_only=True)
class ChoiceExercise(Exercise):
    """The answer is one letter of several; a row of the table is another letter and why it is wrong."""

    right: str

    def answer_of(self, letter: str) -> str:
        return letter

    @property
    def accepted(self) -> tuple[str, ...]:
        return (self.right.upper(), f"({self.right})", f" {self.right}. ")

    def diagnose(self, answer: object) -> str | None:
        letter = answer.strip(" ().*\n").lower() if isinstance(answer, str) else answer
        diagnoses = dict(self.mistakes) | {self.right: None}
        if isinstance(letter, str) and letter in diagnoses:
            return diagnoses[letter]
        return f"{answer!r} is not one of {', '.join(sorted(diagnoses))}."


@dataclass(frozen=True, kw_only=True)
class FunctionExercise(Exercise):
    """The answer is a function, right if it returns what ``right`` returns on every tuple of ``probes``.

    A row of the table is a wrong function of the same arguments: the reader made that mistake if both agree on every
    probe. The rows of ``parts`` are the addends of the right result, with their names, and those of ``extras`` what
    readers add wrongly: a function that misses, doubles or adds some of them is told so. ``forbidden`` names what
    the function must not use, and ``shows`` writes arguments and results in a message. Where the right results would
    give the solution away, the exercise ``hides_results``.
    """

    right: Callable
    probes: tuple[tuple, ...]
    unit: str = ""
    tolerance: float = 0.0
    parts: str = ""
    extras: str = ""
    forbidden: tuple[str, ...] = ()
    shows: Callable[[object], str] = repr
    hides_results: bool = False

    def answer_of(self, expression: object) -> object:
        """The function of the letters and the arguments of ``right`` that an expression stands for."""
        return (
            function_of(expression, self.right, self.values)
            if isinstance(expression, str)
            else expression
        )

    def diagnose(self, answer: object) -> str | None:
        if not callable(answer):
            return f"{kind_of(answer)}; the answer is a function."
        if used := [name for name in names_in(answer) if name in self.forbidden]:
            return f"Your function uses {used[0]}, and the exercise asks to do without it."
        given = [listed(self._result(answer, probe)) for probe in self.probes]
        wanted = self._results(self.right)
        if agree(given, wanted, self.tolerance):
            return None
        for mistaken, sentence in self.mistakes:
            if agree(given, self._results(mistaken), max(self.tolerance, 1e-9)):
                return sentence
        numbers = all(isinstance(value, Real) for value in (*given, *wanted))
        if numbers and (slip := self._slip(given, wanted)):
            return slip
        if given.count(None) == len(given):
            name = getattr(answer, "__name__", "your function")
            return f"{name} returned None. If it prints the result: write return in place of print."
        for probe, mine, theirs in zip(self.probes, given, wanted, strict=True):
            if not agree(mine, theirs, self.tolerance):
                call = f"{self._call(answer, probe)} returned {shown(mine, self.shows)}."
                far = how_far(mine, theirs) if numbers and self.shows is repr else ""
                wanted_words = (
                    "That is not right."
                    if self.hides_results
                    else f"Wanted: {shown(theirs, self.shows)}."
                )
                return f"{call} {far or wanted_words} I cannot tell which mistake this is."
        return None

    def _call(self, answer: Callable, probe: tuple) -> str:
        return f"{getattr(answer, '__name__', 'yours')}({', '.join(map(self.shows, probe))})"

    def _result(self, answer: Callable, probe: tuple) -> object:
        """What the answer returns for a probe. An error that it raises says for which one."""
        try:
            return answer(*copy.deepcopy(probe))  # a function may change its arguments
        except Exception as error:
            error.add_note(f"The call was {self._call(answer, probe)}.")
            raise

    def _results(self, function: Callable) -> list:
        return [function(*probe) for probe in self.probes]

    def _slip(self, given: list, wanted: list) -> str | None:
        columns = (
            {name: self._results(self.answer_of(part)) for part, name in rows_of(table)}
            for table in (self.parts, self.extras)
        )
        close = max(self.tolerance, 1e-9)
        return unit_slip(given, wanted, self.unit, self.tolerance) or part_slip(
            given, wanted, *columns, close
        )


@dataclass(frozen=True, kw_only=True)
class JudgedExercise(Exercise):
    """The answer is judged by a function: ``judge(answer)``, and the letters by name, is ``None`` or the diagnosis.

    Which wrong answers readers give, and a part of what ``judge`` says about each, stands in ``tests/wrong_answers``.
    ``right`` is the book's own function, where a lesson goes on with it; ``score`` says how good a right answer is.
    """

    judge: Callable[..., str | None]
    right: object = None
    score: Callable[[object], str] | None = None

    def diagnose(self, answer: object) -> str | None:
        return self.judge(answer, **self.values)

    def check(self, answer: object) -> Feedback:
        feedback = super().check(answer)
        if feedback.status != "right" or self.score is None:
            return feedback
        return replace(feedback, text=f"{self.score(answer)} {feedback.text}")


def check(exercise_id: str, answer: object) -> Feedback:
    """Feedback on the reader's ``answer`` to exercise ``"chapter.number"``.

    >>> from book import check
    >>> check("0.1", ...)
    Exercise 0.1: not attempted yet
    """
    exercises = exercises_beside(exercise_id)
    if exercise_id not in exercises:
        known = ", ".join(exercises) or "none"
        return Feedback(
            exercise_id=exercise_id,
            status="not yet",
            text=f"There is no such exercise; known: {known}.",
        )
    return exercises[exercise_id].check(answer)


def exercises_of(chapter: int) -> dict[str, Exercise]:
    """The exercises of one chapter by id; empty where it has none."""
    try:
        module = import_module(f"{__name__}.chapter_{chapter:02d}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.chapter_{chapter:02d}":
            raise
        return {}
    return {exercise.id: exercise for exercise in module.EXERCISES}


def exercises_beside(exercise_id: object) -> dict[str, Exercise]:
    """All exercises of the chapter that an exercise's id names; none if it names no chapter."""
    chapter = str(exercise_id).partition(".")[0]
    return exercises_of(int(chapter)) if chapter.isdecimal() else {}


def built(exercise_id: str, answer: object) -> object:
    """The reader's function if its check is right; until then the book's own, and a line that says so.

    With it a chapter that builds a function in steps runs to its end, whether they are solved or not.
    """
    exercises = exercises_beside(exercise_id)
    exercise = exercises[as_one_of("exercise_id", exercise_id, exercises)]
    if exercise.check(answer).status == "right":
        return answer
    print(f"{exercise_id}: the book's own function is used until yours is right.")
    return exercise.right
