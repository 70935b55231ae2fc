"""What the README shows is so: its lines print what stands under them, its table lists the chapters."""

import contextlib
import io
import json
import re
from pathlib import Path

from scripts import readme_tree

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE, OUTPUT = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL).groups()


def test_the_code_prints_what_stands_under_it():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(CODE, "README.md", "exec"), {"__name__": "__main__"})
    assert printed.getvalue() == OUTPUT


def test_the_code_has_five_lines():
    assert len([line for line in CODE.splitlines() if line]) == 5


def test_the_tree_is_today_s():
    written = readme_tree.BLOCK.search(README)[0]
    assert written == readme_tree.tree(ROOT / "memkit"), "run: python scripts/readme_tree.py"


def test_the_tree_sees_a_line_that_is_gone(tmp_path):
    (tmp_path / "room").mkdir()
    (tmp_path / "__init__.py").write_text('"""P.\n\n- ``room``: what it holds\n"""\n')
    (tmp_path / "room" / "__init__.py").write_text("x = 1\n" * 249)
    assert readme_tree.tree(tmp_path).splitlines()[1] == "  room/               200  what it holds"


def test_the_table_lists_every_chapter_with_its_title_and_minutes():
    rows = re.findall(r"^\| \[(\d\d|[A-Z]) (.+?)\]\(chapters/(.+?)\) \| .+ \| (\d+) \|$", README, re.MULTILINE)
    wanted = []
    for path in sorted((ROOT / "chapters").glob("*.ipynb")):
        first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
        number, title = re.match(r"# (\w+) · (.+)", first).groups()
        minutes = re.search(r"(\d+) min", first)[1]
        wanted.append((f"{int(number):02d}" if number.isdigit() else number, title, path.name, minutes))
    assert rows == wanted


def test_every_relative_link_leads_somewhere():
    text = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    assert targets
    assert not [target for target in targets if not (ROOT / target.partition("#")[0]).exists()]


def test_every_verb_it_names_is_in_the_makefile():
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text()))
    assert {"lab", "test"} <= named <= verbs
