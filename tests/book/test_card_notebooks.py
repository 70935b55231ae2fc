"""Whole notebooks as a machine with a card runs them: a cell that asks for a card has a pretend one.

What a cell then prints is its stored output, or the cell is tagged as one that is not compared.
"""

import contextlib
import io
import re
import sys
import warnings
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from cells import cells_of
from matplotlib import pyplot
from pretend_card import pretend_card

from dev.notebooks import notebooks, place_of
from memkit.units import GIB

NUMBERED = [path for path in notebooks() if path.name[0].isdigit()]
ASK = set(
    """
    card-moments card-autocast card-ways card-pieces card-layer card-states card-plan card-loss
    card-died card-eval card-line gpu-numbers kept-outputs leak-loss leak-cycle leak-list oom-recover
    oom-fix card-steps card-ranks card-unet card-packed
""".split()
)
"""Cells that ask whether there is a card, themselves or by what they call."""

FAILED = re.compile(r"\w+(Error|Exception)\b")
NEEDS_A_CARD = set(
    """
    card-sums card-measured speed-ratios speed-cell offload-pinned bandwidth
""".split()
)
"""Cells whose values or times only a real card has; here they run on the CPU."""


def shown_by(source: str, name: str, names: dict) -> str:
    """Run a cell; returns what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, name, "exec"), names)
    pyplot.close("all")
    return printed.getvalue()


def stored(cell: dict) -> str:
    """What the cell printed when it was stored."""
    return "".join("".join(output["text"]) for output in cell["outputs"] if "text" in output)


def without_times(text: str) -> str:
    """Progress bars and seconds differ from run to run."""
    return re.sub(r"\d+(\.\d+)? m?s\b", "", text).strip()


def on_a_card(path: Path) -> tuple[dict[str, str], set[str]]:
    """What each cell of a notebook prints, or how it failed; and the cells that asked for a card and had none."""
    names, printed, asked = {"__name__": "__main__", "display": lambda *shown: None}, {}, set()

    def nobody() -> bool:
        # libraries ask too, and torch while memkit traces for a card that nobody has
        if "site-packages" not in sys._getframe(1).f_code.co_filename:
            asked.add(cell["id"])
        return False

    for cell in cells_of(path):
        if cell["cell_type"] != "code":
            continue
        has_card = cell["id"] in ASK and cell["id"] not in NEEDS_A_CARD
        card = (
            pretend_card(total_bytes=24 * GIB)
            if has_card
            else patch.object(torch.cuda, "is_available", nobody)
        )
        with card, warnings.catch_warnings():
            try:
                printed[cell["id"]] = shown_by("".join(cell["source"]), cell["id"], names)
            except Exception as error:  # noqa: BLE001 - a cell that fails takes others along: all are shown
                printed[cell["id"]] = f"{type(error).__name__}: {error}"
    return printed, asked


def is_as_stored(cell: dict, now: str) -> bool:
    """Whether a cell printed what it has stored; one that is not compared, whether it did not fail."""
    if {"nbval-ignore-output", "raises-exception", "setup"} & set(cell["metadata"].get("tags", [])):
        return "raises-exception" in cell["metadata"]["tags"] or not FAILED.match(now)
    return without_times(now) == without_times(stored(cell))


@pytest.mark.parametrize("path", NUMBERED, ids=place_of)
def test_a_notebook_runs_on_a_card_and_what_differs_is_tagged(path):
    printed, asked = on_a_card(path)
    cells = {cell["id"]: cell for cell in cells_of(path) if cell["id"] not in NEEDS_A_CARD}
    differ = {
        name: now[:300]
        for name, now in printed.items()
        if name in cells and not is_as_stored(cells[name], now)
    }
    assert not differ
    assert asked <= NEEDS_A_CARD, "these belong to ASK too"


def test_a_cell_that_needs_a_card_prints_its_own_figures():
    """And so ``make check-notebooks`` does not compare it, with a card or without one."""
    found = {cell["id"]: cell for path in NUMBERED for cell in cells_of(path)}
    for name in NEEDS_A_CARD:
        assert "nbval-ignore-output" in found[name]["metadata"].get("tags", []), name
