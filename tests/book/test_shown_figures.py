"""The cell that shows a claim or an answer holds one of its figures; a cell with other numbers is called that."""

import re
import tomllib
from decimal import Decimal
from functools import cache

import pytest
from cells import CHAPTERS, cells_of

CLAIMS, QUESTIONS = (
    tomllib.loads((CHAPTERS / name).read_text(encoding="utf-8"), parse_float=Decimal)
    for name in ("claims.toml", "questions.toml")
)
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)


@cache
def seen_of(chapter: str) -> dict[str, str]:
    """By id what a reader sees of a cell: its source and its outputs, of a picture its words."""
    return {
        cell["id"]: "\n".join(["".join(cell["source"]), *map(words_of, cell.get("outputs", ()))])
        for cell in cells_of(CHAPTERS / chapter)
    }


def words_of(output: dict) -> str:
    """An output as text, without the tags of HTML; a picture's words are its alt text."""
    texts = [
        output.get("text", ""),
        *(text for kind, text in output.get("data", {}).items() if kind[:5] == "text/"),
    ]
    texts.append(output.get("metadata", {}).get("image/png", {}).get("alt", ""))
    return re.sub(r"<[^>]*>", " ", "\n".join("".join(text) for text in texts))


def numbers_in(text: str) -> set[Decimal]:
    """Every number of a text.

    >>> sorted(map(str, numbers_in("12,345.6 MiB of 2 x 5.96e-08, not H100")))
    ['12345.6', '2', '5.96E-8']
    """
    return {Decimal(number.replace(",", "")) for number in NUMBER.findall(text)}


def is_shown(figure: Decimal | int | str | bool, text: str) -> bool:
    """Whether a text has the figure, with as many places or more, or a thousand times as much (GB of a TB)."""
    if isinstance(figure, str):
        return figure in text
    place = Decimal((0, (1,), Decimal(figure).as_tuple().exponent))
    near = (number / scale for number in numbers_in(text) for scale in (1, 1000))
    return any(number == figure or rounds_to(number, figure, place) for number in near)


def rounds_to(number: Decimal, figure: Decimal | int, place: Decimal) -> bool:
    """Whether a printed number with as many places as ``place``, or more, is the figure when rounded to it."""
    return (
        number.as_tuple().exponent <= place.as_tuple().exponent
        and 2 * abs(number - figure) <= place
    )


def shown_figures(figures: dict, place: str) -> list[str]:
    """The figures that a cell shows; a yes or no is no number."""
    chapter, _, cell = place.partition("::")
    text = seen_of(chapter)[cell]
    return [
        name
        for name, figure in figures.items()
        if not isinstance(figure, bool) and is_shown(figure, text)
    ]


def figures_of(question: dict) -> dict:
    """The figures that an answer and its reason name."""
    named = re.findall(r"\{(C\d{3})\.(\w+)", question["answer"] + question["because"])
    return {f"{claim_id}.{name}": CLAIMS[claim_id]["figures"][name] for claim_id, name in named}


PLACED = {claim_id: (table.get("figures", {}), table) for claim_id, table in CLAIMS.items()} | {
    question_id: (figures_of(table), table) for question_id, table in QUESTIONS.items()
}


@pytest.mark.parametrize(
    "name", [name for name, (figures, table) in PLACED.items() if "cell" in table and figures]
)
def test_a_cell_shows_a_figure_of_what_it_is_linked_from(name):
    figures, table = PLACED[name]
    if all(isinstance(figure, bool) for figure in figures.values()):
        return
    assert shown_figures(figures, table["cell"]), (
        f"{table['cell']} has none of {figures}: name it in `about`"
    )


@pytest.mark.parametrize("name", [name for name, (_, table) in PLACED.items() if "about" in table])
def test_what_is_about_a_subject_is_a_cell_with_other_numbers(name):
    figures, table = PLACED[name]
    telling = {
        key: figure
        for key, figure in figures.items()
        if len(re.sub(r"\D", "", str(figure)).strip("0")) > 1
    }
    assert not shown_figures(telling, table["about"])  # a 6 may be anything


@pytest.mark.parametrize(
    ("figure", "text", "is_there"),
    [
        (Decimal("5.97"), "peak 5.97 GiB", True),
        (Decimal("5.97"), "peak 5.972 GiB", True),
        (66, "65.6% off", True),
        (Decimal("5.97"), "peak 15.97 GiB", False),
        (Decimal("5.97"), "6 GiB", False),
        (117, "116,951 GB/s", True),
        (Decimal("5.96E-8"), "5.96e-08", True),
        (16, "float16", False),
        ("max_entries", "max_entries=9", True),
    ],
)
def test_a_figure_is_found_as_it_is_printed(figure, text, is_there):
    assert is_shown(figure, text) == is_there
