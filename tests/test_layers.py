"""The ladder: each package is read from the bottom, and a module imports only what was read before it.

``stepscope`` stands on ``memkit``, which never imports it, and the book on both.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KIT, INSTRUMENT, BOOK = ROOT / "memkit", ROOT / "stepscope", ROOT / "chapters" / "book"
PACKAGES = (KIT, INSTRUMENT)
TORCH = {"low_precision", "program", "tracing", "measure", "saved_tensors", "small_card", "tool"}
HEAVY = frozenset({"torch", "matplotlib", "ipywidgets"})


def reading_order(folder: Path) -> list[str]:
    """The modules and folders of a folder as its docstring lists them: lines ``- ``name``: what it holds``."""
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    _, _, listed = docstring.partition("Reading order")
    return re.findall(r"^- ``(\w+)``: \S", listed, re.MULTILINE)


def order_of(package: Path) -> tuple[str, ...]:
    """Every module in reading order, as each folder's docstring tells it; a folder stands before its own modules."""
    order = []
    for name in reading_order(package):
        order.append(name)
        if (package / name).is_dir():
            order += [f"{name}.{module}" for module in order_of(package / name)]
    return (*order, "__main__") if (package / "__main__.py").exists() else tuple(order)


EVERY_ROOM = [pytest.param(package, room, id=f"{package.name}.{room}") for package in PACKAGES
              for room in reading_order(package)]
each_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
each_room = pytest.mark.parametrize("package, room", EVERY_ROOM)

VAGUE = {"utils", "helpers", "common", "core", "misc"}


def modules_of(package: Path) -> dict[str, Path]:
    """Dotted name without the package's own → file; a folder's ``__init__.py`` has the folder's name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts:
            found[".".join(parts)] = path
    return found


def imports_of(path: Path, name: str, package: Path) -> set[str]:
    """Modules of ``package`` that the file imports anywhere, also inside a function."""
    known = modules_of(package)
    own_folder = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name.removeprefix(f"{package.name}.") for alias in node.names
                       if alias.name.startswith(f"{package.name}.")]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                folder = own_folder.split(".")[: len(own_folder.split(".")) - node.level + 1]
                base = ".".join(part for part in (*folder, node.module) if part)
            elif base == package.name or base.startswith(f"{package.name}."):
                base = base.removeprefix(package.name).removeprefix(".")
            else:
                continue
            targets = [f"{base}.{alias.name}".strip(".") for alias in node.names]
            targets = [target if target in known else base for target in targets]
        else:
            continue
        found |= {target for target in targets if target}
    return found


def order_problems(package: Path, order: tuple[str, ...]) -> list[str]:
    """Sentences about imports that climb, and about modules that have no place in ``order``."""
    problems = []
    for name, path in modules_of(package).items():
        if name not in order:
            problems.append(f"{name} has no place in ORDER")
            continue
        for target in sorted(imports_of(path, name, package)):
            if path.name == "__init__.py" and target.startswith(f"{name}."):
                continue  # a folder offers the names of its own modules
            if target not in order or order.index(target) >= order.index(name):
                problems.append(f"{name} imports {target}, which does not come before it")
    return problems


def heavy_libraries_loaded_by(modules: list[str], path: Path) -> set[str]:
    """Which of ``HEAVY`` a fresh interpreter has loaded after importing all ``modules``."""
    program = (
        f"import sys; sys.path.insert(0, {str(path)!r}); import {', '.join(modules)}; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return HEAVY & set(done.stdout.split())


def may_load(room: str) -> set[str]:
    """What a room's modules may load: a widget draws, a program runs."""
    return {"torch"} if room in TORCH else {"ipywidgets"} if room == "widgets" else set()


@each_package
def test_every_import_points_down(package):
    assert not order_problems(package, order_of(package))


def test_the_book_reads_upwards_too_and_no_package_imports_the_book():
    assert not order_problems(BOOK, order_of(BOOK))
    for package in PACKAGES:
        assert not outside_imports(package, "book") | outside_imports(package, "course")


def test_the_kit_never_imports_the_instrument():
    assert not outside_imports(KIT, "stepscope")


def outside_imports(package: Path, other: str) -> set[str]:
    """Modules of ``package`` that import the top-level package ``other`` anywhere."""
    climbing = set()
    for name, path in {"": package / "__init__.py", **modules_of(package)}.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None)]
            if any((target or "").split(".")[0] == other for target in named):
                climbing.add(name)
    return climbing


def test_the_check_sees_an_import_of_the_book(tmp_path):
    package = plant(tmp_path, low="import memkit", high="def later():\n    from book.claims import claim")
    assert outside_imports(package, "book") == {"high"}


