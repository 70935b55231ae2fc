"""A run on a card, kept as a file, with the card, the driver and the torch that it came from.

A reader without a GPU sees it beside the formula and the trace, named as recorded: what a cell has printed under
``make record`` (``recorded_output``), or a run that somebody else has published with its program (``recorded``).
Nothing measured stands without its machine and its date.
"""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill, wrap

from memkit.units import Text, on_page

FOLDER = Path(__file__).resolve().parents[1] / "recordings"


def recorded_output(cell: str, folder: str | Path = FOLDER) -> Text:
    """What a chapter's cell has printed on a card, by the newest run of ``make record``; without one, what to do.

    >>> from book import recorded_output
    >>> print(recorded_output("99-moon-phase"))
    No card's figures are kept here yet. On a machine with a CUDA card `make record`
    runs this cell, in the book's folder.
    """
    files = (
        json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).glob("card_*.json")
    )
    found = [run for run in files if cell in run["printed"]]
    if not found:
        words = "No card's figures are kept here yet. On a machine with a CUDA card `make record` "
        return on_page(fill(words + "runs this cell, in the book's folder.", 80))
    run = max(found, key=lambda run: run["about"]["date"])
    of = run["about"]
    title = f"Recorded: {of['card']}, driver {of['driver']}, torch {of['torch']}, {of['date']}."
    return on_page(title, run["printed"][cell].rstrip(), between="\n")


@dataclass(frozen=True, kw_only=True)
class CardRun:
    """A run that somebody has measured on a card and published, beside what this package predicts for its program.

    ``rows`` are (what, predicted bytes, measured bytes): a moment of a step, or a program among several.
    """

    card: str
    torch: str
    date: str
    program: str
    source: str
    licence: str
    rows: tuple[tuple[str, int, int], ...]

    def __str__(self) -> str:
        card = f"{self.card}, torch {self.torch}"
        measured = f"Measured on a card ({card}), {self.date}: {self.source}."
        return "\n".join((*wrap(f"{self.program}.", 76), *wrap(measured, 76)))


def recorded(chapter: str, name: str) -> CardRun:
    """What a CUDA cell shows where there is no card, from ``chapters/recordings/card_runs.csv``.

    Raises: ValueError: no run has this name.

    >>> run = recorded("05", "zero_grad")
    >>> run.card, run.rows[1][1:]  # predicted and measured bytes
    ('not named', (24609349120, 24607903232))
    """
    lines = (FOLDER / "card_runs.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(lines[1:])
    found = [row for row in rows if (row["chapter"], row["name"]) == (chapter, name)]
    if not found:
        where = f"card_runs.csv in {FOLDER.name}"
        raise ValueError(f"chapter={chapter!r}, name={name!r}: {where} has no such run")
    about = {key: found[0][key] for key in "card torch date program source licence".split()}
    sizes = ((row["row"], row["predicted_bytes"], row["measured_bytes"]) for row in found)
    rows = tuple((what, int(predicted), int(measured)) for what, predicted, measured in sizes)
    return CardRun(**about, rows=rows)


def load_runs(name: str) -> tuple[dict, dict]:
    """What a script stored under ``name``: where the runs come from, and the runs by name and seed.

    Raises: ValueError: no such file.
    """
    path = FOLDER / f"{name}.json"
    if not path.exists():
        raise ValueError(f"name={name!r}: there is no {path.name} in {FOLDER.name}")
    stored = json.loads(path.read_text(encoding="utf-8"))
    return stored["about"], stored["runs"]
