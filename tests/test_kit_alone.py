"""The kit stands alone: neither it nor a test of it needs ``stepscope``, and the notebook stage runs chapters so."""

import ast
import os
import re
import subprocess
import sys

import pytest
from lab_server import ROOT

from dev.notebooks import PART_ONE, notebooks

KIT, TESTS = ROOT / "memkit", ROOT / "tests" / "memkit"
OF_THE_INSTRUMENT = re.compile(r"stepscope(\.\w+)+(:\w+)?")
"""A module's name as text, as ``import_module`` or ``monkeypatch`` takes it."""
FOLDER = "tests/kit_alone"
"""On ``PYTHONPATH`` it leaves a Python without the instrument."""


def names_stepscope(source: str) -> list[int]:
    """Lines of code that import it, or hold the name of one of its modules as text; docstrings may speak of it."""
    lines, tree = [], ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                named = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                named = [module]
            case ast.Constant(value=str(text)) if id(
                node
            ) not in docstrings and OF_THE_INSTRUMENT.fullmatch(text):
                named = [text]
            case _:
                continue
        lines += [node.lineno for name in named if name.split(".")[0] == "stepscope"]
    return lines


@pytest.mark.parametrize("folder", [KIT, TESTS], ids=["memkit", "tests/memkit"])
def test_it_never_names_the_instrument(folder):
    found = {
        path.relative_to(ROOT).as_posix(): names_stepscope(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.py"))
    }
    assert found and {path: lines for path, lines in found.items() if lines} == {}


def test_a_test_of_the_kit_does_not_even_speak_of_it():
    assert [
        path.name for path in TESTS.rglob("*.py") if "stepscope" in path.read_text(encoding="utf-8")
    ] == []


@pytest.mark.parametrize(
    "source",
    [
        "import stepscope",
        "import os, stepscope.setup as s",
        "from stepscope import Job",
        "from stepscope.setup import Job",
        "def later():\n    from stepscope import Job",
        "importlib.import_module('stepscope.setup')",
        "monkeypatch.setattr('stepscope.tracing.card.CARD', 1)",
        "Optimizer(made_by='stepscope.program.job:Lion')",
    ],
)
def test_the_check_sees_each_way_to_name_it(source):
    assert names_stepscope(source) == [source.count("\n") + 1]


def test_the_check_lets_a_sentence_pass():
    source = '"""``stepscope.trace_script`` does more."""\nraise ValueError("use stepscope.job_build(job)")'
    assert names_stepscope(source) == []


def without_the_instrument() -> dict[str, str]:
    """The environment of such a Python."""
    paths = [str(ROOT / FOLDER), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}


def run_without_the_instrument(program: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=without_the_instrument(),
        check=False,
        capture_output=True,
        text=True,
    )


def test_its_tests_and_their_helpers_are_collected_where_there_is_no_instrument():
    done = run_without_the_instrument(
        "import pytest; raise SystemExit(pytest.main(['-q', '--collect-only', 'tests/memkit']))"
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"^\d{4} tests collected", done.stdout, re.MULTILINE)


def test_the_hook_refuses_it():
    done = run_without_the_instrument(
        "import memkit; from memkit import trace_memory; import stepscope"
    )
    assert done.returncode == 1 and "a Python without stepscope" in done.stderr


def test_the_notebook_stage_runs_chapters_00_to_06_so():
    """``tests/book/test_part_one.py`` begins each of them without the instrument."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for verb, words in (("test", "lessons PART_ONE="), ("sweep", "lessons\n")):
        recipe = makefile.partition(f"\n{verb}:")[2].partition("\n\n")[0]
        assert f"$(MAKE) --no-print-directory {words}" in recipe
    _, _, stage = makefile.partition("\nlessons:")
    assert f"PYTHONPATH=$(CURDIR)/{FOLDER}" in stage.partition("\n\n")[0]
    assert "$(COMPARE) -p functions_run $(PART_ONE)" in stage.partition("\n\n")[0]
    shown = subprocess.run(
        ["make", "--silent", "--eval", "shown: ; @echo $(PART_ONE)", "shown"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    wanted = [path for path in notebooks() if path.name[:2] in PART_ONE]
    assert sorted(shown.stdout.split()) == sorted(
        path.relative_to(ROOT).as_posix() for path in wanted
    )