@each_package
def test_every_module_of_the_order_exists(package):
    assert not set(order_of(package)) - set(modules_of(package)), "a docstring names modules that are not there"


@each_room
def test_a_room_loads_only_what_it_may(package, room):
    there = [f"{package.name}.{name}" for name in order_of(package) if name.split(".")[0] == room]
    loaded = heavy_libraries_loaded_by(there, package.parent)
    assert loaded <= may_load(room), f"{room} loads {', '.join(loaded - may_load(room))}"


def test_the_rules_of_low_precision_load_no_torch():
    """Formula, pictures and widgets use them; only the layer that follows them is torch's."""
    rules = ["memkit.low_precision", "memkit.low_precision.autocast", "memkit.low_precision.scaling"]
    assert heavy_libraries_loaded_by(rules, ROOT) == set()
    assert heavy_libraries_loaded_by(["memkit.low_precision.fp8"], ROOT) == {"torch"}


def test_no_name_is_vague():
    for package in (*PACKAGES, BOOK):
        vague = {module for module in modules_of(package) if VAGUE & set(module.split("."))}
        assert not vague, f"{vague} say nothing about their content"


def public_functions(package: Path) -> set[str]:
    """Names of the functions that stand at the top of a module and have no ``_`` in front."""
    return {
        node.name
        for path in package.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


def test_no_file_or_folder_carries_the_name_of_a_public_function():
    for package in (*PACKAGES, BOOK):
        files = {part for name in modules_of(package) for part in name.split(".")}
        assert not files & public_functions(package)


def plant(folder: Path, **sources: str) -> Path:
    """A package ``planted`` whose modules have these sources (``a__b`` is the file ``a/b.py``)."""
    package = folder / "planted"
    for name, source in {"__init__": "", **sources}.items():
        path = (
            package.joinpath(*name.split("__")).with_suffix(".py")
            if name != "__init__"
            else package / "__init__.py"
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
    assert order_problems(package, ("low", "high")) == ["low imports high, which does not come before it"]
    assert order_problems(package, ("high", "low")) == []


def test_the_check_sees_an_import_that_climbs_out_of_a_folder(tmp_path):
    package = plant(tmp_path, folder__low="from ..high import value", high="value = 1")
    assert order_problems(package, ("folder.low", "high")) == [
        "folder.low imports high, which does not come before it"
    ]


def test_the_check_sees_a_module_without_a_place(tmp_path):
    assert order_problems(plant(tmp_path, stray=""), ()) == ["stray has no place in ORDER"]


@pytest.mark.parametrize("library", sorted(HEAVY))
def test_the_check_sees_a_heavy_library(tmp_path, library):
    package = plant(tmp_path, low="from planted import deeper", deeper=f"import {library}")
    assert library in heavy_libraries_loaded_by(["planted.low"], package.parent)


SUMS = {("memkit",): 11_900, ("stepscope",): 11_800, ("memkit", "stepscope", "book"): 30_600, ("tests",): 27_700}
"""Lines of Python at most: today's, on the way down.

Who adds takes away, or raises a number in a commit that says for which reader."""


def lines_by_room(folder: str) -> dict[str, int]:
    """Lines of Python in each folder and each single module at the top of a folder, the largest first."""
    root, lines = ROOT / folder, {}
    for path in root.rglob("*.py"):
        room = f"{folder}/{path.relative_to(root).parts[0]}"
        lines[room] = lines.get(room, 0) + len(path.read_text(encoding="utf-8").splitlines())
    return dict(sorted(lines.items(), key=lambda item: -item[1]))


@pytest.mark.parametrize("folders", SUMS, ids=" and ".join)
def test_the_sums_of_lines(folders):
    rooms = {room: count for folder in folders for room, count in lines_by_room(folder).items()}
    total, most = sum(rooms.values()), SUMS[folders]
    listed = "\n".join(f"{count:7,} {room}" for room, count in sorted(rooms.items(), key=lambda item: -item[1])[:30])
    assert total <= most, f"{total:,} lines, {total - most:,} above {most:,}; the largest rooms:\n{listed}"


def test_the_nine_files_to_read_first_exist_and_take_a_day():
    text = (KIT / "__init__.py").read_text(encoding="utf-8")
    first = re.findall(r"^\d+\. ``(\S+)``: \S", text, re.MULTILINE)
    beside = re.findall(r"``(\w+/\w+\.py)``", text.partition("more are worth opening")[2])
    assert len(first) == 9 and beside
    lines = [len((KIT / path).read_text(encoding="utf-8").splitlines()) for path in first + beside]
    assert sum(lines[:9]) <= 3000 and sum(lines) <= 4000
