"""What the instructor's guide says that the book knows better: minutes, goals, figures, wrong answers.

``python course/guide.py`` writes the tables of ``course/GUIDE.md`` and ``course/WRONG_ANSWERS.md`` anew.
"""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "chapters"), str(ROOT / "dev"), str(ROOT / "tests")]

from minutes import EXERCISE, section_minutes

from book.exercises import Exercise, JudgedExercise, exercises_of
from course.labs import NAMES, load_lab
from dev.notebooks import family_of, kind_of, place_of

GUIDE, ANSWERS = ROOT / "course" / "GUIDE.md", ROOT / "course" / "WRONG_ANSWERS.md"
CHAPTERS = {
    int(path.name[:2]): path for path in sorted((ROOT / "chapters").glob("[0-9][0-9]_*.ipynb"))
}
HEADING = re.compile(r"^## (.+?)(?: \(\d+ minutes?\))?$", re.MULTILINE)
BLOCK = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
LONG = 200  # characters of a wrong answer, above which it is shown by what differs from a right one
SYLLABI = {
    "workshop": ("0.1", "0.2", "1.1", "1.2", "1.3", "ex 1.a", "9.1"),
    "halfday": (
        "0.1",
        "0.2",
        "1.1",
        "1.2",
        "1.3",
        "ex 1.a",
        "1.4",
        "2.1",
        "2.2",
        "3.1",
        "3.2",
        "ex 3.1",
        "4.1",
        "4.2",
        "4.3",
        "ex 4.2",
        "5.1",
        "5.2",
        "5.3",
        "ex 5.2",
        "7.1",
        "7.4",
        "ex 7.2",
    ),
}
"""What two syllabi go through, in order: sections by the first words of their headings, and exercises."""


def notebook(chapter: int) -> dict:
    return json.loads(CHAPTERS[chapter].read_text(encoding="utf-8"))


def texts(chapter: int) -> dict[Path, str]:
    """By notebook what stands in the chapter's own and in those of its exercises and of what goes further."""
    read = {
        path: json.loads(path.read_text(encoding="utf-8"))["cells"]
        for path in family_of(CHAPTERS[chapter])
    }
    return {
        path: "\n".join("".join(cell["source"]) for cell in cells) for path, cells in read.items()
    }


def exercise_titles(chapter: int) -> dict[str, str]:
    """The title of each exercise of a chapter, from the line that heads it there."""
    text = "\n".join(texts(chapter).values())
    return dict(re.findall(r"^\*\*Exercise (\S+) · (.+?)\*\*", text, re.MULTILINE))


def home_of(exercise: str) -> Path:
    """The notebook in which an exercise stands, such as ``4.2``."""
    start = f"**Exercise {exercise} "
    [path] = [
        path for path, text in texts(int(exercise.partition(".")[0])).items() if start in text
    ]
    return path


def item(words: str) -> tuple[str, int]:
    """A section or an exercise by its first words: its name as the book has it, and its minutes."""
    if words.startswith("ex "):
        number = words[3:]
        text = texts(int(number.partition(".")[0]))[home_of(number)]
        [minutes] = [
            int(m[1]) for m in EXERCISE.finditer(text) if m[0].startswith(f"**Exercise {number} ")
        ]
        title, home = exercise_titles(int(number.partition(".")[0]))[number], home_of(number)
        place = f" (in [exercises](../chapters/{place_of(home)}))" if kind_of(home) else ""
        return f"exercise {number}, {title}{place}", minutes
    chapter = int(re.match(r"\d+", words)[0])
    start = words.partition(" ")[2] or f"{words} "
    [found] = [
        name for name in section_minutes(notebook(chapter)).items() if name[0].startswith(start)
    ]
    return f"{found[0]}" if found[0][0].isdigit() else f"0 {found[0]}", found[1]


def syllabus(name: str) -> str:
    """A table of what is gone through, with the minutes that the book computes for it."""
    rows = [item(words) for words in SYLLABI[name]]
    lines = [f"| {what} | {minutes} |" for what, minutes in rows]
    return "\n".join(
        ["| part | minutes |", "|---|---|", *lines, f"| **together** | **{total(name)}** |"]
    )


def walked(name: str) -> dict[int, tuple[list[dict], list[str], str]]:
    """Chapter → what a class runs there: all code cells down to the last that the syllabus needs, the ids of those it
    talks about, in order, and the heading that follows, above which everything is run."""
    wanted = {}
    for words in SYLLABI[name]:
        start = words if words.startswith("ex ") else item(words)[0].removeprefix("0 ")
        wanted.setdefault(int(re.search(r"\d+", words)[0]), []).append(start)
    return {
        chapter: _down_to(notebook(chapter)["cells"], starts) for chapter, starts in wanted.items()
    }


def _down_to(cells: list[dict], starts: list[str]) -> tuple[list[dict], list[str], str]:
    heading, last, talked = "", 0, []
    for place, cell in enumerate(cells):
        text, is_code = "".join(cell["source"]), cell["cell_type"] == "code"
        if not is_code and (found := HEADING.findall(text)):
            heading = found[-1]
        here = f"ex {cell['id'][3:].replace('-', '.')}" if cell["id"].startswith("ex-") else heading
        if is_code and any(here.startswith(start) for start in starts):
            last, talked = place, [*talked, cell["id"]]
    after = next(
        found[0]
        for cell in cells[last + 1 :]
        if (found := HEADING.findall("".join(cell["source"])))
    )
    return [cell for cell in cells[: last + 1] if cell["cell_type"] == "code"], talked, after


