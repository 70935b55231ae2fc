"""The rules for notebook files, held against every chapter, and against the notebooks beside a lesson.

A rule takes the notebook as the dictionary that its file holds and returns sentences about what breaks it. Nearly all
hold for every kind of notebook; those of ``FOR`` hold for the kinds that stand there.
"""

import ast
import copy
import getpass
import itertools
import json
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest

from dev import minutes
from dev.notebooks import CHAPTERS, FOLDERS, LESSONS, family_of, kind_of, notebooks, place_of

NOTEBOOKS = notebooks()
MOST_OF_A_LESSON = {"00": (1700, 36)} | {number: (3500, 50) for number in LESSONS[1:]}
"""By lesson the most words of markdown (``str.split``, with code blocks and what is folded) and the most cells."""
KERNELSPEC = {"name": "python3", "display_name": "Python 3 (ipykernel)"}
TAGS = {"setup", "nbval-ignore-output", "raises-exception"}
MAX_BYTES = 2 * 1024 * 1024
MOST_COLUMNS = 100
MOST_SETUP_LINES = 25
MOST_LINES = 25  # of a cell; a reader types along
MOST_CARD_LINES = 36
KEPT_CELL_METADATA = {"tags", "jupyter", "memkit"}
RULES: list[Callable] = []
FOR: dict[str, tuple[str, ...]] = {}
"""Rule → kinds of notebook, of ``kind_of``: a chapter or appendix is ''."""


class Notebook(dict):
    """A notebook as its file holds it, and the file's path."""

    def __init__(self, path: Path):
        super().__init__(json.loads(path.read_text(encoding="utf-8")))
        self.path = path


def rule(function: Callable) -> Callable:
    RULES.append(function)
    return function


def rule_for(*kinds: str) -> Callable:
    """A rule for some kinds of notebook only."""

    def add(function: Callable) -> Callable:
        FOR[function.__name__] = kinds
        return rule(function)

    return add


def source_of(cell: dict) -> str:
    return "".join(cell["source"])


def cells_of(notebook: dict, kind: str) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def is_exercise(cell: dict) -> bool:
    return cell.get("id", "").startswith("ex-")


def unfenced(cell: dict) -> str:
    """A markdown cell without its code blocks."""
    return re.sub(r"```.*?```", "", source_of(cell), flags=re.DOTALL)


def prose_of(cell: dict) -> str:
    """A markdown cell without its code blocks and code spans."""
    return re.sub(r"```.*?```|`[^`\n]*`", " ", source_of(cell), flags=re.DOTALL)


def pattern_rule(
    name: str, kind: str, pattern: str, sentence: str, text_of=source_of, flags=re.MULTILINE
) -> Callable:
    """A rule that no cell of this kind has the pattern."""

    def check(notebook):
        for cell in cells_of(notebook, kind):
            for found in re.findall(pattern, text_of(cell), flags):
                yield f"{cell['id']}: {found} {sentence}"

    check.__name__ = name
    return rule(check)


def headings_of(notebook: dict) -> list[tuple[int, str, dict]]:
    """(level, text, cell) of every heading in order."""
    return [
        (len(match[1]), match[2].strip(), cell)
        for cell in cells_of(notebook, "markdown")
        for match in re.finditer(r"^(#{1,6}) (.+)$", unfenced(cell), re.MULTILINE)
    ]


def texts_of_outputs(notebook: dict) -> Iterator[tuple[dict, str]]:
    """(cell, text) of everything printed or shown as text."""
    for cell in cells_of(notebook, "code"):
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                yield cell, "".join(output["text"])
            for kind, data in output.get("data", {}).items():
                if kind.startswith("text/") or kind == "image/svg+xml":
                    yield cell, "".join(data)


def word_count(notebook: dict) -> int:
    """Words of prose outside the exercises."""
    prose = " ".join(
        prose_of(cell) for cell in cells_of(notebook, "markdown") if not is_exercise(cell)
    )
    without_markup = re.sub(r"<[^>]*>|\]\([^)]*\)|\$[^$]*\$|\|[-: |]+\|", " ", prose)
    return len(re.findall(r"[^\W\d_][\w'’-]*", without_markup))


def is_draft(notebook: dict) -> bool:
    return bool(notebook["metadata"].get("memkit", {}).get("draft"))


