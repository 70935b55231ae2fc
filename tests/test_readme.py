"""What README, CONTRIBUTING and their pages show is so: the code prints what stands under it, the table is whole."""

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
STEPSCOPE = (ROOT / "stepscope" / "README.md").read_text(encoding="utf-8")
CODE, OUTPUT = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", STEPSCOPE, re.DOTALL).groups()
PAGES = ("README.md", "stepscope/README.md", "dev/MACHINES.md", "dev/NUMBERS.md")
PAGES += (
    ".github/CONTRIBUTING.md",
    "course/MONDAY.md",
    "course/GUIDE.md",
    "course/hub/README.md",
    "course/hub/TLJH.md",
    "course/hub/KUBERNETES.md",
)


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


def test_every_name_that_is_said_to_stand_in_a_file_stands_there():
    named = re.findall(r"`(?:\w+\.)?(\w+)` (?:in|of) `([\w/]+\.py)`", CONTRIBUTING)
    assert len(named) > 30
    for name, path in named:
        made = rf"^ *(?:def |class |(?:\w+, )*){name}\b.*[=:(]"
        assert re.search(made, (ROOT / path).read_text(), re.MULTILINE), (name, path)


def test_every_relative_link_leads_somewhere():
    targets = [
        (ROOT / page).parent / link
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s#]+)", (ROOT / page).read_text(encoding="utf-8"))
        if "://" not in link
    ]
    assert len(targets) > 50
    assert not [target for target in targets if not target.exists()]


def test_every_heading_that_it_links_to_is_there():
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        lines = re.findall("^##*(.+)", text, re.MULTILINE)
        # as GitHub does
        headings = [
            re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in lines
        ]
        assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= set(headings), page


def test_every_verb_it_names_is_in_the_makefile():
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = ((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", "\n".join(texts), re.MULTILINE))
    assert {"lab", "test"} <= named <= verbs


def test_the_readme_is_short_and_its_first_numbers_are_the_pages_own():
    """All that is read, tables too; the three figures are those of dev/NUMBERS.md, which tests hold."""
    assert len(re.findall(r"\S*\w\S*", re.sub(r"\]\(.*?\)", "]", README))) <= 800
    numbers = (ROOT / "dev" / "NUMBERS.md").read_text(encoding="utf-8")
    worst = re.search(r"Convolutional networks are .*?\)\)\.", numbers)[0]
    assert worst.replace("](../", "](") in README
    published, within, more, within_more = re.search(
        r"Of (\d+) training runs .*?, (\d+) are .*?; of (\d+) more .*?, (\d+)\.", README
    ).groups()
    assert f"peaks of {published} training runs" in numbers and f"predicts {within} of" in numbers
    series = (ROOT / "chapters" / "06_fp8_training.ipynb").read_text(encoding="utf-8")
    assert "87.2 GiB to 13.6 GiB" in series and "from 87.2 to 13.6 GiB" in README
    assert f"Another {more} runs" in numbers and f"{within_more} of them within 1 %" in numbers


def test_every_command_it_names_is_one_of_stepscope_s():
    command = [sys.executable, "-m", "stepscope", "--help"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    commands = set(re.search(r"\{([\w,]+)\}", done.stdout)[1].split(","))
    assert set(re.findall(r"^stepscope (\w+) ", STEPSCOPE, re.MULTILINE)) == commands