def walk() -> str:
    """A table of the workshop's way through the notebooks."""
    rows = [
        "| chapter | select | code cells that run | those that the class looks at, in order |",
        "|---|---|---|---|",
    ]
    for chapter, (cells, talked, after) in walked("workshop").items():
        shown = ", ".join(f"`{cell}`" for cell in talked)
        rows.append(f"| {chapter:02d} | *{after}* | {len(cells)} | {shown} |")
    return "\n".join(rows)


def total(name: str) -> int:
    """Minutes of a syllabus."""
    return sum(item(words)[1] for words in SYLLABI[name])


def labs() -> str:
    """A table of the labs: time, points, what each measures."""
    rows = [
        "| lab | after chapter | minutes | points | it measures whether a student can |",
        "|---|---|---|---|---|",
    ]
    for name in NAMES:
        lab = load_lab(name)
        points = sum(task.points for task in lab.tasks) + lab.prose.points
        goals = "; ".join(lab.goals)
        rows.append(f"| {lab.title} | {lab.chapter:02d} | {lab.minutes} | {points} | {goals} |")
    return "\n".join(rows)


def rubrics() -> str:
    """The question of each lab that a person reads, and what it is marked by."""
    parts = []
    for name in NAMES:
        lab = load_lab(name)
        question = " ".join(lab.prose.question.split())
        parts.append(
            f"**{lab.title}.** {question}\n\n" + "\n".join(f"- {line}" for line in lab.prose.rubric)
        )
    return "\n\n".join(parts)


def figures() -> str:
    """A table of the stored pictures, each chapter's first, with what each shows; some chapters draw all of theirs."""
    rows = ["| chapter | picture | what it shows |", "|---|---|---|"]
    for number in CHAPTERS:
        text = "\n".join("".join(cell["source"]) for cell in notebook(number)["cells"])
        for alt, picture in re.findall(r"!\[(.*?)\]\(\.\./(.+?)\)", text, re.DOTALL)[:1]:
            rows.append(f"| {number:02d} | [{Path(picture).name}](../{picture}) | {alt} |")
    return "\n".join(rows)


TABLES = {
    "workshop": lambda: syllabus("workshop"),
    "walk": walk,
    "halfday": lambda: syllabus("halfday"),
    "labs": labs,
    "rubrics": rubrics,
    "figures": figures,
}


def guide(text: str) -> str:
    """The guide with its tables as the book has them now."""
    return BLOCK.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}\n{m[3]}", text)


def wrong_answers() -> str:
    """Every wrong answer that a check of the book knows, with what it means, chapter by chapter."""
    how = "Generated from the checks by `python course/guide.py`; a test keeps it true."
    what = (
        "Between dots (…) is a part of what the check says, where it judges by running the answer; functions "
        "themselves are left out."
    )
    parts = [f"# Known wrong answers, and what they mean\n\n{how} {what}"]
    for number, path in CHAPTERS.items():
        parts.append(f"## {number:02d} {path.stem[3:].replace('_', ' ').capitalize()}")
        titles = exercise_titles(number)
        for exercise in exercises_of(number).values():
            told = dict.fromkeys(f"- {line}" for line in mistakes_in_words(exercise))
            parts.append(f"**{exercise.id} {titles[exercise.id]}**\n\n" + "\n".join(told))
    return "\n\n".join(parts) + "\n"


def mistakes_in_words(exercise: Exercise) -> list[str]:
    """One line a mistake: the answer, where it can be written down, and its diagnosis."""
    listed, right = list(exercise.mistakes), None
    if isinstance(exercise, JudgedExercise):
        answers = import_module(f"wrong_answers.chapter_{int(exercise.id.partition('.')[0]):02d}")
        listed = [(answer, f"… {part} …") for answer, part in answers.WRONG[exercise.id]]
        right = getattr(answers, "RIGHT", None)
    return [f"{written(answer, right)}{words}" for answer, words in listed]


def written(answer: object, right: object = None) -> str:
    """A wrong answer as it is typed, a long one by what differs from a right one; nothing for a function."""
    if callable(answer):
        return ""
    if isinstance(answer, float):
        return f"`{answer:.6g}`: "
    if isinstance(answer, int):
        return f"`{answer:,}`: "
    typed = repr(answer)
    return (
        f"a right answer but `{changes(answer, right)}`: " if len(typed) > LONG else f"`{typed}`: "
    )


def changes(answer: object, right: object) -> str:
    """What of an answer differs from a right one; a record that is not expected there by its kind.

    >>> changes({"a": ("T4", 8), "b": ("T4", 2)}, {"a": ("T4", 8), "b": ("A100", 1)})
    "b: 'T4', 2"
    """
    if isinstance(answer, Mapping) and isinstance(right, Mapping):
        differ = [key for key in answer if answer[key] != right.get(key)]
        return "; ".join(f"{key}: {changes(answer[key], right.get(key))}" for key in differ)
    if isinstance(answer, tuple) and isinstance(right, tuple) and len(answer) == len(right):
        return ", ".join(
            changes(mine, theirs)
            for mine, theirs in zip(answer, right, strict=True)
            if mine != theirs
        )
    if not is_dataclass(answer):
        return repr(answer)
    if type(answer) is not type(right):
        return f"{type(answer).__name__}(…)"
    values = {field.name: getattr(answer, field.name) for field in fields(answer)}
    differ = {name: value for name, value in values.items() if value != getattr(right, name)}
    return ", ".join(f"{name}={getattr(value, 'name', value)!r}" for name, value in differ.items())


if __name__ == "__main__":
    GUIDE.write_text(guide(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
    ANSWERS.write_text(wrong_answers(), encoding="utf-8")
