"""Exercises that say which mistake this is.

An exercise is a record: its right answer and the wrong answers that readers give, each with the words that
help, or a judge that tells them apart. ``check("1.2", answer)`` compares the reader's answer with both. It never
raises: what goes wrong inside the reader's code is part of the feedback, and a stub that nobody filled in is "not
attempted yet".

The records of chapter N are the tuple ``EXERCISES`` in ``book/exercises/chapter_NN.py``. Everything a stub
leaves open is written ``...``, in a value or as what a function returns.

Reading order:

- ``chapter_00``: what a check does
- ``chapter_01``: where the bytes of a training step go
- ``chapter_02``: what a number of 16, 8 or 4 bits holds
- ``training_loops``: a reader's loop, run and judged
- ``chapter_03``: what mixed precision keeps, and how its loops go wrong
- ``chapter_04``: what recomputation keeps and what it costs
- ``chapter_05``: gradient accumulation, equal to the big batch, and its price
- ``chapter_06``: what eight bits hold, and what they save
- ``chapter_07``: reading memory and running out of it
- ``chapter_08``: states in few bits, adapters, offload
- ``chapter_09``: what a rank keeps, gathers and sends
- ``chapter_10``: from "it does not fit" to a run
- ``chapter_11``: cards, and what inference keeps
"""

import copy
import dis
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import combinations
from numbers import Real
from types import CodeType, FunctionType

