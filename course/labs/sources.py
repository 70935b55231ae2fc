"""nbgrader's source notebooks, written from the tasks."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course.labs import NAMES, load_lab
from course.labs.tasks import Lab, Task

KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
HIDDEN = """### BEGIN HIDDEN TESTS
raise RuntimeError("Marks are made outside of this kernel: autograde with course/nbgrader_config.py")
### END HIDDEN TESTS"""
DRAWN = """from lab_numbers import draw, in_words

mine = draw({name!r}, STUDENT)
print(mine, in_words(mine), sep="\\n\\n")"""


def cell_settings(grade_id: str, **settings: object) -> dict:
    """nbgrader's metadata, schema 3."""
    whole = {
        "schema_version": 3,
        "grade_id": grade_id,
        "grade": False,
        "solution": False,
        "locked": False,
    }
    return {"nbgrader": whole | {"task": False} | settings}


def write_sources(folder: Path) -> list[Path]:
    """``source/labN/labN.ipynb`` with the file of draws beside it, for every lab."""
    draws = Path(__file__).with_name("draws.py").read_text(encoding="utf-8")
    written = []
    for name in NAMES:
        place = folder / "source" / name
        place.mkdir(parents=True, exist_ok=True)
        lab = load_lab(name)
        choices = "".join(f"    {name!r}: {options!r},\n" for name, options in lab.choices.items())
        questions = "".join(f"    {task.question!r},\n" for task in lab.tasks)
        given = f"CHOICES = {{\n{choices}}}\nQUESTIONS = (\n{questions})\n"
        (place / "lab_numbers.py").write_text(f"{draws}\n\n{given}", encoding="utf-8")
        nbformat.write(notebook_of(lab), place / f"{name}.ipynb")
        written.append(place / f"{name}.ipynb")
    return written


def notebook_of(lab: Lab):
    """The source notebook of one lab, solutions and hidden tests in it."""
    cells = [*opening_cells(lab)]
    for number, task in enumerate(lab.tasks, 1):
        cells += task_cells(number, task)
    cells += prose_cells(lab)
    return new_notebook(
        cells=cells, metadata={"kernelspec": KERNEL, "language_info": {"name": "python"}}
    )


def opening_cells(lab: Lab) -> list:
    """Title, who hands in, and the numbers."""
    points = sum(task.points for task in lab.tasks) + lab.prose.points
    goals = "\n".join(f"- {goal}" for goal in lab.goals)
    title = (
        f"# {lab.title}\n\n"
        f"*{lab.minutes} minutes · {points} points · chapter {lab.chapter:02d} · no GPU, no network*\n\n"
        f"You show that you can:\n\n{goals}\n\n"
        "Every task has a cell for you and a locked one under it. The locked one checks the form of your answer, on an "
        "example that is not yours; when the lab is graded, your own numbers count. A mistake that is known is told in "
        "your feedback and is worth half the points. Run the whole notebook from the top before you hand it in."
    )
    asks = (
        "**Who are you?** The numbers of this lab are drawn from the name under which you hand in. On a hub it is the "
        "name you logged in with, and the next cell finds it. Elsewhere write it in quotes. The cell after it prints "
        "your numbers, by name and in the sentences of the tasks."
    )
    drawn = DRAWN.format(name=lab.name)
    named = "from lab_numbers import my_name\n\nSTUDENT = my_name()"
    return [
        new_markdown_cell(title, id="title", metadata=cell_settings("title", locked=True)),
        new_markdown_cell(asks, id="who", metadata=cell_settings("who", locked=True)),
        new_code_cell(named, id="student"),
        new_code_cell(
            f"{lab.imports}\n{drawn}", id="numbers", metadata=cell_settings("numbers", locked=True)
        ),
    ]


def task_cells(number: int, task: Task) -> list:
    """Question, the student's cell, and the locked one under it."""
    question = f"## Task {number}: {task.title} ({task.points} points, {task.minutes} minutes)\n\n{task.question}"
    indent = "    " if task.opening.startswith("def ") else ""
    solution = "\n".join(
        f"{indent}{line}".rstrip()
        for line in ("### BEGIN SOLUTION", *task.solution.split("\n"), "### END SOLUTION")
    )
    test = cell_settings(f"{task.grade_id}-test", grade=True, locked=True, points=task.points)
    test["tags"] = ["raises-exception"]  # "Run All" goes on to the tasks that are solved
    return [
        new_markdown_cell(
            question,
            id=f"{task.grade_id}-question",
            metadata=cell_settings(f"{task.grade_id}-question", locked=True),
        ),
        new_code_cell(
            f"{task.opening}\n{solution}",
            id=task.grade_id,
            metadata=cell_settings(task.grade_id, solution=True),
        ),
        new_code_cell(f"{task.shown}\n{HIDDEN}", id=f"{task.grade_id}-test", metadata=test),
    ]


def prose_cells(lab: Lab) -> list:
    """The question that a person reads."""
    prose, number = lab.prose, len(lab.tasks) + 1
    question = (
        f"## Task {number}: in your words ({prose.points} points, 10 minutes)\n\n{prose.question}"
    )
    scheme = "\n".join(f"- {line}" for line in prose.rubric)
    answer = f"### BEGIN SOLUTION\n{scheme}\n### END SOLUTION"
    settings = cell_settings("prose", grade=True, solution=True, points=prose.points)
    return [
        new_markdown_cell(
            question, id="prose-question", metadata=cell_settings("prose-question", locked=True)
        ),
        new_markdown_cell(answer, id="prose", metadata=settings),
    ]
