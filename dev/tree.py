"""Write the trees of both packages' rooms, with their sizes, into .github/CONTRIBUTING.md: ``python dev/tree.py``."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(?<=```text\n)memkit/ .*?(?=```)", re.DOTALL)


def num_lines(*paths: Path) -> int:
    """Lines of all Python files at or under these paths."""
    files = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def tree(package: Path) -> str:
    """A line a room: its name, its lines to the nearest hundred, and what the package's docstring says of it."""
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    rows = [(f"{package.name}/", package, "")]
    for room, what in re.findall(r"^- ``(\w+)``: (.+)$", docstring, re.MULTILINE):
        path = package / room if (package / room).is_dir() else package / f"{room}.py"
        rows.append((f"  {path.name}{'/' if path.is_dir() else ''}", path, what))
    return "".join(
        f"{name:<18}{round(num_lines(path), -2):>7,}  {what}".rstrip() + "\n" for name, path, what in rows
    )


if __name__ == "__main__":
    page = ROOT / ".github" / "CONTRIBUTING.md"
    trees = "".join(tree(ROOT / name) for name in ("memkit", "stepscope"))
    text, count = BLOCK.subn(trees, page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")
    sys.exit(count != 1)