from memkit.units import as_kind


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """What ``check`` tells: ``right``, ``not yet`` or ``not attempted yet``, and the words that go with it."""

    exercise_id: str
    status: str
    text: str = ""

    def __repr__(self) -> str:
        return f"Exercise {self.exercise_id}: {self.status}" + (f". {self.text}" if self.text else "")


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise; the kinds below say how an answer is compared.

    ``mistakes`` are the wrong answers that readers give, each with the sentence that says what went wrong in it;
    where several ways lead to the same answer, the sentence names them all. ``because`` is shown with a right
    answer: one sentence on why it is right, or what it is good for. ``accepted`` lists further forms of the right
    answer that readers give; a test wants each to pass.
    """

    id: str
    title: str
    mistakes: tuple[tuple[object, str], ...] = ()
    because: str
    accepted: tuple[object, ...] = ()

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
            if not callable(answer) and "object is not callable" in str(error):
                diagnosis = f"{_kind(answer)}; the answer is a function."
        if diagnosis is None:
            return Feedback(exercise_id=self.id, status="right", text=self.because)
        return Feedback(exercise_id=self.id, status="not yet", text=diagnosis)


@dataclass(frozen=True, kw_only=True)
class NumberExercise(Exercise):
    """The answer is a number of ``unit``, right within the relative ``tolerance`` (0: exact).

    A number that an estimate by hand rounds has a tolerance. ``parts`` names the addends of the right answer and
    ``extras`` what readers add wrongly: an answer that misses, doubles or adds some of them is told so.
    """

    right: float
    unit: str = "bytes"
    tolerance: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    extras: Mapping[str, float] = field(default_factory=dict)

    def diagnose(self, answer: object) -> str | None:
        answer = answer.item() if getattr(answer, "shape", None) == () else answer
        if isinstance(answer, bool) or not isinstance(answer, Real):
            counted = self.unit and self.unit.split()[0] not in ("the", "share")
            return f"{_kind(answer)}; the answer is a number{f' of {self.unit}' if counted else ''}."
        if agree(answer, self.right, self.tolerance):
            return None
        close = max(self.tolerance, 1e-9)
        for mistaken, diagnosis in self.mistakes:
            if agree(answer, mistaken, close):
                return diagnosis
        if self.tolerance and agree(answer, float(f"{self.right:.2g}")):
            return "Right as far as it goes, but rounded: give one digit more."
        slip = unit_slip([answer], [self.right], self.unit, self.tolerance) or part_slip(
            [answer], [self.right], *(_columns(named) for named in (self.parts, self.extras)), close
        )
        return slip or f"{_how_far(answer, self.right)} I cannot tell which mistake this is."


@dataclass(frozen=True, kw_only=True)
class ChoiceExercise(Exercise):
    """The answer is one letter of several; every other letter is a mistake with its own diagnosis."""

    right: str

    def diagnose(self, answer: object) -> str | None:
        letter = answer.strip(" ().*\n").lower() if isinstance(answer, str) else answer
        diagnoses = dict(self.mistakes) | {self.right: None}
        if isinstance(letter, str) and letter in diagnoses:
            return diagnoses[letter]
        return f"{answer!r} is not one of {', '.join(sorted(diagnoses))}."


@dataclass(frozen=True, kw_only=True)
class FunctionExercise(Exercise):
    """The answer is a function, right if it returns what ``right`` returns on every tuple of ``probes``.

    A mistake's answer is a wrong function: the reader made that mistake if both agree on every probe. ``parts``
    and ``extras`` are functions of a probe, by name, as a ``NumberExercise`` has them. ``forbidden`` names what
    the function must not use, and ``shows`` writes arguments and results in a message.
    """

    right: Callable
    probes: tuple[tuple, ...]
    unit: str = ""
    tolerance: float = 0.0
    parts: Mapping[str, Callable] = field(default_factory=dict)
    extras: Mapping[str, Callable] = field(default_factory=dict)
    forbidden: tuple[str, ...] = ()
    shows: Callable[[object], str] = repr

    def diagnose(self, answer: object) -> str | None:
        if not callable(answer):
            return f"{_kind(answer)}; the answer is a function."
        if used := [name for name in names_in(answer) if name in self.forbidden]:
            return f"Your function uses {used[0]}, and the exercise asks to do without it."
        given = [answer(*probe) for probe in copy.deepcopy(self.probes)]  # a reader's function may change them
        wanted = [self.right(*probe) for probe in self.probes]
        if agree(given, wanted, self.tolerance):
            return None
        close = max(self.tolerance, 1e-9)
        for mistaken, diagnosis in self.mistakes:
            if agree(given, [mistaken(*probe) for probe in self.probes], close):
                return diagnosis
        numbers = all(isinstance(value, Real) for value in (*given, *wanted))
        if numbers and (slip := self._slip(given, wanted, close)):
            return slip
        name = getattr(answer, "__name__", "yours")
        for probe, mine, theirs in zip(self.probes, given, wanted, strict=True):
            if not agree(mine, theirs, self.tolerance):
                call = f"{name}({', '.join(map(self.shows, probe))}) returned {_shown(mine, self.shows)}."
                far = _how_far(mine, theirs) if numbers and self.shows is repr else ""
                return f"{call} {far or f'Wanted: {_shown(theirs, self.shows)}.'} I cannot tell which mistake this is."
        return None

    def _slip(self, given: list, wanted: list, close: float) -> str | None:
        columns = (
            {name: [part(*probe) for probe in self.probes] for name, part in named.items()}
            for named in (self.parts, self.extras)
        )
        return unit_slip(given, wanted, self.unit, self.tolerance) or part_slip(given, wanted, *columns, close)


@dataclass(frozen=True, kw_only=True)
class JudgedExercise(Exercise):
    """The answer is judged by a function of its own: ``judge(answer)`` is ``None`` or the diagnosis.

    Which wrong answers readers give, and a part of what ``judge`` says about each, stands in ``tests/wrong_answers``.
    """

    judge: Callable[[object], str | None]

    def diagnose(self, answer: object) -> str | None:
        return self.judge(answer)


def check(exercise_id: str, answer: object) -> Feedback:
    """Feedback on the reader's ``answer`` to exercise ``"chapter.number"``.

    >>> from book import check
    >>> check("0.1", ...)
    Exercise 0.1: not attempted yet
    """
    as_kind("exercise_id", exercise_id, str)
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


UNITS = {
    "bits": 1 / 8, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 10**3, "MB": 10**6,
    "GB": 10**9, "TB": 10**12, "tokens": 1, "thousands of tokens": 10**3, "parameters": 1, "millions": 10**6,
    "billions": 10**9, "share": 1, "percent": 0.01,
}  # fmt: skip
"""What one of each unit is worth in the first of its family."""

FAMILIES = (
    ("bits", "bytes", "KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB"),
    ("tokens", "thousands of tokens"),
    ("parameters", "millions", "billions"),
    ("share", "percent"),
)


def unit_slip(given: Sequence, wanted: Sequence, unit: str, tolerance: float = 0.0) -> str | None:
    """What to say if ``given`` is ``wanted`` in another unit of the same family, or with 1 GiB taken for 1 GB.

    >>> unit_slip([3], [3 * 2**10], "MiB")
    'That is the number of GiB. The answer is in MiB.'
    """
    family = next((family for family in FAMILIES if unit in family), ())
    close = max(tolerance, 1e-3)
    for other in family:
        factor = UNITS[other] / UNITS[unit]
        if other != unit and _agree_times(given, factor, wanted, close):
            bits = " A byte has 8." if other == "bits" else ""
            asked = "a share, from 0 to 1" if unit == "share" else f"in {unit}"
            return f"That is the number of {other}. The answer is {asked}.{bits}"
    for binary, decimal in (("GiB", "GB"), ("MiB", "MB"), ("KiB", "kB")) if "GiB" in family else ():
        factor = UNITS[binary] / UNITS[decimal]
        if _agree_times(given, factor, wanted, min(close, 0.005)):
            return f"You took 1 {binary} for {UNITS[decimal]:,} bytes. It is {UNITS[binary]:,}."
        if _agree_times(given, 1 / factor, wanted, min(close, 0.005)):
            return f"You took 1 {decimal} for {UNITS[binary]:,} bytes. It is {UNITS[decimal]:,}."
    return None


def part_slip(given: Sequence, wanted: Sequence, parts: Mapping, extras: Mapping, close: float) -> str | None:
    """Which addends are missing, counted twice or do not belong there; several ways are all named.

    >>> part_slip([11], [15], {"weights": [4], "gradients": [4], "states": [7]}, {"casts": [2]}, 1e-9)
    'Several slips lead here: weights missing; or gradients missing.'
    """
    ways = dict.fromkeys(
        words for words, total in _ways(parts, extras) if agree(list(given), _plus(wanted, total), close)
    )
    if not ways:
        return None
    return (
        f"Your answer is what one gets with {next(iter(ways))}."
        if len(ways) == 1
        else f"Several slips lead here: {'; or '.join(list(ways)[:4])}."
    )


def _ways(parts: Mapping, extras: Mapping) -> Iterator[tuple[str, list]]:
    """Slips in words, with what each adds to the right answer; the plainest first."""
    missing = [(f"{name} missing", [-value for value in column]) for name, column in parts.items()]
    added = [(f"{name} counted too", list(column)) for name, column in extras.items()]
    doubled = [(f"{name} counted twice", list(column)) for name, column in parts.items()]
    yield from missing + added + doubled
    for (first, one), (second, other) in combinations(missing + added, 2):
        yield f"{first} and {second}", _plus(one, other)


def _plus(one: Sequence, other: Sequence) -> list:
    return [a + b for a, b in zip(one, other, strict=True)]


def _columns(named: Mapping[str, float]) -> dict[str, list]:
    return {name: [value] for name, value in named.items()}


def _agree_times(given: Sequence, factor: float, wanted: Sequence, tolerance: float) -> bool:
    return any(wanted) and agree([value * factor for value in given], list(wanted), tolerance)


def names_in(function: Callable) -> list[str]:
    """Names of globals and attributes in a function's code, and in the functions inside it; "/" where it divides."""
    found, todo = [], [getattr(inspect.unwrap(function), "__code__", None)]
    while todo:
        code = todo.pop()
        if isinstance(code, CodeType):
            found += code.co_names
            found += [step.argrepr for step in dis.get_instructions(code) if step.opname == "BINARY_OP"]
            todo += code.co_consts
    return found


