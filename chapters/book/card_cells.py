"""``make record``: run the chapters' cells that measure on this machine's card, and keep what each has printed.

A cell of a notebook asks ``torch.cuda.is_available()``, measures, and asserts that by hand, traced and measured agree.
Here each runs as it would in its notebook, after what it needs of it: the setup's imports, and the cells before it
that define the names it reads. A Python that has torch and little else is enough: what the setup imports from a library
that is missing is left out, and a cell that would need it says so.
"""

import argparse
import ast
import datetime
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from copy import copy
from functools import cache
from io import StringIO
from pathlib import Path
from symtable import symtable

import torch

from book.checkup import OLDEST_TORCH, version_numbers
from book.driver import ask_driver
from book.gpu_cap import cap_gpu, give_back
from book.recordings import FOLDER

CHAPTERS = FOLDER.parent


@cache
def code_cells(path: Path) -> list[dict]:
    """The cells of a notebook that hold code."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        cell | {"source": "".join(cell["source"])} for cell in cells if cell["cell_type"] == "code"
    ]


@cache
def card_cells() -> dict[str, Path]:
    """The notebook of each cell that asks for a card, by its chapter and its id.

    >>> card_cells()["01-card-moments"].name
    '01_memory_breakdown.ipynb'
    """
    folders = (CHAPTERS, CHAPTERS / "exercises", CHAPTERS / "further")
    paths = sorted((path for folder in folders for path in folder.glob("[0-9]*.ipynb")), key=str)
    return {
        f"{path.name[:2]}-{cell['id']}": path
        for path in sorted(paths, key=lambda path: path.name)
        for cell in code_cells(path)
        if "cuda.is_available()" in cell["source"]
    }


def names_in(source: str) -> tuple[set[str], set[str]]:
    """Names that the source defines, and names that it reads from outside its functions."""
    whole = symtable(source, "cell", "exec")
    names, inner = whole.get_symbols(), list(whole.get_children())
    defined = {name.get_name() for name in names if name.is_assigned() or name.is_imported()}
    read = {name.get_name() for name in names if name.is_referenced()}
    while inner:
        table = inner.pop()
        inner += table.get_children()
        read |= {name.get_name() for name in table.get_symbols() if name.is_global()}
    return defined, read


def run(source: str | ast.Module, names: dict[str, object]) -> None:
    """Run a cell of the book."""
    exec(compile(source, "a cell", "exec"), names)  # noqa: S102 - the book's own cells


def _one_by_one(source: str) -> Iterator[ast.stmt]:
    """The statements of a cell; what one line imports from a module, name by name."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ImportFrom):
            home, level = statement.module, statement.level
            for alias in statement.names:
                yield ast.copy_location(ast.ImportFrom(home, [alias], level), statement)
        else:
            yield statement


def run_what_can(source: str, names: dict[str, object], missing: set[str]) -> None:
    """Run a cell but for what needs a library that is missing, whose names join ``missing``."""
    for statement in _one_by_one(source):
        try:
            run(ast.Module([statement], []), names)
        except (ModuleNotFoundError, NameError) as error:
            if isinstance(error, NameError) and error.name not in missing:
                raise
            missing |= names_in(ast.unparse(statement))[0]


@cache
def after_setup(path: Path) -> tuple[dict[str, object], set[str]]:
    """The names that a notebook has after its cells tagged ``setup``, and those that missing libraries would bring."""
    names, missing = {"__name__": "__main__", "display": print}, set()
    for cell in code_cells(path):
        if "setup" in cell["metadata"].get("tags", []):
            run_what_can(cell["source"], names, missing)
    return names, missing


def needed_by(path: Path, cell_id: str) -> list[dict]:
    """Cells before this one that define what it reads, or what those read, in order; those of the setup left out.

    A name is that of the last cell before its reader; a function may also read what a later cell defines.
    """
    cells, there = code_cells(path), set().union(*after_setup(path))
    told = [names_in(cell["source"]) for cell in cells]
    at = [cell["id"] for cell in cells].index(cell_id)
    makers = [k for k in range(at) if "setup" not in cells[k]["metadata"].get("tags", [])]
    needed, waiting = set(), [at]
    while waiting:
        reader = waiting.pop()
        defined, read = told[reader]
        for name in read - defined - there:
            found = [k for k in makers if name in told[k][0]]
            found = [k for k in found if k < reader] or found
            if found and found[-1] not in needed:
                needed.add(found[-1])
                waiting.append(found[-1])
    return [cells[k] for k in sorted(needed)]


def names_before(path: Path, cell_id: str) -> dict[str, object]:
    """The names of a notebook when it comes to a cell, as far as the cell needs them."""
    names, missing = map(copy, after_setup(path))
    with redirect_stdout(StringIO()):
        for cell in needed_by(path, cell_id):
            run_what_can(cell["source"], names, missing)
    return names


def printed_by(source: str, names: dict[str, object]) -> str:
    """What a cell prints that runs with these names. Raises: whatever the cell raises."""
    printed = StringIO()
    with redirect_stdout(printed):
        run(source, names)
    return printed.getvalue()


def record(cells: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """What each of these cells prints, and a line for each that fails."""
    printed, problems = {}, []
    for name in cells:
        path, cell_id = card_cells()[name], name[3:]
        [source] = [cell["source"] for cell in code_cells(path) if cell["id"] == cell_id]
        give_back()
        try:
            printed[name] = printed_by(source, names_before(path, cell_id))
        except Exception as error:  # noqa: BLE001 (one that fails must not cost the others)
            problems.append(f"{name}: {type(error).__name__}: {error}")
            continue
        print(f"{name}\n{printed[name]}", flush=True)
    return printed, problems


def provenance() -> dict[str, str]:
    """Card, driver, versions, date and commit of what is measured now."""
    gpus, command = ask_driver().gpus, ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
        )
        commit = done.stdout.strip()
    except OSError:
        commit = ""
    return {
        "card": torch.cuda.get_device_name(),
        "driver": gpus[0].driver_version if gpus else "unknown",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "commit": commit or "unknown",
    }


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 0, 1 if a cell failed, 2 if this machine cannot measure."""
    parser = argparse.ArgumentParser(prog="python -m book.card_cells", description=__doc__)
    parser.add_argument("cells", nargs="*", help="such as 01-card-moments: run these, keep nothing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write")
    options = parser.parse_args(arguments)
    if unknown := set(options.cells) - card_cells().keys():
        parser.error(f"no such cell: {', '.join(unknown)}; there are {', '.join(card_cells())}")
    if not torch.cuda.is_available():
        print("make record needs a CUDA card, and torch sees none here.", file=sys.stderr)
        return 2
    if version_numbers(torch.__version__) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        print(
            f"make record needs torch {oldest} or later, not {torch.__version__}.", file=sys.stderr
        )
        return 2
    cap_gpu()
    printed, problems = record(options.cells or card_cells())
    if printed and not options.cells:
        about = provenance()
        slug = re.sub(r"[^a-z0-9]+", "-", about["card"].lower()).strip("-")
        options.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"about": about, "printed": printed}, indent=1, ensure_ascii=False)
        (options.folder / f"card_{slug}.json").write_text(text + "\n", encoding="utf-8")
    print(*problems, sep="\n", file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
