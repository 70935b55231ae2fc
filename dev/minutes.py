"""The minutes of every chapter, computed and written: into titles, into headings of sections, into README's table.

A rule and no measurement. Text is read at 200 words a minute. Code is read, run and compared with what it prints at 5
lines a minute: that is what the 146 and 133 minutes leave for it in which chapters 02 and 04 were worked through. An
experiment with a widget takes 2 minutes, an exercise what its header says. Not counted is what a reader may leave out:
what is folded, what stands under *Further*, and an exercise whose header ends in *optional*. A title has the minutes of
its own notebook; README's table has those of a lesson and of all its exercises.
`tests/book/test_notebooks_policy.py` compares.
"""

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from dev.notebooks import family_of, kind_of, notebooks

ROOT = Path(__file__).parent.parent
WORDS_A_MINUTE, LINES_A_MINUTE, MINUTES_AN_EXPERIMENT = 200, 5, 2
SECTION = re.compile(r"^## (.+?) \((\d+) minutes?\)$", re.MULTILINE)
TITLE = re.compile(
    r"^\*\d+ minutes(?: to read and run, \d+ of exercises| of exercises)?(?: · half of them are exercises)?",
    re.MULTILINE,
)
EXERCISE = re.compile(r"^\*\*Exercise .* · (\d+) min · (.+)", re.MULTILINE)


def minutes_of(text: str, is_code: bool) -> float:
    """Minutes for a cell or a part of one, without what its exercise asks for."""
    if is_code:
        return sum(bool(line.strip()) for line in text.splitlines()) / LINES_A_MINUTE
    shown = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    experiments = len(re.findall(r"^\d\. ", shown, re.MULTILINE)) if "xperiments" in shown else 0
    return len(shown.split()) / WORDS_A_MINUTE + MINUTES_AN_EXPERIMENT * experiments


def parts_of(notebook: dict):
    """(text, is code) of what a reader works through, cut at every heading of level 2; what is folded aside."""
    is_further = False
    for cell in notebook["cells"]:
        text, is_exercise = "".join(cell["source"]), cell["id"].startswith("ex-")
        is_folded = cell["metadata"].get("jupyter", {}).get("source_hidden", False)
        if cell["cell_type"] == "code":
            yield ("" if is_exercise or is_folded or is_further else text), True
        elif not cell["id"].endswith(("-hints", "-solution")):
            for part in re.split(r"^(?=## )", text, flags=re.MULTILINE):
                if part.startswith("## "):
                    is_further = part.startswith("## Further")
                yield ("" if is_further else part), False


def chapter_minutes(notebook: dict) -> tuple[int, int]:
    """Minutes to read and run a chapter, and of its exercises, each to the nearest five."""
    reading = sum(minutes_of(text, is_code) for text, is_code in parts_of(notebook))
    return max(5, 5 * round(reading / 5)), 5 * round(exercise_minutes(notebook) / 5)


def exercise_minutes(notebook: dict) -> int:
    """What the headers of a notebook's exercises say, together."""
    headers = [
        match
        for text, is_code in parts_of(notebook)
        if not is_code
        for match in EXERCISE.finditer(text)
    ]
    return sum(int(match[1]) for match in headers if not match[2].rstrip().endswith("optional"))


def title_minutes(notebook: dict) -> str:
    """The minutes as a title has them."""
    reading, exercises = chapter_minutes(notebook)
    if " · Exercises: " in "".join(notebook["cells"][0]["source"]).partition("\n")[0]:
        return f"{exercises} minutes of exercises"
    return (
        f"{reading} minutes to read and run, {exercises} of exercises"
        if exercises
        else f"{reading} minutes"
    )


def section_minutes(notebook: dict) -> dict[str, int]:
    """Heading of a section that names minutes → minutes of what stands under it."""
    found, heading = {}, None
    for text, is_code in parts_of(notebook):
        if not is_code and text.startswith("## "):
            heading = SECTION.match(text)
        if heading:
            found[heading[1]] = found.get(heading[1], 0) + minutes_of(text, is_code)
    return {name: max(2, round(minutes)) for name, minutes in found.items()}


def with_minutes(notebook: dict) -> dict:
    """The notebook with the minutes of its title and of its sections as computed."""
    sections, cells = section_minutes(notebook), []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text = SECTION.sub(lambda m: f"## {m[1]} ({sections[m[1]]} minutes)", text)
            text = TITLE.sub(f"*{title_minutes(notebook)}", text) if not cells else text
        cells.append(cell | {"source": text.splitlines(keepends=True)})
    return notebook | {"cells": cells}


def row_minutes(path: Path) -> str:
    """The minutes of a chapter as README's table has them: its reading, and its exercises wherever they stand."""
    family = [json.loads(member.read_text(encoding="utf-8")) for member in family_of(path)]
    reading, exercises = (
        chapter_minutes(family[0])[0],
        5 * round(sum(map(exercise_minutes, family)) / 5),
    )
    return f"{reading} + {exercises}" if exercises else f"{reading}"


if __name__ == "__main__":
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in notebooks():
        notebook = with_minutes(json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for path in (path for path in notebooks() if not kind_of(path)):
        row = re.compile(
            rf"(\(chapters/{path.name}\) \| .+ \| )\d+(?: \+ \d+)?( \|)$", re.MULTILINE
        )
        readme = row.sub(rf"\g<1>{row_minutes(path)}\2", readme)
    (ROOT / "README.md").write_text(readme, encoding="utf-8")