# The file


@rule
def valid_format(notebook):
    if (notebook["nbformat"], notebook["nbformat_minor"]) != (4, 5):
        yield f"nbformat {notebook['nbformat']}.{notebook['nbformat_minor']} is not 4.5"
        return
    try:
        nbformat.validate(nbformat.from_dict(copy.deepcopy(dict(notebook))))
    except nbformat.ValidationError as error:
        yield f"not a valid notebook: {str(error).splitlines()[0]}"


@rule
def kernelspec(notebook):
    spec = {
        key: value
        for key, value in notebook["metadata"].get("kernelspec", {}).items()
        if key != "language"
    }
    if spec != KERNELSPEC:
        yield f"kernelspec {spec} is not {KERNELSPEC}"


@rule
def no_foreign_metadata(notebook):
    for key in notebook["metadata"].keys() - {"kernelspec", "language_info", "memkit"}:
        yield f"notebook metadata {key}"
    if "version" in notebook["metadata"].get("language_info", {}):
        yield "language_info names a Python version"
    for cell in notebook["cells"]:
        for key in cell["metadata"].keys() - KEPT_CELL_METADATA:
            yield f"{cell.get('id')}: cell metadata {key}"
        # a folded output is the answer to a guess
        if cell["metadata"].get("jupyter", {"source_hidden": True}) not in (
            {"source_hidden": True},
            {"outputs_hidden": True},
        ):
            yield f"{cell.get('id')}: cell metadata jupyter={cell['metadata']['jupyter']}"
        for tag in set(cell["metadata"].get("tags", [])) - TAGS:
            yield f"{cell.get('id')}: tag {tag} is not one of {', '.join(sorted(TAGS))}"


@rule
def readable_ids(notebook):
    ids = [cell.get("id", "") for cell in notebook["cells"]]
    for cell_id in ids:
        if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", cell_id) or re.fullmatch(
            r"[0-9a-f]{8}", cell_id
        ):
            yield f"{cell_id!r} is not a readable id (lower-case words and hyphens)"
        if ids.count(cell_id) > 1:
            yield f"{cell_id!r} is the id of {ids.count(cell_id)} cells"


@rule
def counts_in_order(notebook):
    counts = [cell["execution_count"] for cell in cells_of(notebook, "code")]
    if counts != list(range(1, len(counts) + 1)):
        yield f"execution counts {counts} are not 1 to {len(counts)}: run `make run-notebooks`"


@rule
def opens_on_github(notebook):
    size = len(json.dumps(notebook, ensure_ascii=False).encode())
    if size > MAX_BYTES:
        yield f"{size:,} bytes; {MAX_BYTES:,} at most"


# Code cells


@rule
def plain_python(notebook):
    for cell in cells_of(notebook, "code"):
        try:
            tree = ast.parse(source_of(cell))
        except SyntaxError as error:
            yield f"{cell['id']} is not plain Python, line {error.lineno}: no magics, no shell"
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                yield f"{cell['id']}: from {node.module} import *"


PLUMBING = r"sys\.path|get_ipython|rcParams|<style|\bHTML\(|filterwarnings|os\.system|subprocess|breakpoint\("
no_plumbing = pattern_rule("no_plumbing", "code", PLUMBING, "does not belong in a chapter")
short_lines = pattern_rule(
    "short_lines", "code", r"^.{111,}$", "is a line of more than 110 characters"
)


def lines_of(notebook: dict) -> Iterator[tuple[dict, int, int, bool]]:
    """(cell, its lines, the most that it may have, whether a reader types it along) of every code cell."""
    for cell in cells_of(notebook, "code"):
        is_setup = "setup" in cell["metadata"].get("tags", [])
        is_of_card = cell["id"].startswith(
            "card-"
        )  # a whole program that one would copy, with and without a card
        most = MOST_SETUP_LINES if is_setup else MOST_CARD_LINES if is_of_card else MOST_LINES
        yield cell, len(source_of(cell).rstrip().splitlines()), most, not (is_setup or is_of_card)


@rule
def short_cells(notebook):
    for cell, lines, most, _ in lines_of(notebook):
        if lines > most:
            yield f"{cell['id']} has {lines} lines; {most} at most"


