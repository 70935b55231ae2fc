"""Real programs, small: each traced for CUDA and the CPU and measured; README.md says what came of it."""

import importlib
from pathlib import Path

import pytest
from zoo.programs import WAYS, check

FAMILIES = ("plain", "language", "images", "more_images", "optimizers", "loops")
NEEDS = {
    "plain": "",
    "language": "transformers peft",
    "images": "transformers diffusers",
    "more_images": "torchvision timm",
    "optimizers": "torchao",
    "loops": "transformers accelerate",
}


def programs_of(family: str) -> list:
    """The family's programs; none where a package of the extra ``zoo`` is missing."""
    for package in NEEDS[family].split():
        if importlib.util.find_spec(package) is None:
            return [
                pytest.param(
                    None,
                    id=family,
                    marks=pytest.mark.skip(f"{family} needs {package}: the extra zoo"),
                )
            ]
    marks = {True: (pytest.mark.exhaustive,), False: ()}
    programs = importlib.import_module(f"zoo.{family}").PROGRAMS
    return [
        pytest.param(program, id=program.name, marks=marks[program.compiles])
        for program in programs
    ]


ALL = [program for family in FAMILIES for program in programs_of(family)]


@pytest.mark.parametrize("program", ALL)
def test_traced_for_both_devices_and_measured(program):
    check(program)


def test_the_readme_lists_every_program_as_it_is_tested():
    lines = (Path(__file__).parent / "README.md").read_text().splitlines()
    rows = [program.values[0].row() for program in ALL if program.values[0] is not None]
    assert [row for row in rows if row not in lines] == []
    assert len(rows) == len(set(rows)) and all(row.count("|") == len(WAYS) + 2 for row in rows)
