"""The ledger of claims: complete, proved, and no number in it can change without its proof failing."""

import importlib.util
import inspect
import math
import tomllib
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch
from cells import after_setup, cells_of, exists
from free_numbers import free_numbers

from book import claims, korthikanti, linear_memory, loss_scales
from book.claims import (
    GROUPS,
    LEDGER,
    VERDICTS,
    Figures,
    claim,
    count_verdicts,
    load_claims,
    read_claim,
    rounds_to,
)
from memkit import (
    cards,
    fit,
    formula,
    low_precision,
    models,
    recipes,
    recomputation,
    strategies,
    timeline,
    units,
)
from memkit.formats import blocks
from memkit.formula import model
from memkit.program import transformer
from stepscope import experts, inference, sharding
from stepscope import formula as job_formula
from stepscope import optimizers as job_optimizers
from stepscope import setup as job_setup

ROOT = Path(__file__).parents[2]
TABLES = (
    tomllib.loads(LEDGER.read_text(encoding="utf-8"), parse_float=Decimal)
    if LEDGER.exists()
    else {}
)
ROOMS = (model, blocks, cards, claims, recomputation, formula, korthikanti, linear_memory)
ROOMS += (
    loss_scales,
    low_precision,
    models,
    recipes,
    strategies,
    timeline,
    sharding,
    transformer,
    units,
    fit,
)
ROOMS += (job_formula, job_setup, job_optimizers, experts, inference)
NAMES = {name: getattr(room, name) for room in ROOMS for name in dir(room)} | {
    "inspect": inspect,
    "math": math,
    "ml_dtypes": ml_dtypes,
    "np": np,
    "pytest": pytest,
    "torch": torch,
}
"""What an expression of the ledger may name besides the figures and the names of the file it gives as its proof."""

PROVED = [claim_id for claim_id, table in TABLES.items() if "proof" in table]


def neighbours(figure) -> list:
    """What a figure could be mistyped as: one unit up or down in its last written place.

    >>> [str(value) for value in neighbours(Decimal("43.0"))], neighbours(112), neighbours(True)
    (['43.1', '42.9'], [113, 111], [False])
    """
    match figure:
        case bool():
            return [not figure]
        case int():
            return [figure + 1, figure - 1]
        case Decimal():
            unit = Decimal((0, (1,), figure.as_tuple().exponent))
            return [figure + unit, figure - unit]
        case str():
            return [figure + "?"]
    raise TypeError(f"a figure is a number, a bool or a string, not {figure!r}")


def as_read(figure):
    """The figure as a proof reads it: ``tomllib`` gives floats unless told otherwise."""
    return float(figure) if isinstance(figure, Decimal) else figure