@rule_for("")
def few_long_cells(notebook):
    """Over a lesson and the notebooks beside it."""
    family = [notebook, *(Notebook(path) for path in family_of(notebook.path)[1:])]
    lengths = [lines for member in family for _, lines, _, is_typed in lines_of(member) if is_typed]
    if lengths and (p90 := statistics.quantiles([0, *lengths], n=10, method="inclusive")[-1]) > 22:
        yield f"one cell in ten has more than {p90:.0f} lines; 22 at most"


@rule
def few_imports(notebook):
    code = "\n".join(source_of(cell) for cell in cells_of(notebook, "code"))
    statements = re.findall(r"^\s*(?:from|import) memkit\b", code, re.MULTILINE)
    if len(statements) > 8:
        yield f"{len(statements)} statements import memkit; 8 at most"


@rule
def no_two_definition_cells_in_a_row(notebook):
    def only_defines(cell):
        try:
            body = ast.parse(source_of(cell)).body
        except SyntaxError:
            return False
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
        return any(isinstance(node, kinds[:3]) for node in body) and all(
            isinstance(node, kinds) for node in body
        )

    for before, after in itertools.pairwise(cells_of(notebook, "code")):
        if only_defines(before) and only_defines(after):
            yield f"{before['id']} and {after['id']} only define: define in one cell, call in the next"


@rule
def a_markdown_cell_per_code_cell(notebook):
    """A cell that asks for a guess has its words itself."""
    markdown = len(cells_of(notebook, "markdown"))
    code = len(
        [cell for cell in cells_of(notebook, "code") if not source_of(cell).startswith("predict(")]
    )
    if markdown < code:
        yield f"{code} code cells and only {markdown} of markdown"


# Outputs


@rule
def no_stderr_and_no_unasked_error(notebook):
    for cell in cells_of(notebook, "code"):
        for output in cell["outputs"]:
            if output.get("name") == "stderr":
                yield f"{cell['id']} writes to stderr: {''.join(output['text'])[:80]}"
            if output["output_type"] == "error" and "raises-exception" not in cell["metadata"].get(
                "tags", []
            ):
                yield f"{cell['id']} ends with {output['ename']}"


@rule
def outputs_that_fit_the_page(notebook):
    for cell in cells_of(notebook, "code"):
        for output in cell["outputs"]:
            data = output.get("data", {})
            if data.keys() & {"image/png", "text/html"}:
                continue  # its text is a summary, which no page shows
            lines = "".join(output.get("text") or data.get("text/plain", "")).splitlines()
            if (widest := max(map(len, lines), default=0)) > MOST_COLUMNS:
                yield f"{cell['id']} prints a line of {widest} columns; {MOST_COLUMNS} at most"


@rule
def tables_are_shown_not_printed(notebook):
    for cell in cells_of(notebook, "code"):
        for output in cell["outputs"]:
            if re.search(r"^─{9,}$", "".join(output.get("text", "")), re.MULTILINE):
                yield f"{cell['id']} prints a table, whose rows break on a narrow page: let the cell end with it"


@rule
def nothing_of_the_authors_machine(notebook):
    private = r"/(?:home|root|Users|work|tmp|opt|mnt|usr|var)/[\w.-]+|[A-Z]:\\Users|site-packages|\b0x[0-9a-f]{6,}"
    user = getpass.getuser()
    if user != "root":
        private += rf"|\b{re.escape(user)}\b"
    for cell, text in texts_of_outputs(notebook):
        for found in re.findall(private, text):
            yield f"{cell['id']} shows {found}"


@rule
def no_time_in_an_unchecked_output(notebook):
    # nbval itself finds a time that differs, except where it is told to look away
    for cell, text in texts_of_outputs(notebook):
        if "nbval-ignore-output" in cell["metadata"].get("tags", []):
            for found in re.findall(r"\b\d[\d.,]* ?(?:ms|µs|us|ns|s|sec|seconds|min)\b", text):
                yield f"{cell['id']} stores the time {found}"


@rule
def an_unchecked_output_has_an_assert(notebook):
    code = cells_of(notebook, "code")
    for cell, following in itertools.zip_longest(code, code[1:]):
        tags = cell["metadata"].get("tags", [])
        if "nbval-ignore-output" not in tags or source_of(cell).strip() == "doctor()":
            continue
        if cell["id"].endswith("give-back"):
            continue
        if "assert" not in source_of(cell) and (
            following is None or "assert" not in source_of(following)
        ):
            yield f"{cell['id']} is not compared by nbval, and neither it nor the next code cell asserts anything"


