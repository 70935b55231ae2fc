"""What README and CONTRIBUTING show is so: the code prints what stands under it, the table lists the chapters."""

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

from dev.minutes import row_minutes

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
CODE, OUTPUT = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL).groups()


def test_the_code_prints_what_stands_under_it():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(CODE, "README.md", "exec"), {"__name__": "__main__"})
    assert printed.getvalue() == OUTPUT


def test_the_table_lists_every_chapter_with_its_title_and_minutes():
    rows = re.findall(
        r"^\| \[(\d\d|[A-Z]) (.+?)\]\(chapters/(.+?)\) \| .+ \| ([\d +]+) \|$", README, re.MULTILINE
    )
    wanted = []
    for path in sorted((ROOT / "chapters").glob("*.ipynb")):
        first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
        number, title = re.match(r"# (\w+) · (.+)", first).groups()
        wanted.append(
            (
                f"{int(number):02d}" if number.isdigit() else number,
                title,
                path.name,
                row_minutes(path),
            )
        )
    assert rows == wanted, "if only minutes differ, run: python dev/minutes.py"


def test_every_place_where_something_is_decided_is_there():
    table = CONTRIBUTING.partition("| question |")[2]
    for name, path in re.findall(r"`(?:\w+\.)?(\w+)` in `([\w/]+\.py)`", table):
        assert re.search(
            rf"\b(def|class) {name}\b|^ +{name}:", (ROOT / path).read_text(), re.MULTILINE
        ), (name, path)


def test_every_relative_link_leads_somewhere():
    targets = [ROOT / link for link in re.findall(r"\]\(([^)\s#]+)", README) if "://" not in link]
    targets += [
        ROOT / ".github" / link
        for link in re.findall(r"\]\(([^)\s#]+)", CONTRIBUTING)
        if "://" not in link
    ]
    assert targets
    assert not [target for target in targets if not target.exists()]


def test_every_heading_that_it_links_to_is_there():
    lines = re.findall("^##(.+)", README, re.MULTILINE)
    # as GitHub does
    headings = [re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in lines]
    anchors = re.findall(r"\]\(#([^)]+)\)", README)
    assert anchors and set(anchors) <= set(headings)


def test_every_verb_it_names_is_in_the_makefile():
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", README + CONTRIBUTING))
    assert {"lab", "test"} <= named <= verbs


def test_every_command_it_names_is_one_of_stepscope_s():
    command = [sys.executable, "-m", "stepscope", "--help"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    commands = set(re.search(r"\{([\w,]+)\}", done.stdout)[1].split(","))
    assert set(re.findall(r"^stepscope (\w+) ", README, re.MULTILINE)) == commands
