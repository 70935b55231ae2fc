"""Which notebooks the book has: the chapters, and beside a lesson those of its exercises and of what goes further.

``chapters/01_memory_breakdown.ipynb`` is the lesson, ``chapters/exercises/01_memory_breakdown.ipynb`` and
``chapters/further/01_memory_breakdown.ipynb`` are its companions. Whatever lists notebooks asks here.
"""

from pathlib import Path

CHAPTERS = Path(__file__).resolve().parent.parent / "chapters"
FOLDERS = ("exercises", "further")
"""Folders of companions, in the order in which a reader opens them."""
PART_ONE = tuple(f"{number:02}" for number in range(7))
"""Part I: lessons that need ``memkit`` alone."""
LESSONS = (*PART_ONE, "07", "08", "09", "10", "11", "12", "13")
"""Chapters that are lessons, with companions."""


def notebooks(chapters: Path = CHAPTERS) -> list[Path]:
    """Every notebook: the chapters and appendices in order, each with its companions behind it."""
    return [path for chapter in sorted(chapters.glob("*.ipynb")) for path in family_of(chapter)]


def family_of(path: Path) -> list[Path]:
    """The chapter that a notebook belongs to, and its companions."""
    chapters = path.parent.parent if kind_of(path) else path.parent
    family = (chapters / path.name, *(chapters / folder / path.name for folder in FOLDERS))
    return [member for member in family if member.exists()]


def kind_of(path: Path) -> str:
    """``"exercises"`` or ``"further"`` for a companion, '' for a chapter."""
    return path.parent.name if path.parent.name in FOLDERS else ""


def place_of(path: Path) -> str:
    """A notebook as the ledger names it: its path from the folder of the chapters, with slashes.

    >>> place_of(CHAPTERS / "further" / "01_memory_breakdown.ipynb")
    'further/01_memory_breakdown.ipynb'
    """
    return f"{kind_of(path)}/{path.name}".removeprefix("/")
