"""The front doors: what ``from memkit import ...`` and ``from stepscope import ...`` offer, that they are light, that
each name shows how it is used, and that the second leaves the first as it is."""

import inspect
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import jedi
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import memkit
import stepscope

PACKAGES = (memkit, stepscope)
HEAVY = {"torch", "numpy", "matplotlib", "ipywidgets"}


def loaded_after(*statements: str) -> list[set[str]]:
    """The top-level packages that one fresh interpreter has loaded after each of the statements."""
    shown = "; print(*{name.partition('.')[0] for name in sys.modules})"
    program = "import sys\n" + "\n".join(statement + shown for statement in statements)
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return [set(line.split()) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "package, name",
    [
        pytest.param(package, name, id=f"{package.__name__}.{name}")
        for package in PACKAGES
        for name in package.__all__
    ],
)
def test_a_name_is_there_and_shows_how_it_is_used(package, name):
    value = getattr(package, name)
    if inspect.isfunction(value) or inspect.isclass(value):
        assert ">>> " in inspect.getdoc(value), f"{name} has no worked example"


def test_what_needs_no_torch_loads_nothing_heavy():
    statements = (
        "import memkit",
        "import stepscope",
        "from memkit import TrainingSetup, models, recipes, estimate_memory",
        "import book, book.claims",
        "import stepscope.allocator, stepscope.planner, stepscope.sharding, memkit.pictures",
        "from stepscope import Job, AdapterConfig, Layout, ExpertsConfig, estimate_sharded",
    )
    for statement, loaded in zip(statements, loaded_after(*statements), strict=True):
        assert not loaded & HEAVY, statement


@pytest.mark.parametrize(
    "statement, wanted",
    [
        ("from memkit import trace_memory", {"torch"}),
        ("from stepscope import trace_script", {"torch"}),
        ("from memkit.widgets import Panel", {"ipywidgets"}),
    ],
)
def test_a_name_loads_what_it_needs_and_no_more(statement, wanted):
    [loaded] = loaded_after(statement)
    assert wanted <= loaded & HEAVY <= wanted | {"numpy"}


def test_the_kit_never_loads_the_instrument():
    modules = [module.name for module in pkgutil.walk_packages(memkit.__path__, "memkit.")]
    for loaded in loaded_after(
        "import memkit", "from memkit import *", f"import {', '.join(modules)}"
    ):
        assert "memkit" in loaded and "stepscope" not in loaded


TABLES = """
import json, re, sys
if sys.argv[1:]:
    import stepscope
    from stepscope import *
    for room in sys.argv[1:]:
        __import__(room)
from memkit import models, recipes, strategies
from memkit.cards import CARDS
from memkit.formats.records import FORMATS
from memkit.widgets import BitExplorer, FrontierExplorer, MemoryExplorer
found = {"OPTIMIZERS": recipes.OPTIMIZERS, "IMPLEMENTATIONS": recipes.IMPLEMENTATIONS,
         "PRECISIONS": recipes.PRECISIONS, "PUBLISHED_MODELS": models.PUBLISHED_MODELS,
         "RECOMPUTATIONS": strategies.RECOMPUTATIONS, "CARDS": CARDS, "FORMATS": FORMATS}
for explorer in (MemoryExplorer, FrontierExplorer, BitExplorer):
    found[explorer.__name__] = explorer().controls
print(json.dumps({name: re.sub(" at 0x[0-9a-f]+", "", repr(value)) for name, value in found.items()}))
"""


def tables(*rooms: str) -> dict[str, str]:
    """The kit's tables and the menus of its explorers, as a fresh interpreter has them after these rooms."""
    command = [sys.executable, "-c", TABLES, *rooms]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_the_instrument_changes_none_of_the_kits_tables():
    before = tables()
    after = tables(*(room.name for room in pkgutil.iter_modules(stepscope.__path__, "stepscope.")))
    assert "SGD momentum" in before["OPTIMIZERS"] and "GPT-2 small" in before["MemoryExplorer"]
    assert "Lion" not in "".join(before.values()) and "A3B" not in "".join(before.values())
    for name, value in before.items():
        assert after[name] == value, name


def test_the_comparison_of_tables_can_fail(tmp_path, monkeypatch):
    (tmp_path / "adds_a_precision.py").write_text(
        "from memkit import recipes\nrecipes.PRECISIONS['mine'] = 1\n"
    )
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(map(str, (tmp_path, Path(memkit.__file__).parents[1])))
    )
    before, after = tables(), tables("adds_a_precision")
    assert before != after and {name for name in before if before[name] != after[name]} >= {
        "PRECISIONS"
    }


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
        ("memkit", "recipes", "memkit/recipes.py"),
        ("memkit.formats", "scale_to", "memkit/formats/blocks.py"),
        ("book", "doctor", "chapters/book/checkup.py"),
    ],
)
def test_an_editor_goes_from_a_name_to_its_source(package, name, file):
    root = Path(memkit.__file__).parents[1]
    line = f"from {package} import {name}"
    found = jedi.Script(line, project=jedi.Project(root)).goto(
        1, len(line), follow_imports=True, prefer_stubs=False
    )
    assert [source.module_path.relative_to(root).as_posix() for source in found] == [file]
