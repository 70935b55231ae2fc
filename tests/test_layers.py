"""The ladder: each package is read from the bottom, and a module imports only what was read before it.

``stepscope`` stands on ``memkit``, which never imports it, and the book on both. The order is what the docstrings of
packages and folders say. Every file is parsed once, and what a room loads is seen in two interpreters.
"""

import ast
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KIT, INSTRUMENT, BOOK = ROOT / "memkit", ROOT / "stepscope", ROOT / "chapters" / "book"
PACKAGES = (KIT, INSTRUMENT)
each_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
TORCH = {
    "low_precision",
    "program",
    "tracing",
    "measure",
    "by_hand",
    "small_card",
    "tool",
}
"""The rooms that run programs. ``widgets`` draws, with ipywidgets; the others load neither."""
HEAVY = ("torch", "matplotlib", "ipywidgets")


@cache
def modules_of(package: Path) -> dict[str, tuple[Path, ast.Module]]:
    """Dotted name without the package's own → its file, parsed; a folder's ``__init__.py`` has the folder's name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path, ast.parse(path.read_text(encoding="utf-8"))
    return found


def order_of(package: Path, folder: str = "") -> tuple[str, ...]:
    """Every module as the docstrings list them, lines ``- ``name``: what it holds``; a folder before its modules."""
    order = ("",) if not folder else ()
    listed = (ast.get_docstring(modules_of(package)[folder][1]) or "").partition("Reading order")[2]
    for name in re.findall(r"^- ``(\w+)``: \S", listed, re.MULTILINE):
        name = f"{folder}.{name}".strip(".")
        order += (name,)
        if (package / name.replace(".", "/")).is_dir():
            order += order_of(package, name)
    return (*order, "__main__") if not folder and "__main__" in modules_of(package) else order


def imports_of(package: Path, name: str) -> set[str]:
    """Absolute names of what a module imports anywhere, also inside a function, as it names it."""
    path, tree = modules_of(package)[name]
    here = [package.name, *filter(None, name.split("."))]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            up = node.level - (path.name == "__init__.py")
            base = [*(here[: len(here) - up] if node.level else ()), *filter(None, [node.module])]
            found |= {".".join([*base, alias.name]) for alias in node.names}
    return found


def own_imports(package: Path, name: str) -> set[str]:
    """Modules of the package that the module imports; a name out of one counts as that module."""
    known, found = modules_of(package), set()
    for target in imports_of(package, name):
        top, _, inside = target.partition(".")
        if top == package.name and target != package.name:
            found.add(inside if inside in known else inside.rpartition(".")[0])
    return found


def order_problems(package: Path, order: tuple[str, ...]) -> list[str]:
    """Sentences about imports that climb, and about modules that have no place in ``order`` or are not there."""
    known = modules_of(package)
    problems = [f"{name} is listed and not there" for name in order if name not in known]
    for name, (path, _) in known.items():
        if name not in order:
            problems.append(f"{name} has no place in a docstring")
            continue
        for target in sorted(own_imports(package, name)):
            if path.name == "__init__.py" and (not name or target.startswith(f"{name}.")):
                continue  # a folder offers the names of its own modules
            if target not in order or order.index(target) >= order.index(name):
                problems.append(f"{name} imports {target}, which does not come before it")
    return problems


def who_imports(package: Path, *others: str) -> set[str]:
    """Modules of ``package`` that import one of these top-level packages anywhere."""
    return {
        name
        for name in modules_of(package)
        if any(target.partition(".")[0] in others for target in imports_of(package, name))
    }


def loaded_after(modules: list[str], path: Path = ROOT) -> dict[str, list[str]]:
    """Which of ``HEAVY`` a fresh interpreter has loaded after each of ``modules``, imported one after the other."""
    program = (
        f"import importlib, json, sys; sys.path.insert(0, {str(path)!r})\n"
        f"for name in {modules!r}:\n    importlib.import_module(name)\n"
        f"    print(json.dumps([name, [heavy for heavy in {HEAVY!r} if heavy in sys.modules]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.parametrize("package", [*PACKAGES, BOOK], ids=lambda package: package.name)
def test_every_import_points_down_and_every_module_has_its_place(package):
    assert not order_problems(package, order_of(package))


def test_the_kit_never_imports_the_instrument_and_no_package_the_book():
    assert not who_imports(KIT, "stepscope")
    assert not who_imports(KIT, "book", "course") | who_imports(INSTRUMENT, "book", "course")


def test_a_room_loads_only_what_it_may():
    modules = [
        (name.partition(".")[0], f"{package.name}.{name}".rstrip("."))
        for package in PACKAGES
        for name in order_of(package)
        if name != "__main__"
    ]
    light = [name for room, name in modules if room not in TORCH and room != "widgets"]
    runs = [name for room, name in modules if room in TORCH]
    for name, loaded in loaded_after(light + runs).items():
        assert set(loaded) <= (set() if name in light else {"torch"}), name
    for name, loaded in loaded_after([name for room, name in modules if room == "widgets"]).items():
        assert set(loaded) <= {"ipywidgets"}, name


def plant(folder: Path, **sources: str) -> Path:
    """A package ``planted`` whose modules have these sources (``a__b`` is the file ``a/b.py``)."""
    package = folder / "planted"
    for name, source in {"__init__": "", **sources}.items():
        path = (
            package / "__init__.py"
            if name == "__init__"
            else package.joinpath(*name.split("__")).with_suffix(".py")
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return package


@pytest.mark.parametrize(
    "climbing",
    [
        "import planted.high",
        "from planted import high",
        "from planted.high import value",
        "from . import high",
        "from .high import value",
        "def later():\n    from planted.high import value\n    return value",
    ],
)
def test_the_check_sees_an_import_that_climbs(tmp_path, climbing):
    package = plant(tmp_path, low=climbing, high="value = 1")
    assert order_problems(package, ("", "low", "high")) == [
        "low imports high, which does not come before it"
    ]
    assert order_problems(package, ("", "high", "low")) == []


def test_the_check_sees_an_import_out_of_a_folder_a_stray_module_another_package_and_what_is_heavy(
    tmp_path,
):
    package = plant(
        tmp_path,
        folder__low="from ..high import value",
        high="from book.claims import claim",
        stray="",
    )
    assert order_problems(package, ("", "folder.low", "high", "gone")) == [
        "gone is listed and not there",
        "folder.low imports high, which does not come before it",
        "stray has no place in a docstring",
    ]
    assert who_imports(package, "book") == {"high"}
    package = plant(
        tmp_path / "heavy", low="from planted import deeper", deeper="import ipywidgets", none=""
    )
    assert loaded_after(["planted.none", "planted.low"], package.parent) == {
        "planted.none": [],
        "planted.low": ["ipywidgets"],
    }
