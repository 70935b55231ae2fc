"""What an answer is worth, and that a student's code cannot change it."""

import itertools
import random
import sys
from importlib import import_module

import numpy as np
import pytest
import torch
from handing_in import needs_sandbox, solutions
from wrong_answers.labs import WAYS, WORTHLESS

from book.exercises.chapter_02 import upper_bits
from course.labs import NAMES, answers, load_lab
from course.labs.autograding import marks_of
from course.labs.passing import from_line, to_line
from course.labs.sources import write_sources
from course.labs.tasks import Mark

pytestmark = needs_sandbox
LAB = load_lab("lab2")
IMPORTS = "import math\nfrom lab_numbers import draw\nSTUDENT = 'eve'\nmine = draw('lab2', STUDENT)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("labs")
    write_sources(place)
    return place / "source" / "lab2"


def marked(
    folder, cells: dict[str, str], *, first: str = "", student: str = "eve"
) -> dict[str, Mark]:
    """Marks by the answer's name, for lab 2."""
    listed = [IMPORTS, first]
    for task in LAB.tasks:
        listed += [cells.get(task.answer, ""), [task.answer]]
    found = marks_of(LAB, [*listed, ["STUDENT"]], folder, student)
    return {task.answer: found[task.grade_id] for task in LAB.tasks}


def marks(*handed_in, **choices) -> dict[str, float]:
    """Points by the answer's name."""
    return {answer: mark.points for answer, mark in marked(*handed_in, **choices).items()}


NOTHING = dict.fromkeys((task.answer for task in LAB.tasks), 0)
SPEAKS_FOR_ITSELF = """
import json, os
for descriptor in range(3, 40):
    try:
        os.write(descriptor, b'ready\\n' + 9 * b'{"dict": [["value", 1]]}\\n{"dict": [["points", 9]]}\\nnonsense\\n')
    except OSError:
        pass
"""
LOOKS_AROUND = """
import gc, sys
from book.exercises import exercises_of
from course.labs import load_lab
value = weight_bytes = total = upper_bits = load_lab("lab2").tasks[0].exercise(mine).right
"""
EQUALS_EVERYTHING = """
class Same(float):
    def __eq__(self, other): return True
    def __truediv__(self, other): return 1.0
value = weight_bytes = total = Same(0)
def upper_bits(bits): return Same(0)
"""
ENDS = "import os; os._exit(0)"
PATCHES = """
import builtins, json
from memkit import units
builtins.isinstance = lambda *_: True
json.dumps = lambda *_, **__: '{"value": true}'
builtins.abs = builtins.float = builtins.all = lambda *_: 0
"""


@pytest.mark.parametrize(
    "first", [SPEAKS_FOR_ITSELF, LOOKS_AROUND, EQUALS_EVERYTHING, PATCHES, ENDS]
)
def test_a_game_gets_nothing(folder, first):
    assert marks(folder, {}, first=first) == NOTHING


def test_right_answers_in_the_same_place_get_all(folder):
    assert marks(folder, solutions("lab2")) == {task.answer: task.points for task in LAB.tasks}


def test_a_number_that_repeats_the_question_gets_nothing(folder):
    assert marks(folder, {"weight_bytes": "weight_bytes = mine['parameters']"})["weight_bytes"] == 0
    assert (
        marks(folder, {"weight_bytes": "weight_bytes = mine['parameters'] // 2"})["weight_bytes"]
        == 1
    )


def test_a_hub_s_account_draws_what_its_login_drew(folder):
    whole = {task.answer: task.points for task in LAB.tasks}
    assert marks(folder, solutions("lab2"), student="jupyter-Eve") == whole
    assert (
        LAB.numbers("eve")
        == LAB.numbers("jupyter-eve")
        == LAB.numbers(" Eve@example.org")
        != LAB.numbers("eva")
    )


def test_who_keeps_the_first_cell_is_not_told_that_it_is_another_s(folder):
    kept = "from lab_numbers import my_name\nSTUDENT = my_name()"
    told = [mark.text for mark in marked(folder, solutions("lab2"), first=kept).values()]
    other = [mark.text for mark in marked(folder, solutions("lab2"), student="adam").values()]
    assert not any("handed in by" in text for text in told)
    assert all("handed in by 'adam'" in text for text in other), "IMPORTS names eve"


def test_what_never_ends_is_ended(folder, monkeypatch):
    monkeypatch.setattr(answers, "CPU_SECONDS", 4)
    cells = solutions("lab2") | {"upper_bits": "def upper_bits(bits):\n    while True: pass"}
    found = marked(folder, cells)
    assert {answer: mark.points for answer, mark in found.items()} == {
        task.answer: task.points for task in LAB.tasks
    } | {"upper_bits": 0}
    assert "after 4 seconds of computing" in found["upper_bits"].text
    for mark in marked(folder, solutions("lab2") | {"total": "while True: pass"}).values():
        assert mark.points == 0 and "after 4 seconds of computing" in mark.text


def test_a_function_that_ends_its_process_costs_its_own_points(folder):
    cells = solutions("lab2") | {"upper_bits": "import os\ndef upper_bits(bits):\n    os._exit(0)"}
    assert marks(folder, cells) == {task.answer: task.points for task in LAB.tasks} | {
        "upper_bits": 0
    }


@pytest.mark.skipif(sys.platform != "linux", reason="macOS enforces no limit")
def test_who_fills_the_memory_is_told_and_the_rest_counts(folder):
    cells = solutions("lab2") | {
        "value": "hoard = []\nwhile True:\n    hoard.append(b'1' * 2**30)\nvalue = 1",
        "upper_bits": "def upper_bits(bits):\n    return len(b'1' * 4 * 2**30)",
    }
    found = marked(folder, cells)
    assert {answer: mark.points for answer, mark in found.items() if mark.points} == {
        "weight_bytes": 2,
        "total": 3,
    }
    assert (
        "its cell raised MemoryError" in found["value"].text
        and "MemoryError" in found["upper_bits"].text
    )


