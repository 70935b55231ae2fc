"""The code cells of a notebook as plain Python, for ``stepscope report train.ipynb``, whose ``Script`` runs them.

What only a notebook understands and trains nothing (``%matplotlib``, ``!pip``, a cell in ``%%bash``) is left out.
"""

import ast
import json
import re
from pathlib import Path

LEFT_OUT = {"matplotlib", "load_ext", "reload_ext", "autoreload", "config", "pip", "conda", "env", "bash", "sh", "html"}
TIMED = {"time", "capture"}
"""Magics of a cell or a line around Python, which runs."""

MAGIC = re.compile(r"^(\s*)(?:(%{1,2})(\w+)|!)(.*)$")


def cells_of(path: str) -> list[tuple[str, str]]:
    """Name and Python of each code cell.

    Raises: ValueError: no notebook, or a magic that may do what the program needs.
    """
    try:
        cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path!r} is no notebook as Jupyter writes it since 2015 (format 4)") from None
    return [(name, as_python(text, name)) for name, text in ((f"{path} cell {n}", t) for n, t in enumerate(texts, 1))]


def as_python(text: str, name: str) -> str:
    """A cell's text without magics; each line keeps its number. Raises: ValueError: as ``cells_of``."""
    try:
        ast.parse(text)
    except SyntaxError:
        pass
    else:
        return text  # as it is: where a line of Python begins with %, nobody touches it
    lines = text.split("\n")
    for number, line in enumerate(lines):
        found = MAGIC.match(line)
        if not found:
            continue
        indent, percents, magic, rest = found.groups()
        if magic and magic not in LEFT_OUT | TIMED:
            raise ValueError(f"{Path(name).name}: {percents}{magic} is not followed; write it as Python or take it out")
        if percents == "%%" and magic in LEFT_OUT:
            return ""
        lines[number] = f"{indent}{rest.strip()}" if magic in TIMED and percents == "%" else f"{indent}pass"
    return "\n".join(lines)
