"""The front door: what ``from memkit import ...`` offers, that it is light, and that each name shows how it is used."""

import inspect
import subprocess
import sys
from pathlib import Path

import jedi
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import memkit

HEAVY = {"torch", "numpy", "matplotlib", "ipywidgets"}


def loaded_by(statement: str) -> set[str]:
    """Which of ``HEAVY`` a fresh interpreter has loaded after the statement."""
    program = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return HEAVY & set(done.stdout.split())


@pytest.mark.parametrize("name", memkit.__all__)
def test_a_name_is_there_and_shows_how_it_is_used(name):
    value = getattr(memkit, name)
    if inspect.isfunction(value) or inspect.isclass(value):
        assert ">>> " in inspect.getdoc(value), f"{name} has no worked example"


def test_about_forty_names():
    assert 30 <= len(memkit.__all__) <= 45


@pytest.mark.parametrize(
    "statement, wanted",
    [
        ("import memkit", set()),
        ("from memkit import TrainingSetup, models, recipes, estimate_memory", set()),
        ("import stepscope.allocator, memkit.tracing, memkit.widgets, book, book.claims", set()),
        ("from memkit import trace_memory", {"torch"}),
        ("from memkit.widgets import Panel", {"ipywidgets"}),
    ],
)
def test_a_name_loads_what_it_needs_and_no_more(statement, wanted):
    loaded = loaded_by(statement)
    assert wanted <= loaded and loaded - wanted <= ({"numpy"} if wanted else set())


def test_an_unknown_name_is_told_what_there_is():
    with pytest.raises(AttributeError, match=r"memkit has no 'estimate_memroy'.*estimate_memory"):
        memkit.estimate_memroy  # noqa: B018


@pytest.mark.parametrize(
    "typed, offered",
    [
        ("from memkit import estimate_m", "estimate_memory"),
        ("from stepscope.allocator import Cachi", "CachingAllocator"),
        ("memkit.trace_m", ".trace_memory"),
    ],
)
def test_tab_completes(typed, offered):
    completer = InteractiveShell.instance(user_ns={"memkit": memkit}).Completer
    with provisionalcompleter():
        texts = {completion.text for completion in completer.completions(typed, len(typed))}
    assert {offered, offered.lstrip(".")} & texts


@pytest.mark.parametrize(
    "package, name, file",
    [
        ("memkit", "estimate_memory", "memkit/formula/estimate.py"),
        ("memkit", "recipes", "memkit/setup/recipes.py"),
        ("memkit.low_precision", "convert_to_fp8", "memkit/low_precision/fp8_linear.py"),
        ("book", "doctor", "book/checkup.py"),
    ],
)
def test_an_editor_goes_from_a_name_to_its_source(package, name, file):
    root = Path(memkit.__file__).parents[1]
    line = f"from {package} import {name}"
    found = jedi.Script(line, project=jedi.Project(root)).goto(1, len(line), follow_imports=True, prefer_stubs=False)
    assert [source.module_path.relative_to(root).as_posix() for source in found] == [file]
