"""The appendices: every test that the formula sheet names is there, and every function can be imported."""

import importlib
import re

import pytest
from cells import exists, texts_of

SHEET = texts_of("C")["sheet"]
NAMED = re.compile(r"`(test_\w+)` \(`([\w/]+\.py)`\)")
"""A test as the sheet names it: its name, and its file, below ``tests``."""
TESTS = sorted({f"tests/{file}::{name}" for name, file in NAMED.findall(SHEET)})
FUNCTIONS = sorted(set(re.findall(r"`((?:memkit|stepscope)(?:\.\w+)+)`", SHEET)))


@pytest.mark.parametrize("node", TESTS)
def test_a_formula_s_test_is_there(node):
    assert exists(node)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_formula_s_function_is_there(name):
    module, _, attribute = name.rpartition(".")
    place = importlib.import_module(module)
    assert callable(getattr(place, attribute)) or attribute.isupper()


def test_every_line_of_the_sheet_names_a_function_a_test_and_a_chapter():
    rows = [
        [part.strip() for part in line.strip("|").split(" | ")]
        for line in SHEET.splitlines()
        if line[:2] == "| "
    ]
    sheet, checks = ([row for row in rows if len(row) == width][1:] for width in (4, 3))
    assert sheet and [row[0] for row in sheet] == [row[0] for row in checks]
    for (number, formula, chapter, source), (_, function, test) in zip(sheet, checks, strict=True):
        assert formula and source and re.fullmatch(r"\d\d(, \d\d)*", chapter), number
        assert function.startswith(("`memkit", "`stepscope", "`book")) and NAMED.fullmatch(test), (
            number
        )


def test_a_test_that_is_gone_is_seen():
    assert not exists("tests/memkit/test_units.py::test_that_nobody_wrote") and not exists(
        "tests/none.py::test_x"
    )