def test_an_answer_is_read_where_its_test_stands(folder):
    cells = solutions("lab2")
    cells["upper_bits"] += "\nvalue = total = None"
    assert marks(folder, cells)["value"] == LAB.tasks[0].points


@pytest.mark.parametrize(
    "value",
    [
        None,
        ...,
        True,
        3,
        10**40,
        2.5,
        "a",
        [1, (2.0, "b")],
        {"a": [1]},
        torch.tensor([1.5, -2]).bfloat16(),
        torch.zeros(0, 3),
        torch.tensor(7),
        np.arange(6.0).reshape(2, 3),
    ],
    ids=repr,
)
def test_a_value_passes_as_it_is(value):
    passed = from_line(to_line(value))
    if isinstance(value, torch.Tensor):
        assert (
            passed.dtype == value.dtype
            and passed.shape == value.shape
            and torch.equal(passed, value)
        )
    else:
        assert type(passed) is type(value) and np.all(passed == value)


def test_cutting_sixteen_bits_is_torch_s_bfloat16():
    draw = random.Random(0)
    codes = [draw.getrandbits(31) for _ in range(20_000)]
    codes = [code for code in codes if code < 0x7F800000]
    wanted = torch.tensor(codes, dtype=torch.int32).view(torch.float32).bfloat16().view(torch.int16)
    assert [upper_bits(16)(code) for code in codes] == wanted.tolist()


@pytest.mark.parametrize(
    "name, num_students",
    [("lab1", 2), ("lab2", 12), ("lab3", 8), ("lab4", 12), ("lab5", 3), ("lab6", 8), ("lab7", 8)],
)
def test_whatever_numbers_are_drawn_the_solutions_are_right(name, num_students):
    """Also for the checks that a student sees."""
    lab, cells = load_lab(name), solutions(name)
    for number in range(num_students):
        mine = lab.numbers(f"student {number}")
        names = {"mine": mine}
        exec(lab.imports, names)
        for task in lab.tasks:
            exec(cells[task.answer], names)
            exec(task.shown, names)
            mark = task.mark(names[task.answer], mine)
            assert mark.points == mark.of, f"{task.grade_id} with {dict(mine)}: {mark}"


class Looked(dict):
    """Numbers that remember which of them were asked for."""

    def __init__(self, numbers):
        super().__init__(numbers)
        self.asked = {}

    def __getitem__(self, name):
        return self.asked.setdefault(name, super().__getitem__(name))


def drawn(lab, task) -> list[dict]:
    """What a task's exercise asks for, in every way that it is drawn."""
    looked = Looked(lab.numbers("eve"))
    task.exercise(looked)
    return [
        looked | dict(zip(looked.asked, each))
        for each in itertools.product(*map(lab.choices.get, looked.asked))
    ]


TASKS = [
    pytest.param(load_lab(name), task, id=task.grade_id)
    for name in NAMES
    for task in load_lab(name).tasks
]
JUDGED = [each for each in TASKS if each.values[1].exercise_id in WORTHLESS]


@pytest.mark.parametrize(("lab", "task"), [each for each in TASKS if each not in JUDGED])
def test_whatever_numbers_are_drawn_each_mistake_has_one_answer_of_its_own(lab, task):
    """None is accepted, and each is told in its own words."""
    for mine in drawn(lab, task):
        exercise = task.exercise(mine)
        for answer in (exercise.right, *exercise.accepted):
            assert exercise.check(answer).status == "right", (mine, answer)
        told = [(words, exercise.check(answer)) for answer, words in exercise.mistakes]
        assert [(words, "not yet") for words, _ in told] == [
            (said.text, said.status) for _, said in told
        ], mine


def led_to(lab, task, mine: dict, old: str = "", new: str = "") -> object:
    """The answer of a student who solves a task with one thing of the solution changed."""
    names, cell = {"mine": mine}, solutions(lab.name)[task.answer]
    assert old in cell
    exec(f"{lab.imports}\n{cell.replace(old, new)}", names)
    return names[task.answer]


@pytest.mark.parametrize(("lab", "task"), JUDGED)
def test_a_wrong_answer_to_a_judged_task_gets_its_words_and_its_points(lab, task):
    """In some of the ways that numbers are drawn; a wrong way may lead to the right answer in one of them."""
    book = import_module(f"wrong_answers.chapter_{lab.chapter:02d}").WRONG[task.exercise_id]
    ways, told, draws = WAYS.get(task.exercise_id, ()), set(), drawn(lab, task)
    for mine in random.Random(1).sample(draws, min(3, len(draws))):
        right = led_to(lab, task, mine)
        wrong = [(led_to(lab, task, mine, old, new), words) for old, new, words in ways] or book
        for answer, words in ((answer, words) for answer, words in wrong if answer != right):
            is_worthless = any(part in words for part in WORTHLESS[task.exercise_id])
            mark = task.mark(answer, mine)
            is_worthless = is_worthless or any(part in mark.text for part in task.worthless)
            worth = 0 if is_worthless else task.points / 2
            assert words in mark.text and mark.points == worth, (mine, answer, words, mark)
            told.add(words)
    assert len(told) == len({words for *_, words in ways or book})


def test_a_blank_task_does_not_pass_what_a_student_sees():
    for name in NAMES:
        for task in load_lab(name).tasks:
            names = {"mine": load_lab(name).numbers("eve")}
            exec(load_lab(name).imports, names)
            exec(task.opening, names)
            with pytest.raises((AssertionError, TypeError, AttributeError)):
                exec(task.shown, names)