@rule
def no_stale_widget(notebook):
    for cell in cells_of(notebook, "code"):
        for output in cell["outputs"]:
            if "application/vnd.jupyter.widget-view+json" in output.get("data", {}):
                yield f"{cell['id']} stores the id of a widget that is gone: run `make run-notebooks`"


# Markdown


@rule
def title_cell(notebook):
    first = notebook["cells"][0]
    if first["cell_type"] != "markdown" or not re.match(r"# (\d+|[A-Z]) · \S", source_of(first)):
        yield "the first cell does not begin with `# N · Title`"
    elif not re.search(r"\d+ min.+ · .+ · .*(GPU|GiB|MiB)", source_of(first)):
        yield "the first cell has no line `minutes · needs · peak GPU memory`"


@rule
def headings(notebook):
    levels = [level for level, _, _ in headings_of(notebook)]
    if levels.count(1) != 1:
        yield f"{levels.count(1)} headings of level 1; one is wanted"
    for (before, _, _), (level, text, _) in itertools.pairwise(headings_of(notebook)):
        if level > before + 1:
            yield f"{text!r} is a heading of level {level} under level {before}"


@rule
def pictures_have_alt_text(notebook):
    for cell in cells_of(notebook, "markdown"):
        for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]*)", source_of(cell)):
            if len(alt.split()) < 3:
                yield f"{cell['id']}: {target} has the alt text {alt!r}"
        for tag in re.findall(r"<img[^>]*>", source_of(cell)):
            if len((re.search(r'alt="([^"]*)"', tag) or ["", ""])[1].split()) < 3:
                yield f"{cell['id']}: {tag} has no alt text"


@rule
def links_are_relative_and_lead_somewhere(notebook):
    for cell in cells_of(notebook, "markdown"):
        for target in re.findall(r"\]\(([^)\s]+)", unfenced(cell)):
            if target.startswith(("https://", "http://", "#", "mailto:")):
                continue
            if not (notebook.path.parent / target.partition("#")[0]).exists():
                yield f"{cell['id']}: {target} leads nowhere"


@rule_for("exercises", "further")
def a_companion_names_its_lesson_and_the_lesson_names_it(notebook):
    number, title = re.match(r"# (\d+) · (\w+): ", source_of(notebook["cells"][0])).groups()
    if (int(number), title.lower()) != (int(notebook.path.name[:2]), kind_of(notebook.path)):
        yield f"its title begins with {number} · {title}"
    if f"[lesson {notebook.path.name[:2]}](../{notebook.path.name})" not in source_of(
        notebook["cells"][0]
    ):
        yield "the first cell does not link to its lesson"
    lesson = Notebook(family_of(notebook.path)[0])
    if not any(
        f"]({place_of(notebook.path)})" in source_of(cell) for cell in cells_of(lesson, "markdown")
    ):
        yield f"{lesson.path.name} does not link to it"


@rule_for("exercises")
def only_exercises(notebook):
    if not any(is_exercise(cell) for cell in notebook["cells"]):
        yield "it has no exercise"
    told = "".join(source_of(cell) for cell in notebook["cells"] if not is_exercise(cell))
    if found := re.findall(r"\b(?:section|Section) \d+\.\d+", told):
        yield f"{', '.join(found)}: it runs alone, so name what is meant"


@rule_for("further")
def no_exercise(notebook):
    yield from (f"{cell['id']} is an exercise" for cell in notebook["cells"] if is_exercise(cell))


markdown_that_jupyter_and_github_both_render = pattern_rule(
    "markdown_that_jupyter_and_github_both_render",
    "markdown",
    r"^> \[!\w+\]|^:::|\[\^\w+\]|<svg|\bstyle=|\{[a-z]+\}`|^\$\$\s*\\begin\{align\}",
    "is not rendered everywhere",
    unfenced,
)
plain_words = pattern_rule(
    "plain_words",
    "markdown",
    r"\b(?:simply|obviously|of course|trivially|leverage|delve)\b",
    "is not plain",
    prose_of,
    re.IGNORECASE,
)


