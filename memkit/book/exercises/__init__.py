"""Exercises that say which mistake this is.

An exercise is a record: its right answer and the wrong answers that readers give, each with the words that
help. ``check("1.2", answer)`` compares the reader's answer with both. It never raises: what goes wrong inside
the reader's code is part of the feedback, and a stub that nobody filled in is "not attempted yet".

The records of chapter N are the tuple ``EXERCISES`` in ``memkit/book/exercises/chapter_NN.py``. Everything a stub
leaves open is written ``...``, in a value or as what a function returns.

Reading order:

- ``chapter_00``: what a check does
- ``chapter_01``: where the bytes of a training step go
- ``chapter_02``: what a number of 16, 8 or 4 bits holds
- ``chapter_04``: what recomputation keeps and what it costs
- ``chapter_07``: reading memory and running out of it
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from numbers import Real
from types import FunctionType

STATUSES = ("right", "not yet", "not attempted yet")


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """What ``check`` tells the reader: a status of ``STATUSES`` and the words that go with it."""

    exercise_id: str
    status: str
    text: str = ""

    def __repr__(self) -> str:
        return f"Exercise {self.exercise_id}: {self.status}" + (f". {self.text}" if self.text else "")


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A wrong answer that readers give, and the sentence that says what went wrong in it."""

    answer: object
    diagnosis: str


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise; the kinds below say how an answer is compared.

    ``because`` is shown with a right answer: one sentence on why it is right, or what it is good for.
    """

    id: str
    title: str
    mistakes: tuple[Mistake, ...]
    because: str

    def diagnose(self, answer: object) -> str | None:
        """What is wrong with ``answer`` in words, or ``None`` if it is right."""
        raise NotImplementedError

    def check(self, answer: object) -> Feedback:
        """Feedback on ``answer``, whatever it is and does."""
        try:
            if _is_open(answer):
                raise _NotAttempted
            diagnosis = self.diagnose(_guarded(answer) if isinstance(answer, FunctionType) else answer)
        except Exception as error:  # noqa: BLE001 - the reader's code may raise anything
            if _is_stub_error(error):
                return Feedback(exercise_id=self.id, status="not attempted yet")
            diagnosis = f"Your code raised {type(error).__name__}: {error}"
        if diagnosis is None:
            return Feedback(exercise_id=self.id, status="right", text=self.because)
        return Feedback(exercise_id=self.id, status="not yet", text=diagnosis)


@dataclass(frozen=True, kw_only=True)
class NumberExercise(Exercise):
    """The answer is a number, right within the relative ``tolerance`` (0: exact)."""

    right: float
    unit: str = "bytes"
    tolerance: float = 0.0

    def diagnose(self, answer: object) -> str | None:
        if isinstance(answer, bool) or not isinstance(answer, Real):
            return f"{answer!r} is a {type(answer).__name__}; the answer is a number of {self.unit}."
        if agree(answer, self.right, self.tolerance):
            return None
        for mistake in self.mistakes:
            if agree(answer, mistake.answer, max(self.tolerance, 1e-9)):
                return mistake.diagnosis
        if self.unit == "bytes" and self.right:
            for factor, slip in _BYTE_SLIPS:
                if agree(answer * factor, self.right, max(self.tolerance, 1e-3)):
                    return slip
        return _how_far(answer, self.right)


@dataclass(frozen=True, kw_only=True)
class ChoiceExercise(Exercise):
    """The answer is one letter of several; every other letter is a mistake with its own diagnosis."""

    right: str

    def diagnose(self, answer: object) -> str | None:
        letters = sorted([self.right, *(mistake.answer for mistake in self.mistakes)])
        letter = answer.strip().lower() if isinstance(answer, str) else answer
        if letter == self.right:
            return None
        for mistake in self.mistakes:
            if letter == mistake.answer:
                return mistake.diagnosis
        return f"{answer!r} is not one of {', '.join(letters)}."


@dataclass(frozen=True, kw_only=True)
class FunctionExercise(Exercise):
    """The answer is a function, right if it returns what ``right`` returns on every tuple of ``probes``.

    A mistake's answer is a wrong function: the reader made that mistake if both agree on every probe.
    """

    right: Callable
    probes: tuple[tuple, ...]
    tolerance: float = 0.0

    def diagnose(self, answer: object) -> str | None:
        if not callable(answer):
            return f"{answer!r} is a {type(answer).__name__}; the answer is a function."
        given = [answer(*probe) for probe in self.probes]
        wanted = [self.right(*probe) for probe in self.probes]
        if agree(given, wanted, self.tolerance):
            return None
        for mistake in self.mistakes:
            if agree(given, [mistake.answer(*probe) for probe in self.probes], max(self.tolerance, 1e-9)):
                return mistake.diagnosis
        for probe, mine, theirs in zip(self.probes, given, wanted, strict=True):
            if not agree(mine, theirs, self.tolerance):
                call = f"{getattr(answer, '__name__', 'yours')}({', '.join(map(repr, probe))})"
                numbers = isinstance(mine, Real) and isinstance(theirs, Real)
                return f"{call} returned {mine!r}. " + (
                    _how_far(mine, theirs) if numbers else f"Wanted: {theirs!r}."
                )
        return None


@dataclass(frozen=True, kw_only=True)
class JudgedExercise(Exercise):
    """The answer is judged by a function of its own: ``judge(answer)`` is ``None`` or the diagnosis.

    A mistake's diagnosis is a part of what ``judge`` says about its answer.
    """

    judge: Callable[[object], str | None]

    def diagnose(self, answer: object) -> str | None:
        return self.judge(answer)


def check(exercise_id: str, answer: object) -> Feedback:
    """Feedback on the reader's ``answer`` to exercise ``"chapter.number"``.

    >>> from memkit import check
    >>> check("0.1", ...)
    Exercise 0.1: not attempted yet
    """
    chapter = str(exercise_id).partition(".")[0]
    exercises = exercises_of(int(chapter)) if chapter.isdecimal() else {}
    if exercise_id not in exercises:
        known = ", ".join(exercises) or "none"
        return Feedback(
            exercise_id=exercise_id, status="not yet", text=f"There is no such exercise; known: {known}."
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


def agree(given: object, wanted: object, tolerance: float = 0.0) -> bool:
    """Whether two answers are the same: numbers within the relative ``tolerance``, the rest exactly.

    >>> agree([1.0, "fp32"], (1, "fp32")), agree(101, 100, 0.02), agree(101, 100)
    (True, True, False)
    """
    given, wanted = (value.tolist() if hasattr(value, "tolist") else value for value in (given, wanted))
    if isinstance(given, Real) and isinstance(wanted, Real):
        return math.isclose(given, wanted, rel_tol=tolerance) if tolerance else given == wanted
    if isinstance(given, Mapping) and isinstance(wanted, Mapping):
        return given.keys() == wanted.keys() and all(
            agree(given[key], wanted[key], tolerance) for key in wanted
        )
    if isinstance(given, list | tuple) and isinstance(wanted, list | tuple):
        return len(given) == len(wanted) and all(
            map(functools.partial(agree, tolerance=tolerance), given, wanted)
        )
    return type(given) is type(wanted) and bool(given == wanted)


class _NotAttempted(Exception):
    pass


# (what the answer has to be multiplied by to be right, what the reader did)
_BYTE_SLIPS = (
    (1 / 8, "That is the number of bits. A byte has 8."),
    (8, "That is an eighth of it: divide bits by 8 once, not twice."),
    (2**30, "That is the number of GiB. The answer is in bytes."),
    (10**9, "That is the number of GB. The answer is in bytes."),
    (2**30 / 10**9, "You took 1 GiB for 10**9 bytes. It is 2**30."),
    (2**20, "That is the number of MiB. The answer is in bytes."),
    (10**6, "That is the number of MB. The answer is in bytes."),
    (10**9 / 2**30, "You took 1 GB for 2**30 bytes. It is 10**9."),
)


def _is_open(answer: object) -> bool:
    if isinstance(answer, Mapping):
        return any(map(_is_open, answer.values()))
    if isinstance(answer, list | tuple | set):
        return any(map(_is_open, answer))
    return answer is ... or answer is None


def _guarded(function: FunctionType) -> Callable:
    @functools.wraps(function)
    def guarded(*args, **kwargs):
        result = function(*args, **kwargs)
        if result is not None and _is_open(result):
            raise _NotAttempted
        return result

    return guarded


def _is_stub_error(error: Exception) -> bool:
    if isinstance(error, TypeError) and "ellipsis" in str(error).lower():
        return True
    return isinstance(error, _NotAttempted | NotImplementedError)


def _how_far(given: float, right: float) -> str:
    if not math.isfinite(given):
        return f"{given} is not a number of anything."
    if not right or given / right <= 0:
        return f"{given:,} has the wrong sign or size."
    ratio = given / right
    size = "large" if ratio > 1 else "small"
    if 0.99 < ratio < 1.01:
        return f"Too {size} by {abs(given - right):,}."
    return f"Too {size} by a factor of {max(ratio, 1 / ratio):.3g}."