class _NotAttempted(Exception):
    pass


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
    return isinstance(error, _NotAttempted) or (isinstance(error, NotImplementedError) and not str(error))


def _kind(answer: object) -> str:
    name = type(answer).__name__
    return f"{answer!r} is a{'n' * (name[0].lower() in 'aeiou')} {name}"


def _shown(value: object, shows: Callable[[object], str]) -> str:
    """A result in a message: a float with six digits, so that 0.09999999999999432 reads 0.1."""
    if isinstance(value, float) and shows is repr:
        return f"{value:.6g}"
    if isinstance(value, list) and shows is repr:
        return f"[{', '.join(_shown(item, shows) for item in value)}]"
    try:
        return shows(value)
    except (TypeError, ValueError):
        return repr(value)


def _how_far(given: float, right: float) -> str:
    if not math.isfinite(given):
        return f"{given} is not a number of anything."
    if not right or given / right <= 0:
        return f"{given:,.6g} has the wrong sign or size."
    ratio = given / right
    size = "large" if ratio > 1 else "small"
    off = abs(given - right)
    if 0.99 < ratio < 1.01:
        return f"Too {size} by {off:,}." if isinstance(off, int) else f"Too {size} by {off:,.3g}."
    return f"Too {size} by a factor of {max(ratio, 1 / ratio):.3g}."
