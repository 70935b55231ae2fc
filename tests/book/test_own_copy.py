"""The reader's own copy of the chapters: reading leaves the book's files alone, and nothing of a reader's is lost."""

import shutil

import pytest

from dev.notebooks import FOLDERS
from dev.own_copy import NAME, ROOT, copy_chapters

every_folder = pytest.mark.parametrize(
    "name", ["01.ipynb", "exercises/01.ipynb", "further/01.ipynb"]
)


@pytest.fixture
def book(tmp_path):
    (tmp_path / "chapters").mkdir()
    for name in ("00_start_here.ipynb", "claims.toml"):
        shutil.copy(ROOT / "chapters" / name, tmp_path / "chapters")
    (tmp_path / "chapters" / "01.ipynb").write_text("first", encoding="utf-8")
    for folder in FOLDERS:
        (tmp_path / "chapters" / folder).mkdir()
        (tmp_path / "chapters" / folder / "01.ipynb").write_text("first", encoding="utf-8")
    return tmp_path


def test_every_chapter_is_copied_once_with_what_it_links_to(book):
    assert copy_chapters(book) == []
    names = {path.name for path in (book / NAME).iterdir()}
    assert names == {
        "00_start_here.ipynb",
        "01.ipynb",
        "exercises",
        "further",
        "claims.toml",
        ".base",
    }
    assert [(book / NAME / folder / "01.ipynb").read_text() for folder in FOLDERS] == [
        "first",
        "first",
    ]


@every_folder
def test_what_a_reader_wrote_stays_and_a_newer_chapter_is_told(book, name):
    copy_chapters(book)
    (book / NAME / name).write_text("mine", encoding="utf-8")
    assert copy_chapters(book) == []
    (book / "chapters" / name).write_text("second", encoding="utf-8")
    assert copy_chapters(book) == [name]
    assert (book / NAME / name).read_text(encoding="utf-8") == "mine"


@every_folder
def test_a_chapter_that_nobody_touched_follows_the_book(book, name):
    copy_chapters(book)
    (book / "chapters" / name).write_text("second", encoding="utf-8")
    assert copy_chapters(book) == []
    assert (book / NAME / name).read_text(encoding="utf-8") == "second"


def test_git_does_not_see_the_copies():
    assert f"{NAME}/" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()
