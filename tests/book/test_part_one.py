"""Chapters 00 to 06 need ``memkit`` and what ``book`` has for them; they run where there is no ``stepscope``."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cells import CHAPTERS, ROOT, cells_of
from run_notebooks import run_chapter

from dev.notebooks import PART_ONE, notebooks, place_of

SAID = "stepscope is not there"
LESSONS = [path for path in notebooks() if path.name[:2] in PART_ONE]
SETUP_AND_EXERCISES = """
import sys
from importlib import import_module
from pathlib import Path

from cells import after_setup

chapter = Path(sys.argv[1])
after_setup(chapter)
import_module(f"book.exercises.chapter_{chapter.name[:2]}")
import_module("book.accumulation_ranks")
"""


@pytest.fixture
def without_stepscope(tmp_path, monkeypatch) -> Path:
    """A folder that Python looks in first, in which an import of ``stepscope`` fails."""
    (tmp_path / "stepscope").mkdir()
    (tmp_path / "stepscope" / "__init__.py").write_text(f"raise ImportError({SAID!r})\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "tests"))))
    return tmp_path


def run(folder: Path, chapter: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", SETUP_AND_EXERCISES, str(chapter)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("chapter", LESSONS, ids=place_of)
def test_a_chapter_begins_and_is_checked_without_stepscope(without_stepscope, chapter):
    assert not any(
        "stepscope" in "".join(cell["source"])
        for cell in cells_of(chapter)
        if cell["cell_type"] == "code"
    )
    done = run(without_stepscope, chapter)
    assert done.returncode == 0, done.stderr


def test_this_would_be_noticed(without_stepscope):
    [chapter] = CHAPTERS.glob("07_*.ipynb")
    done = run(without_stepscope, chapter)
    assert done.returncode == 1 and done.stderr.rstrip().endswith(SAID)


@pytest.mark.exhaustive
@pytest.mark.parametrize("chapter", LESSONS, ids=place_of)
def test_a_chapter_runs_without_stepscope(without_stepscope, chapter):
    run_chapter(Path(shutil.copy(chapter, without_stepscope)))
