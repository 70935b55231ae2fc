"""The labs' whole way with the real nbgrader: release, hand in, autograde, feedback."""

import sqlite3
import subprocess

import nbformat
import pytest
from handing_in import (
    SCRIPT,
    auto_scores,
    exchange,
    feedback,
    hand_in,
    hand_in_by_exchange,
    needs_sandbox,
    solutions,
)

from course.labs import NAMES, load_lab
from course.labs.__main__ import make_labs, nbgrader
from course.labs.autograding import LONGEST_OUTPUT

pytestmark = needs_sandbox
WRONG = {
    "state_bytes": "state_bytes = 16 * mine['parameters']",
    "parameters_of": "def parameters_of(h, L, v, k, f):\n"
    "    return (1 + (mine['head'] == 'of its own')) * v * h + L * (2 * h * h + 2 * h * k + 3 * h * f)",
    "block_bytes": "def block_bytes(b, s, h, a):\n    return 34 * s * b * h + 5 * a * s**2 * b",
    "largest_batch": "largest_batch = max(batch for batch in range(1, 150) if estimate_memory(TrainingSetup(\n"
    "    model=models.LLAMA_32_1B, precision=PURE_BF16, seq_len=mine['seq_len'], recomputation='full',\n"
    "    micro_batch_size=batch)).peak_bytes <= CARDS[mine['card']].memory_bytes)",
}
TOLD = {
    "state_bytes": "You counted weights and gradients too.",
    "parameters_of": "The norms are missing",
    "block_bytes": "This is Korthikanti's formula",
    "largest_batch": "You used the whole card.",
}
SLOPPY = {
    "outside_gib": "outside_gib = mine['in_use'] - mine['allocated']",
    "kept_values": "def kept_values(tokens, layers):\n    return sum(tokens * inputs for inputs, _, _ in layers)",
    "rest_gb": "rest_gb = (mine['billions']",
    "moved": "def moved(stage, micro_batches, syncs_each):\n    print(2 * stage)",
    "spare_bytes": "def spare_bytes(peak, card, context):\n    return card - card // 100 - context - peak",
}
"""Lab 7 in a hurry: the cache forgotten, frozen layers counted, a bracket left open, a print in place of a return."""
BREAKS_THE_KERNEL = """
import builtins, subprocess, sys
get_ipython().input_transformers_post.append(lambda lines: ["4.0\\n"])
get_ipython().display_formatter.format = lambda value: ({"text/plain": "4.0"}, {})
builtins.AssertionError = builtins.RuntimeError = Warning
subprocess.Popen = subprocess.run = None
class Everything:
    def __eq__(self, other): return True
    def __gt__(self, other): return True
    __lt__ = __ge__ = __le__ = __gt__
    def __float__(self): return 1.0
    def __call__(self, *arguments): return self
state_bytes = largest_batch = parameters_of = block_bytes = Everything()
"""
ATTACKS = """
import os, shutil, sqlite3, subprocess
for attack in (
    lambda: sqlite3.connect("{gradebook}").execute("update grade set manual_score = 75"),
    lambda: shutil.rmtree("{folder}/submitted/right"),
    lambda: shutil.rmtree("{folder}/autograded"),
    lambda: subprocess.Popen(["sleep", "605"], start_new_session=True),
):
    try:
        attack()
    except Exception:
        pass
"""
"""Run twice, in the kernel whose outputs the feedback shows and where marks are made."""
GAMES = {
    "state_bytes": "print('2.0')\nstate_bytes = 10**9 + 1\n2.0",
    "parameters_of": "def parameters_of(h, L, v, k, f):\n    return 6_738_415_616 if v == 32000 else 1",
    "block_bytes": "def block_bytes(b, s, h, a):\n    return 12_607_488",
    "largest_batch": "hoard = b'1' * 4 * 2**30\nlargest_batch = 1",
}


def be_careless(path) -> None:
    """Both cells of task 2 are deleted, that of task 1 stands there twice, a line of a million letters is printed."""
    notebook = nbformat.read(path, as_version=4)
    first, second = (task.grade_id for task in load_lab("lab2").tasks[:2])
    cells = [cell for cell in notebook.cells if cell.id not in (second, f"{second}-test")]
    place = next(number for number, cell in enumerate(cells) if cell.id == first)
    copied = nbformat.from_dict(cells[place] | {"id": "copied", "source": "print('x' * 10**6)"})
    notebook.cells = [*cells[:place], copied, *cells[place:]]
    nbformat.write(notebook, path)


