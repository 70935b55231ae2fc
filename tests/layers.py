"""The layers of tests, decided here: ``make check`` (one folder or module), ``make test`` (all), ``make sweep`` (rest).

``python tests/layers.py check [NAME ...]`` runs what belongs to the folders or modules named, or to what has changed
since the last commit. ``python tests/layers.py left test`` says what a layer has left out. A test is of the sweep by
what it guards and what it takes, in ``SWEEP``; ``conftest.py`` marks it so.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SWEEP = {
    "tests/stepscope/zoo/": "models and trainers of other libraries",
    "tests/stepscope/tool/test_scripts_of_people.py": "scripts that people wrote",
    "tests/stepscope/tool/test_command_line.py::test_a_fit_over_cards": "plans and their code, run and traced",
    "tests/stepscope/tool/test_command_line.py::test_adapters_and_the_host": "plans and their code, run and traced",
    "tests/stepscope/tool/test_command_line.py::test_the_words_come_out": "the command in terminals and pipes",
    "tests/stepscope/sharding/test_sharding.py::test_one_rank_of_many_of_a_large": "one rank of many of a large model",
    "tests/stepscope/report/test_disk.py": "programs that write, over a tree of 200 files",
    "tests/stepscope/public_runs/": "public runs traced anew",
    "tests/stepscope/formula/test_smaller_steps.py": "steps with adapters and small states, formula against trace",
    "tests/stepscope/formula/test_published_tables.py": "published tables",
    "tests/stepscope/allocator/test_b200.py": "a B200's recordings",
    "tests/stepscope/sharding/test_b200_pair.py": "a B200's recordings",
    "tests/stepscope/planner/test_code.py": "plans and their code, run and traced",
    "tests/stepscope/planner/test_search.py": "plans and their code, run and traced",
    "tests/stepscope/advice/test_leaks.py": "leaks",
    "tests/memkit/test_recomputation.py::test_no_words_cover_others": "words of a picture in every setting",
    "tests/memkit/program/test_strategies.py::test_flops_are_what_torch_counts": "FLOPs of every strategy",
    "tests/claims/": "proofs of claims, each figure moved by one",
    "tests/book/test_claims.py::test_no_figure_and_no_verdict_changes": "proofs of claims, each figure moved by one",
    "tests/book/test_claims.py::test_a_cell_or_a_line_of_arithmetic": "proofs of claims, each figure moved by one",
    "tests/book/test_part_one.py": "the kit's tests without stepscope",
    "tests/book/test_cuda_cells.py::test_an_assert_of_a_cell_sees": "mistakes that a CUDA cell's asserts see",
    "tests/book/test_cuda_cells.py::test_a_cell_runs_on_a_pretend_card[1": "cells of 10 to 13 on a pretend card",
    "tests/book/test_lesson_12.py": "lesson 12's UNet beside diffusers' own",
    "tests/stepscope/widgets/test_panels.py::test_any_corner_is_shown_or_refused": "corners of Part II's panels",
    "tests/book/test_card_notebooks.py": "whole notebooks on a pretend card",
    "tests/book/test_training_ranks.py": "training on real ranks",
    "tests/book/test_chapter_03.py": "trainings",
    "tests/book/test_linear_memory.py": "every kind of linear layer",
    "tests/test_kit_alone.py::test_its_tests_and_their_helpers": "the kit's tests without stepscope",
    "tests/test_wheel.py::test_every_example": "the wheel's examples",
    "tests/test_front_door.py::test_the_comparison": "whether a check can fail",
    "tests/course/test_marks.py": "a class graded by nbgrader",
    "tests/course/test_handing_in.py": "a class graded by nbgrader",
    "tests/course/test_labs.py": "a class graded by nbgrader",
    "tests/course/test_roster.py": "a class graded by nbgrader",
    "tests/stepscope/tool/test_until.py": "scripts followed to a save, an end, a second run",
    "tests/stepscope/tool/test_cures.py": "cures and compiled programs, traced and run",
    "tests/hub/test_hub.py": "a hub with students",
    "tests/hub/test_killed.py": "a hub with students",
    "tests/hub/test_full_disk.py": "a hub with students",
    "tests/browser/": "panels and films in browsers",
}
"""How a test's address begins, and what such tests guard: most lines take five seconds of one core or more."""
KEPT = ("tests/browser/test_explorers.py::test_chapter_01_runs_and_a_slider_moves_by_keyboard",)
"""What ``make test`` runs although a line of ``SWEEP`` has it: the one walk in a browser."""
LEFT = {
    "check": ("whatever else uses what has changed, the chapters, the browser: make test",),
    "test": (
        *dict.fromkeys(SWEEP.values()),
        "the site",
        "those notebooks of 00 to 06 that run nothing that has changed",
        "chapters 07 to 13 and the appendices: make sweep",
    ),
    "sweep": ("cases by the hundred of what stands in it by a dozen: make exhaustive",),
}
ALWAYS = ("tests/test_layers.py",)
FILES = {
    r"(memkit|stepscope)/(?P<room>\w+)": "",
    r"chapters/book/(?P<room>\w+)": "",
    r"(?P<test>tests/.*test_\w+\.py)": "",
    r"chapters/.*\.ipynb": "tests/book/test_notebooks_policy.py tests/book/test_exercises.py",
    r"chapters/(claims|questions)\.toml": "tests/book/test_claims.py tests/book/test_questions.py",
    r"dev/(notebooks|minutes|own_copy)\.py": "tests/book/test_own_copy.py tests/test_readme.py "
    "tests/book/test_notebooks_policy.py",
    r"dev/site/\w+\.py": "dev/site tests/site/test_parts.py",
    r"(stepscope/)?README\.md|dev/[A-Z]+\.md|Makefile|\.github/.*|CHANGELOG\.md": "tests/test_readme.py "
    "tests/test_environment.py",
    r"pyproject\.toml|environment\.yml|dev/(constraints.txt|install.py)|\.binder/.*": "tests/test_environment.py",
    r"course/hub/.*": "tests/hub/test_limits.py tests/hub/test_values.py",
    r"course/.*": "tests/course/test_guide.py",
    r"figures/.*": "tests/book/test_figures.py",
}
"""A file's path, and the tests of it that take seconds, beside the one that has its name."""


