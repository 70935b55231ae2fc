"""Which functions of ``memkit`` and ``book`` each notebook of Part I runs, so that ``make test`` runs it again when one
of them has changed.

- In a kernel ``Noting`` is a finder that imports the two packages with one expression more at the start of every
  function, which notes its name in a file, the first time. It is there where ``FILE`` is in the environment.
- In pytest this module is a plugin (``-p functions_run``), which names that file before a notebook's kernel starts.
- ``functions_run.json`` has for each notebook what it ran, and a digest of all that its outputs hang on: the source of
  these functions, the modules around them, data, cells, outputs and pinned versions.

``python tests/kit_alone/functions_run.py changed NOTEBOOK ...`` prints those that have to run again; ``check`` says
whether the last run of all ran a function that is not in the file, and ``store`` writes it.

PYTEST_DONT_REWRITE: pytest finds it loaded by ``sitecustomize`` already.
"""

import ast
import builtins
import hashlib
import json
import os
import sys
from collections import defaultdict
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

FILE = "MEMKIT_FUNCTIONS_RUN"
ROOT = Path(__file__).resolve().parents[2]
STORED, NOTED = Path(__file__).with_suffix(".json"), ROOT / "artefacts" / "functions_run"
PACKAGES = {"memkit": ROOT / "memkit", "book": ROOT / "chapters" / "book"}
DATA = (
    "memkit/**/*.csv",
    "memkit/**/*.js",
    "chapters/book/*.*",
    "chapters/*.toml",
    "chapters/recordings/*",
    "dev/constraints.txt",
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
"""A function's decorators and arguments belong to it; a lambda to what it stands in."""


class FirstCalls(dict):
    """Writes each name that it is asked for into a file, once."""

    def __init__(self, path: str):
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __missing__(self, name: str) -> None:
        os.write(self.descriptor, f"{name}\n".encode())  # at once, for a kernel may be killed
        self[name] = None


def functions_of(tree: ast.AST, prefix: str) -> dict[str, list[ast.AST]]:
    """Every function of a module by its name there, those of one name (a property's, ``singledispatch``'s) together."""
    found = {}
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}{node.name}." if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else prefix
        if isinstance(node, FUNCTIONS):
            found.setdefault(name[:-1], []).append(node)
        for inner, nodes in functions_of(node, name).items():
            found.setdefault(inner, []).extend(nodes)
    return found


class Loader(SourceFileLoader):
    """Compiles a module whose functions say that they run; no compiled file is read or written."""

    def get_code(self, fullname: str):
        builtins._first_calls_[fullname]
        tree = ast.parse(self.get_data(self.path), self.path)
        for name, nodes in functions_of(tree, f"{fullname}:").items():
            for node in nodes:
                note = ast.parse(f"_first_calls_[{name!r}]").body[0]
                start = node.body[ast.get_docstring(node) is not None :] or node.body
                for each in ast.walk(note):
                    ast.copy_location(each, start[0])
                node.body.insert(len(node.body) - len(start), note)
        return compile(tree, self.path, "exec", dont_inherit=True)


class Noting(PathFinder):
    """Finds what the path finder finds; the modules of ``PACKAGES`` are loaded by ``Loader``."""

    @classmethod
    def find_spec(cls, fullname: str, path=None, target=None):
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        spec = super().find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(fullname, spec.origin)
        return spec


def note_functions() -> None:
    """From now on in this process, and in those that it starts; nothing where nobody has asked for it."""
    if path := os.environ.get(FILE):
        builtins._first_calls_ = FirstCalls(path)
        sys.meta_path.insert(0, Noting)


def pytest_runtest_setup(item) -> None:
    """A plugin's hook: called before pytest sets up a notebook's first cell, and with it the kernel."""
    NOTED.mkdir(parents=True, exist_ok=True)
    os.environ[FILE] = str(NOTED / item.path.relative_to(ROOT).as_posix().replace("/", "%"))


def noted() -> dict[str, list[str]]:
    """The functions that each notebook has run."""
    return {
        file.name.replace("%", "/"): sorted(set(file.read_text(encoding="utf-8").split()))
        for file in sorted(NOTED.glob("*.ipynb"))
    }


def sources() -> dict[str, str]:
    """Every function's lines by its name; under a module's own name the lines of no function."""
    texts = {}
    for package, folder in PACKAGES.items():
        for file in folder.rglob("*.py"):
            parts = (package, *file.relative_to(folder).with_suffix("").parts)
            module = ".".join(part for part in parts if part != "__init__")
            lines, inside = file.read_text(encoding="utf-8").splitlines(), set()
            for name, nodes in functions_of(ast.parse("\n".join(lines)), f"{module}:").items():
                own = [
                    number for node in nodes for number in range(node.lineno - 1, node.end_lineno)
                ]
                texts[name] = "\n".join(lines[number] for number in own)
                inside.update(own)
            texts[module] = "\n".join(x for number, x in enumerate(lines) if number not in inside)
    return texts


def digest(notebook: str, functions: list[str], texts: dict[str, str]) -> str:
    """Of all that the notebook's outputs hang on."""
    modules = {name.partition(":")[0] for name in functions}
    files = sorted(path for pattern in DATA for path in ROOT.glob(pattern) if path.suffix != ".py")
    found = hashlib.sha256()
    for text in (texts.get(name, "") for name in sorted({*functions, *modules})):
        found.update(text.encode())
    for path in (ROOT / notebook, *files):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def stored() -> dict[str, dict]:
    """Digest and functions of each notebook, as ``store`` has left them."""
    table = json.loads(STORED.read_text(encoding="utf-8"))
    ran = {name: {"digest": found, "functions": []} for name, found in table["digests"].items()}
    for function, numbers in table["functions"].items():
        for number in numbers:
            ran[list(ran)[number]]["functions"].append(function)
    return ran


def store(ran: dict[str, list[str]]) -> None:
    """Write digests, and for each function the numbers of the notebooks that run it."""
    texts, numbers = sources(), defaultdict(list)
    digests = {name: digest(name, ran[name], texts) for name in sorted(ran)}
    for number, name in enumerate(digests):
        for function in ran[name]:
            numbers[function].append(number)
    rows = [f"{json.dumps(name)}: {json.dumps(numbers[name])}" for name in sorted(numbers)]
    text = f'{{"digests": {json.dumps(digests, indent=0)},\n"functions": {{\n'
    STORED.write_text(text + ",\n".join(rows) + "\n}}\n", encoding="utf-8")


def main(command: str, *notebooks: str) -> int:
    """The command line."""
    known, ran = stored(), noted()
    if command == "changed":
        texts = sources()
        none = {"digest": "", "functions": []}
        own = {name: known.get(name, none) for name in notebooks}
        # on one line, for make hands them on as the value of a variable
        print(*(n for n in own if digest(n, own[n]["functions"], texts) != own[n]["digest"]))
        return 0
    if command == "store":
        store({name: each["functions"] for name, each in known.items()} | ran)
        return 0
    unknown = {
        name: sorted(set(ran[name]) - set(known.get(name, {"functions": ()})["functions"]))
        for name in ran
    }
    for name, functions in unknown.items():
        if functions:
            print(f"{name} runs what {STORED.name} does not know: {', '.join(functions)}")
    return int(any(unknown.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
