"""Appendix C: every function and test that CONTRIBUTING names for a formula is there; Hugging Face's arguments are."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
from cells import exists, texts_of

SHEET = texts_of("C")["sheet"]
CHECKS = (Path(__file__).parents[2] / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(test_\w+)` \(`([\w/]+\.py)`\)")
"""A test as the sheet names it: its name, and its file, below ``tests``."""
TESTS = sorted({f"tests/{file}::{name}" for name, file in NAMED.findall(CHECKS)})
FUNCTIONS = sorted(set(re.findall(r"`((?:memkit|stepscope)(?:\.\w+)+)` \| `test_", CHECKS)))


@pytest.mark.parametrize("node", TESTS)
def test_a_formula_s_test_is_there(node):
    assert exists(node)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_formula_s_function_is_there(name):
    module, _, attribute = name.rpartition(".")
    place = importlib.import_module(module)
    assert callable(getattr(place, attribute)) or attribute.isupper()


def test_every_line_of_the_sheet_names_a_function_a_test_and_a_chapter():
    sheet, checks = (
        [
            [part.strip() for part in line.strip("|").split(" | ")]
            for line in text.splitlines()
            if re.match(r"\| \d+ \| ", line)
        ]
        for text in (SHEET, CHECKS)
    )
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


ARGUMENT = re.compile(r"`(\w+)\((\w+)=(.+)\)`")
HOMES = {
    "TrainingArguments": "transformers",
    "BitsAndBytesConfig": "transformers",
    "SFTConfig": "trl",
    "LoraConfig": "peft",
    "prepare_model_for_kbit_training": "peft",
    "Accelerator": "accelerate",
    "GradScalerKwargs": "accelerate.utils",
    "AORecipeKwargs": "accelerate.utils",
}


def arguments_told() -> list[tuple[str, str, str, str]]:
    """Class, argument, value and default of each row of the table of Hugging Face's names, as they are written."""
    rows = [
        [part.strip() for part in line.strip("|").split(" | ")]
        for line in texts_of("C")["names-hugging-face"].splitlines()
        if line.startswith("| 0")
    ]
    return [
        (*ARGUMENT.fullmatch(call).groups(), default.partition("`,")[0].strip("`"))
        for _, _, call, default in rows
    ]


def default_of(owner: str, argument: str) -> object:
    """What the library takes if the argument is not given.

    Raises: KeyError: there is no such argument.
    """
    thing = getattr(importlib.import_module(HOMES[owner]), owner)
    return inspect.signature(thing).parameters[argument].default


@pytest.mark.parametrize(("owner", "argument", "value", "default"), arguments_told())
def test_an_argument_of_hugging_face_has_its_name_and_default(owner, argument, value, default):
    pytest.importorskip(HOMES[owner].partition(".")[0])
    assert default_of(owner, argument) == ast.literal_eval(default)
    if argument == "optim":
        names = importlib.import_module("transformers.training_args").OptimizerNames
        assert ast.literal_eval(value) in {name.value for name in names}


def test_an_argument_that_no_library_has_is_seen():
    pytest.importorskip("transformers")
    assert len(arguments_told()) >= 18
    with pytest.raises(KeyError):
        default_of("TrainingArguments", "recompute_every_block")


def test_what_trl_turns_on_and_trainer_does_not(tmp_path):
    """The objects themselves, on a CPU: recomputation and autocast."""
    transformers, trl = pytest.importorskip("transformers"), pytest.importorskip("trl")
    plain = transformers.TrainingArguments(output_dir=tmp_path, use_cpu=True)
    tuned = trl.SFTConfig(output_dir=tmp_path, use_cpu=True)
    assert not plain.bf16 and not plain.activation_checkpointing
    assert tuned.bf16 and tuned.activation_checkpointing