@rule
def closed_details(notebook):
    for cell in cells_of(notebook, "markdown"):
        if source_of(cell).count("<details") != source_of(cell).count("</details>"):
            yield f"{cell['id']}: a <details> is not closed"


@rule_for("")
def size_of_a_chapter(notebook):
    if is_draft(notebook):
        return
    cells = sum(not is_exercise(cell) for cell in notebook["cells"])
    words = word_count(notebook)
    is_full = re.match(
        r"# ([7-9]|10) ", source_of(notebook["cells"][0])
    )  # no lesson, not 11, 12 or an appendix
    least_cells, least_words = (35, 2000) if is_full else (1, 1)
    if not least_cells <= cells <= 80:
        yield f"{cells} cells besides the exercises; {least_cells} to 80"
    if words < least_words:
        yield f"{words} words besides the exercises; {least_words} at least"


@rule_for("")
def size_of_a_lesson(notebook):
    if notebook.path.name[:2] not in MOST_OF_A_LESSON:
        return
    most_words, most_cells = MOST_OF_A_LESSON[notebook.path.name[:2]]
    words = sum(len(source_of(cell).split()) for cell in cells_of(notebook, "markdown"))
    if words > most_words:
        yield f"{words:,} words of markdown; {most_words:,} at most"
    if len(notebook["cells"]) > most_cells:
        yield f"{len(notebook['cells'])} cells; {most_cells} at most"


@rule
def minutes_are_computed(notebook):
    if is_draft(notebook):
        return
    if f"\n*{minutes.title_minutes(notebook)} · " not in source_of(notebook["cells"][0]):
        yield f"the title does not say *{minutes.title_minutes(notebook)} ·: run dev/minutes.py"
    said = {
        name: int(n)
        for cell in notebook["cells"]
        for name, n in minutes.SECTION.findall(source_of(cell))
    }
    for name, wanted in minutes.section_minutes(notebook).items():
        if said[name] != wanted:
            yield f"{name} says {said[name]} minutes, not {wanted}: run dev/minutes.py"


@rule
def one_folded_setup(notebook):
    tagged = [cell for cell in notebook["cells"] if "setup" in cell["metadata"].get("tags", [])]
    if len(tagged) != 1 and not is_draft(notebook):
        yield f"{len(tagged)} cells are tagged setup; the import cell is one"
    for cell in tagged:
        if cell["metadata"].get("jupyter") != {"source_hidden": True}:
            yield f"{cell['id']} is open: a reader meets its names before a line of argument"


HELD = [
    pytest.param(path, check, id=f"{place_of(path).removesuffix('.ipynb')}-{check.__name__}")
    for path in NOTEBOOKS
    for check in RULES
    if kind_of(path) in FOR.get(check.__name__, (kind_of(path),))
]


@pytest.mark.parametrize("path, check", HELD)
def test_a_chapter_keeps_the_rule(path, check):
    if problems := list(check(Notebook(path))):
        pytest.fail("\n".join(problems), pytrace=False)


def ids_in(path: Path) -> list[str]:
    return [cell["id"] for cell in Notebook(path)["cells"]]


def test_ids_are_the_same_in_one_chapter_only():
    exercises = [
        cell_id for path in NOTEBOOKS for cell_id in ids_in(path) if cell_id.startswith("ex-")
    ]
    assert len(exercises) == len(set(exercises))


@pytest.mark.parametrize("number", LESSONS)
def test_an_id_stands_in_one_notebook_of_a_lesson(number):
    [lesson] = CHAPTERS.glob(f"{number}_*.ipynb")
    ids = [cell_id for path in family_of(lesson) for cell_id in ids_in(path)]
    assert [cell_id for cell_id in set(ids) if ids.count(cell_id) > 1] == []


def test_a_companion_has_the_name_of_its_lesson():
    found = {place_of(path) for folder in FOLDERS for path in (CHAPTERS / folder).glob("*.ipynb")}
    assert found == {place_of(path) for path in NOTEBOOKS if kind_of(path)}
    lessons = [path for number in LESSONS for path in CHAPTERS.glob(f"{number}_*.ipynb")]
    exercises, further = ({f"{folder}/{path.name}" for path in lessons} for folder in FOLDERS)
    assert exercises <= found and {place for place in further if "/00" not in place} <= found
