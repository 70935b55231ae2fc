"""``functions_run`` of ``tests/kit_alone``: a notebook runs again if something that it runs has changed, only then."""

import importlib.util
import os
import subprocess
import sys

import pytest
from lab_server import ROOT

LESSON = "chapters/01_lesson.ipynb"
KIT = '''"""A kit."""

FACTOR = 2


def doubled(x):
    """Twice."""

    def inner():
        return FACTOR * x

    return inner()


def unused(x):
    return x


class Table:
    @property
    def size(self):
        return 1
'''


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A small book of one notebook, which has run; and the module, looking there."""
    place = ROOT / "tests/kit_alone/functions_run.py"
    spec = importlib.util.spec_from_file_location("functions_run_of_a_test", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for folder in ("memkit", "chapters/book", "dev"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "memkit/__init__.py").write_text(KIT)
    (tmp_path / "memkit/other.py").write_text("NUMBER = 7\n")
    (tmp_path / "memkit/cards.csv").write_text("name\n")
    (tmp_path / LESSON).write_text("{}")
    (tmp_path / "functions_run.json").write_text('{"digests": {}, "functions": {}}')
    packages = {"memkit": tmp_path / "memkit", "book": tmp_path / "chapters/book"}
    changes = {"ROOT": tmp_path, "NOTED": tmp_path / "noted", "PACKAGES": packages}
    for name, value in {**changes, "STORED": tmp_path / "functions_run.json"}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setenv(module.FILE, "")  # the hook sets it for the kernels that follow
    module.pytest_runtest_setup(type("Item", (), {"path": tmp_path / LESSON}))
    run(tmp_path, os.environ[module.FILE])
    return module


def run(folder, file, code="import memkit; memkit.doubled(3); memkit.Table().size"):
    """A kernel of that book."""
    words = "import sys; sys.path[:0] = sys.argv[1:3]; import functions_run; functions_run.note_functions(); "
    arguments = [sys.executable, "-c", words + code, str(ROOT / "tests/kit_alone"), str(folder)]
    environment = os.environ | {"MEMKIT_FUNCTIONS_RUN": file}
    return subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True)


def test_what_ran_is_what_was_called(tree):
    names = ["memkit", "memkit:Table.size", "memkit:doubled", "memkit:doubled.inner"]
    assert tree.noted() == {LESSON: names}


def test_only_what_it_runs_has_it_run_again(tree, capsys):
    def has_to_run(path="", old="", new="") -> bool:
        if path:
            file = tree.ROOT / path
            text = file.read_text()
            assert old in text
            file.write_text(text.replace(old, new))
        tree.main("changed", LESSON)
        if path:
            file.write_text(text)
        return capsys.readouterr().out == f"{LESSON}\n"

    assert has_to_run()  # nothing is stored
    tree.main("store")
    assert not has_to_run()
    assert not has_to_run("memkit/__init__.py", "    return x\n", "    return x + 1\n")
    assert not has_to_run("memkit/other.py", "7", "8")
    for old, new in {
        "return FACTOR * x": "return FACTOR + x",  # a function inside one
        "return 1": "return 2",  # a property
        "FACTOR = 2": "FACTOR = 3",  # a line of no function
    }.items():
        assert has_to_run("memkit/__init__.py", old, new)
    assert has_to_run(LESSON, "{}", "{ }") and has_to_run("memkit/cards.csv", "name", "names")


def test_several_are_a_word_each_of_one_line(tree, capsys):
    """``make test`` hands what is printed on as a variable's value, in which a line's end would end the command."""
    other = LESSON.replace("01", "02")
    (tree.ROOT / other).write_text("{}")
    tree.main("changed", LESSON, other)
    assert capsys.readouterr().out == f"{LESSON} {other}\n"


def test_a_function_that_the_file_does_not_know_is_said(tree, capsys):
    tree.main("store")
    assert tree.main("check") == 0
    noted = tree.NOTED / LESSON.replace("/", "%")
    run(tree.ROOT, str(noted), "import memkit; memkit.unused(1)")
    assert tree.main("check") == 1
    told = f"{LESSON} runs what functions_run.json does not know: memkit:unused\n"
    assert capsys.readouterr().out == told


def test_a_program_that_is_noted_prints_what_it_prints_without(tree):
    code = (
        "import memkit, inspect; print(inspect.getsource(memkit.doubled), memkit.doubled.__doc__)"
    )
    printed = run(tree.ROOT, str(tree.ROOT / "file"), code).stdout
    assert printed == KIT[KIT.index("def doubled") : KIT.index("\n\n\ndef unused")] + "\n Twice.\n"
