"""The chapters' cells as their files have them, and whether a test or a cell that the book names is there."""

import ast
import json
from functools import cache
from pathlib import Path

from book import card_cells
from dev.notebooks import family_of

ROOT = Path(__file__).parents[1]
CHAPTERS = ROOT / "chapters"


@cache
def cells_of(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


@cache
def notebooks_of(chapter: str) -> list[Path]:
    """The notebooks of the chapter whose file begins so, such as ``07`` or ``C``: itself, exercises, further."""
    [path] = CHAPTERS.glob(f"{chapter}_*.ipynb")
    return family_of(path)


@cache
def texts_of(chapter: str) -> dict[str, str]:
    """Source by id of each cell of the chapter's notebooks; an id stands in one of them."""
    return {
        cell["id"]: "".join(cell["source"])
        for path in notebooks_of(chapter)
        for cell in cells_of(path)
    }


def home_of(chapter: str, cell_id: str) -> Path:
    """The notebook of the chapter that has the cell."""
    [path] = [
        path for path in notebooks_of(chapter) if cell_id in {cell["id"] for cell in cells_of(path)}
    ]
    return path


@cache
def after_setup(path: Path) -> dict:
    """The names a chapter has after its cells tagged ``setup``."""
    names, _ = card_cells.after_setup(path)
    return names


def exists(node: str) -> bool:
    """Whether ``file::name`` names a test function, or a cell, of this repository; a file alone is there or not."""
    file, _, name = node.partition("::")
    path = ROOT / file
    if not path.is_file() or not name:
        return path.is_file()
    if path.suffix == ".ipynb":
        return name in {cell["id"] for cell in cells_of(path)}
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return any(
        isinstance(node, ast.FunctionDef) and node.name == name.partition("[")[0] for node in body
    )
