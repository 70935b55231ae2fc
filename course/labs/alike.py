"""``python -m course.labs.alike FOLDER LAB``: who handed in the same code, task by task.

Names of variables, comments and spaces do not make a difference; the code as it was released is nobody's. Some
tasks have one short answer that many find (one line that calls ``memkit``), so a row is a question and no proof.
"""

import ast
import sys
from collections import defaultdict
from pathlib import Path

import nbformat

from course.labs import load_lab
from memkit.units import aligned_table


class Renamed(ast.NodeTransformer):
    """A syntax tree with its own names numbered in their order, and without docstrings."""

    def __init__(self):
        self.numbers: dict[str, str] = {}

    def visit_Name(self, node):
        node.id = self.numbers.setdefault(node.id, f"name {len(self.numbers)}")
        return node

    def visit_arg(self, node):
        node.arg = self.numbers.setdefault(node.arg, f"name {len(self.numbers)}")
        return node

    def visit_Expr(self, node):
        is_words = isinstance(node.value, ast.Constant)
        return None if is_words else self.generic_visit(node)


def shape_of(source: str) -> str:
    """The code without what a copier changes first; what is no Python stands for itself.

    >>> shape_of("total = 2 * n  # mine") == shape_of("x=2*y")
    True
    """
    try:
        return ast.dump(Renamed().visit(ast.parse(source)))
    except SyntaxError:
        return source.strip()


def alike(folder: Path, lab: str) -> list[tuple[str, tuple[str, ...]]]:
    """(title of the task, students) for every answer that two or more handed in, in the order of the tasks.

    Raises: FileNotFoundError: nobody has handed in that lab.
    """
    handed_in = sorted((folder / "submitted").glob(f"*/{lab}/{lab}.ipynb"))
    if not handed_in:
        raise FileNotFoundError(f"no submitted/*/{lab}/{lab}.ipynb in {folder}")
    released = cells_of(folder / "release" / lab / f"{lab}.ipynb")
    by_shape: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in handed_in:
        for name, source in cells_of(path).items():
            if source != released.get(name):
                by_shape[name, source].append(path.parents[1].name)
    tasks = {task.grade_id: task.title for task in load_lab(lab).tasks}
    return [
        (title, tuple(students))
        for grade_id, title in tasks.items()
        for (name, _), students in by_shape.items()
        if name == grade_id and len(students) > 1
    ]


def cells_of(path: Path) -> dict[str, str]:
    """The shape of every answer of a notebook, by its cell's grade id."""
    cells = nbformat.read(path, as_version=4).cells
    marked = ((cell.metadata.get("nbgrader", {}), cell) for cell in cells)
    return {
        settings["grade_id"]: shape_of(cell.source)
        for settings, cell in marked
        if settings.get("solution") and cell.cell_type == "code"
    }


def main(arguments: list[str]) -> int:
    """Print the table; what cannot be read is said in one line, with exit code 2."""
    if len(arguments) != 2:
        print("python -m course.labs.alike FOLDER LAB, such as build/labs lab1", file=sys.stderr)
        return 2
    try:
        rows = alike(Path(arguments[0]), arguments[1])
    except (FileNotFoundError, ModuleNotFoundError, ValueError) as error:
        print(f"course.labs.alike: {error}", file=sys.stderr)
        return 2
    table = [["task", "the same code from"], *([title, ", ".join(who)] for title, who in rows)]
    print(aligned_table(table) if rows else "No two handed in the same code.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