def is_swept(address: str) -> bool:
    """Whether a test, by its address such as ``tests/memkit/test_fit.py::test_it[1]``, is left to ``make sweep``."""
    return address.startswith(tuple(SWEEP)) and not address.startswith(KEPT)


def places_of(room: str) -> list[str]:
    """The code of a folder or module, and its tests; ``formula`` is a folder of both packages, ``fit`` a module.

    Its tests are ``test_fit.py`` and ``test_fit_....py``; a module without any has those of the files that import it.

    Raises: ValueError: nothing has that name.
    """
    homes = ("memkit", "stepscope", "chapters/book")
    code = [
        f"{home}/{name}"
        for home in homes
        for name in (room, f"{room}.py")
        if (ROOT / home / name).exists()
    ]
    if not code:
        raise ValueError(
            f"{room!r} is no folder and no module of memkit, stepscope or chapters/book"
        )
    folders = [
        f"tests/{home}/{room}"
        for home in ("memkit", "stepscope")
        if (ROOT / "tests" / home / room).is_dir()
    ]
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    own = re.compile(rf"test_{room}(_\w+)?")
    named = [file for file in files if own.fullmatch(file.stem)]
    if not named and not folders:
        imports = re.compile(
            rf"(memkit|stepscope|book)\.{room}\b|from (memkit|stepscope|book) import .*\b{room}\b"
        )
        named = [file for file in files if imports.search(file.read_text(encoding="utf-8"))]
    return code + folders + [file.relative_to(ROOT).as_posix() for file in named]


def changed() -> list[str]:
    """Paths that differ from the last commit, new files among them."""
    commands = (["diff", "--name-only", "HEAD"], ["ls-files", "--others", "--exclude-standard"])
    done = [
        subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
        for words in commands
    ]
    return sorted({line for each in done for line in each.stdout.splitlines()})


def tests_of(path: str) -> list[str]:
    """The tests that belong to a changed file: those of its folder or module, or itself."""
    for pattern, tests in FILES.items():
        if found := re.fullmatch(rf"{pattern}(\.\w+|/.*)?", path):
            named = found.groupdict()
            if named.get("test"):
                return [named["test"]] if (ROOT / named["test"]).exists() else []
            if named.get("room"):
                return (
                    places_of(named["room"])
                    if "__init__" not in named["room"]
                    else ["tests/test_front_door.py"]
                )
            own = (ROOT / "tests").glob(f"*/test_{Path(path).stem}.py")
            return [*tests.split(), *(file.relative_to(ROOT).as_posix() for file in own)]
    return []


def check(rooms: list[str]) -> int:
    """Lint everything, look at its layout, and run the tests of these folders and modules, or of what has changed."""
    found = dict.fromkeys(place for room in rooms for place in places_of(room))
    if not rooms:
        paths = changed()
        found = dict.fromkeys(place for path in paths for place in tests_of(path))
        untested = [path for path in paths if not tests_of(path)]
        print(
            f"changed: {len(paths)} files; without tests of seconds: {', '.join(untested) or 'none'}",
            flush=True,
        )
    marks = "not sweep and not exhaustive and not browser and not serial and not site"
    pytest = ["pytest", "-q", "-n", "2", "--dist", "loadscope", "-m", marks, *ALWAYS, *found]
    for words in (["ruff", "check", "."], ["ruff", "format", "--check", "."], pytest):
        code = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, check=False).returncode
        if code:
            return code
    return 0


def main(words: list[str]) -> int:
    """The command line: ``check``, or ``left`` and a layer."""
    match words:
        case ["check", *rooms]:
            code = check(rooms)
            print("Left out: " + "; ".join(LEFT["check"]))
            return code
        case ["left", layer]:
            print(f"make {layer} passed. Left out: " + "; ".join(LEFT[layer]))
            return 0
    raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