def claim_points(path) -> None:
    """A test of 1,000 points and of nbgrader's next format, and a test more, which gives 100."""
    notebook = nbformat.read(path, as_version=4)
    test = next(cell for cell in notebook.cells if cell.id.endswith("-test"))
    test.metadata["nbgrader"] |= {"points": 1000, "schema_version": 99}
    settings = test.metadata["nbgrader"] | {"grade_id": "bonus", "schema_version": 3}
    bonus = nbformat.v4.new_code_cell("100.0", id="bonus", metadata={"nbgrader": settings})
    notebook.cells.append(bonus)
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """All labs, solved by one, left blank by another; lab 1 by four more, labs 2 and 7 by one. Graded by nbgrader.

    Three of lab 1, right, wrong and gaming, go out and come back by nbgrader's exchange, and so does the feedback.
    """
    folder = tmp_path_factory.mktemp("class") / "course"
    make_labs(folder)
    for lab in NAMES:
        hand_in(folder, lab, "right", solutions(lab))
        hand_in(folder, lab, "blank", {})
    hand_in(
        folder,
        "lab1",
        "wrong",
        WRONG,
        f"from IPython.display import HTML, display\ndisplay(HTML({SCRIPT!r}))",
    )
    hand_in(folder, "lab1", "neighbour", solutions("lab1"), copied_from="right")
    hand_in(
        folder, "lab1", "kernel-breaker", dict.fromkeys(solutions("lab1"), ""), BREAKS_THE_KERNEL
    )
    hand_in(folder, "lab1", "hard-coder", GAMES)
    hand_in(folder, "lab2", "careless", solutions("lab2"))
    hand_in(folder, "lab7", "sloppy", SLOPPY)
    attacks = ATTACKS.format(folder=folder, gradebook=folder / "gradebook.db")
    hand_in(folder, "lab2", "aaron", {}, attacks)  # graded before all others
    claim_points(folder / "submitted/aaron/lab2/lab2.ipynb")
    be_careless(folder / "submitted/careless/lab2/lab2.ipynb")
    homes = hand_in_by_exchange(folder, "lab1", ("right", "wrong", "hard-coder"))
    nbgrader(folder, "autograde", "--assignment=*")
    nbgrader(folder, "generate_feedback", "lab1")
    nbgrader(folder, "generate_feedback", "lab2", "--student=careless")
    nbgrader(folder, "generate_feedback", "lab7", "--student=sloppy")
    exchange(folder, "release_feedback", "lab1", "--student=wrong", home=folder)
    exchange(folder, "fetch_feedback", "lab1", home=homes / "wrong")
    return folder


def points(course, student: str, lab: str = "lab1") -> list[float]:
    scores = auto_scores(course)
    return [scores[student, lab, f"{task.grade_id}-test"] for task in load_lab(lab).tasks]


@pytest.mark.parametrize("name", NAMES)
def test_the_release_holds_no_solution_and_no_hidden_test(course, name):
    lab = load_lab(name)
    text = (course / f"release/{name}/{name}.ipynb").read_text(encoding="utf-8")
    cells = [cell.source for cell in nbformat.reads(text, as_version=4).cells]
    assert not [word for word in ("SOLUTION", "HIDDEN", "RuntimeError") if word in text]
    assert not [task.answer for task in lab.tasks if any(task.solution in cell for cell in cells)]
    assert not [line for line in lab.prose.rubric if any(line in cell for cell in cells)]


@pytest.mark.parametrize("name", NAMES)
def test_right_answers_get_all_points_and_blank_ones_none(course, name):
    assert points(course, "right", name) == [task.points for task in load_lab(name).tasks]
    assert points(course, "blank", name) == [0] * len(load_lab(name).tasks)


def test_wrong_answers_get_half_and_their_diagnosis(course):
    assert points(course, "wrong") == [task.points / 2 for task in load_lab("lab1").tasks]
    page = feedback(course, "wrong", "lab1")
    assert not [words for words in TOLD.values() if words not in page]
    assert "HIDDEN" not in page and "RuntimeError" not in page


def test_a_sloppy_student_gets_half_of_what_is_half_right(course):
    assert points(course, "sloppy", "lab7") == [1, 1.5, 0, 0, 1.5]
    page = feedback(course, "sloppy", "lab7")
    assert "of what the context leaves, not of the card" in page and "moved returned None" in page
    assert f"(cell {page.partition('Cell In[')[2].partition(']')[0]}, line 1)" in page, (
        "as IPython counts"
    )


def test_a_student_s_scripts_are_shown_and_do_not_run(course):
    page = (course / "feedback/wrong/lab1/lab1.html").read_text(encoding="utf-8")
    assert SCRIPT not in page
    assert page.count("&lt;script&gt;document.title") == 3, (
        "in her code, in what it shows, in her words"
    )


def test_who_deletes_and_copies_cells_gets_the_other_points(course):
    assert points(course, "careless", "lab2") == [2, 0, 3, 4]
    page = feedback(course, "careless", "lab2")
    assert "Not attempted" in page and max(map(len, page.split())) == LONGEST_OUTPUT


def test_the_exchange_brings_feedback_to_whom_it_is_for(course):
    [page] = (course.parent / "homes/wrong/lab1/feedback").rglob("*.html")
    assert page.read_bytes() == (course / "feedback/wrong/lab1/lab1.html").read_bytes()


def test_a_neighbour_s_numbers_are_worth_nothing(course):
    """Both drew other numbers; what does not depend on them is the same for both."""
    right, neighbour = load_lab("lab1").numbers("right"), load_lab("lab1").numbers("neighbour")
    assert (
        right["parameters"] != neighbour["parameters"] and right["seq_len"] != neighbour["seq_len"]
    )
    assert points(course, "neighbour")[::3] == [0, 0]
    assert "whose numbers count" in feedback(course, "neighbour", "lab1")


@pytest.mark.parametrize("student", ["kernel-breaker", "hard-coder"])
def test_gaming_the_visible_tests_gets_nothing(course, student):
    assert points(course, student) == [0, 0, 0, 0]


def test_an_attack_changes_nobody_s_marks(course):
    """The other tests of this file are about those who were graded after it."""
    assert points(course, "aaron", "lab2") == [0] * len(load_lab("lab2").tasks)
    assert ("aaron", "lab2", "bonus") not in auto_scores(course)
    rows = sqlite3.connect(course / "gradebook.db").execute("select manual_score from grade")
    assert {75} & {score for (score,) in rows} == set()
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert "sleep 605" not in listed.stdout.splitlines()


def test_words_wait_for_a_person_unless_there_are_none(course):
    scores = auto_scores(course)
    assert {scores["blank", name, "prose"] for name in NAMES} == {0}
    assert {scores["right", name, "prose"] for name in NAMES} == {None}
