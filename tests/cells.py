"""The chapters' cells as their files have them."""

import json
from functools import cache
from pathlib import Path

CHAPTERS = Path(__file__).parents[1] / "chapters"


@cache
def texts_of(chapter: str) -> dict[str, str]:
    """Source by id of each cell of the chapter whose file begins so, such as ``07`` or ``C``."""
    [path] = CHAPTERS.glob(f"{chapter}_*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in cells}