@cache
def functions_of(path: Path) -> dict[str, Callable]:
    """The top-level names of a file of proofs."""
    spec = importlib.util.spec_from_file_location(f"proofs_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def prove(claim_id: str, table: Mapping, figures: Figures) -> None:
    """Run one proof on these figures, a test function, a cell or expressions; it raises if they are not so."""
    file, _, name = table["proof"].partition("::")
    path = ROOT / file
    if not name:
        names = NAMES | functions_of(path) | figures
        for letter, expression in table.get("given", {}).items():
            names[letter] = eval(expression, names)
        for expression in table.get("so", ()):
            assert eval(expression, names), f"{claim_id}: not so: {expression}"
        figures.settle(
            **{case: eval(expression, names) for case, expression in table["cases"].items()}
        )
    elif path.suffix == ".ipynb":
        [cell] = [cell for cell in cells_of(path) if cell["id"] == name]
        entry = SimpleNamespace(figures=figures)
        exec(
            compile("".join(cell["source"]), table["proof"], "exec"),
            after_setup(path) | {"claim": lambda _: entry},
        )
    else:
        functions_of(path)[name](figures)


def problems_of(claim_id: str, table: Mapping) -> list[str]:
    """Everything that is wrong with the form of one entry."""
    try:
        entry = read_claim(
            claim_id,
            {**table, "figures": {k: as_read(v) for k, v in table.get("figures", {}).items()}},
        )
    except ValueError as error:
        return [str(error)]
    problems = [
        f"write {number} as a figure"
        for name in ("claim", "answer")
        for number in free_numbers(table[name])
    ]
    problems += [
        f"{page!r} is not a public page"
        for page in entry.printed
        if not page.startswith("https://")
    ]
    if entry.proof and not exists(entry.proof):
        problems.append(f"there is no {entry.proof}")
    if (place := entry.cell or entry.about) and not exists(f"chapters/{place}"):
        problems.append(f"there is no cell {place}")
    if not (place or entry.no_cell or entry.reason):
        problems.append("say in no_cell why no cell shows it")
    if entry.figures and not (
        entry.cases or entry.proof.endswith(f"::test_{claim_id}") or ".ipynb::" in entry.proof
    ):
        problems.append(
            f"{entry.proof} does not read the figures; call it test_{claim_id}(figures)"
        )
    return problems


def unnoticed(claim_id: str, table: Mapping) -> list[str]:
    """Changed figures, and other verdicts, that the proof of an entry accepts."""
    given = {name: as_read(value) for name, value in table.get("figures", {}).items()}
    mutants = {
        f"{name} = {changed} passes as well as {value}": Figures(
            given | {name: as_read(changed)}, table["verdict"]
        )
        for name, value in table.get("figures", {}).items()
        for changed in neighbours(value)
    } | {
        f"{other} passes as well as {table['verdict']}: end the proof with figures.settle(...)": Figures(
            given, other
        )
        for other in VERDICTS[:-1]
        if other != table["verdict"]
    }
    found = []
    for sentence, figures in mutants.items():
        try:
            prove(claim_id, table, figures)
        except AssertionError:
            continue
        found.append(sentence)
    return found


@pytest.mark.parametrize("claim_id", TABLES)
def test_an_entry_is_complete(claim_id):
    if problems := problems_of(claim_id, TABLES[claim_id]):
        pytest.fail("\n".join(problems), pytrace=False)


@pytest.mark.parametrize("claim_id", PROVED)
def test_no_figure_and_no_verdict_changes_unnoticed(claim_id):
    if problems := unnoticed(claim_id, TABLES[claim_id]):
        pytest.fail("\n".join(problems), pytrace=False)


@pytest.mark.parametrize(
    "claim_id", [claim_id for claim_id in PROVED if "::test_" not in TABLES[claim_id]["proof"]]
)
def test_a_cell_or_a_line_of_arithmetic_proves_its_entry(claim_id):
    prove(claim_id, TABLES[claim_id], claim(claim_id).figures)


def test_the_ledger_is_in_order():
    assert list(TABLES) == sorted(TABLES)
    assert all(entry.group in GROUPS for entry in load_claims().values())


def test_the_groups_cover_every_number_once():
    ranges = [(first, last) for _, first, last in GROUPS.values()]
    in_order = sorted(ranges)
    assert in_order[0][0] == 1
    assert all(before[1] + 1 == after[0] for before, after in pairwise(in_order))


def test_verdicts_are_counted_from_the_ledger():
    verdicts = [entry.verdict for entry in load_claims().values()]
    assert count_verdicts(load_claims().values()) == {
        verdict: verdicts.count(verdict) for verdict in VERDICTS
    }


def test_a_case_decides_the_verdict():
    figures = Figures({}, "outdated")
    figures.settle(once=True, now=False)
    for cases in ({"now": False}, {"once": True, "now": True}, {"now": True, "then": False}):
        with pytest.raises(AssertionError, match="the ledger says outdated"):
            figures.settle(**cases)


@pytest.mark.parametrize(
    "value, figure, same",
    [
        (104.3081, 104.3, True),
        (104.3499, 104.3, True),
        (104.36, 104.3, False),
        (55.9, 56, True),
        (55.4, 56, False),
    ],
)
def test_rounds_to_uses_the_decimals_that_are_printed(value, figure, same):
    assert rounds_to(value, figure) is same
