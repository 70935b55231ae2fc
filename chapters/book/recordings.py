"""A GPU run kept as a file: the numbers, the timelines, and which card, driver and torch they came from.

A reader without a GPU sees a recorded run beside the formula and the trace, named as recorded: one of ``make record``,
or one that somebody else has published with its program (``recorded``). Nothing measured stands without its machine
and its date.
"""

import csv
import datetime
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from textwrap import wrap
from typing import Self

from memkit.timeline import Instant, MemoryTimeline
from memkit.units import Printable, Text, aligned_table, format_bytes, format_gb, on_page

FOLDER = Path(__file__).resolve().parents[1] / "recordings"

PROVENANCE = ("card", "driver", "torch", "cuda", "date", "command", "commit")
"""What every recording must say about its origin; ``date`` as 2026-11-20, ``commit`` of this repository."""

SHOWS = {
    ("01", "bandwidth"): "the speed of copies on the card and over the bus",
    ("02", "card_formats"): "the error of a matrix product by the format of its inputs",
    ("03", "matmul_rates"): "the speed of matrix products by dtype",
    (
        "06",
        "fp8_products",
    ): "the times of matrix products in bf16 and in FP8, with casts and without",
    ("07", "context"): "what a process takes on the card beside its tensors",
    ("09", "optimizer_steps"): "peak and time of a step under each optimizer",
}
"""What a reader sees of a recording, by chapter and name: those that a chapter's cell prints."""


@dataclass(frozen=True, kw_only=True)
class Recording(Printable):
    """One measurement of one chapter on one card.

    ``numbers`` are ints, floats and texts by name; ``_bytes``, ``_bytes_per_s`` and ``_seconds`` at the end
    of a name are its unit. ``timelines`` holds whole training steps by name.

    Raises: ValueError: a part of the provenance is missing, a number is not finite.
    """

    chapter: str
    name: str
    provenance: Mapping[str, str]
    numbers: Mapping[str, int | float | str] = field(default_factory=dict)
    timelines: Mapping[str, MemoryTimeline] = field(default_factory=dict)

    def __post_init__(self):
        for key in PROVENANCE:
            if not self.provenance.get(key):
                value, needed = self.provenance.get(key), ", ".join(PROVENANCE)
                raise ValueError(
                    f"provenance[{key!r}]={value!r} is not a text; needed are {needed}"
                )
        datetime.date.fromisoformat(self.provenance["date"])
        for key, value in self.numbers.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"numbers[{key!r}]={value!r} is not finite")
            if key.endswith("_bytes") and not isinstance(value, int):
                raise ValueError(f"numbers[{key!r}]={value!r} is not a whole number of bytes")

    @property
    def title(self) -> str:
        """Where the numbers come from, in one line."""
        of = self.provenance
        return f"recorded: {of['card']}, driver {of['driver']}, torch {of['torch']}, {of['date']}"

    @property
    def file_name(self) -> str:
        """Chapter, measurement and card, so that a new run on the same card replaces the old one."""
        card = re.sub(r"[^a-z0-9]+", "-", self.provenance["card"].lower()).strip("-")
        return f"{self.chapter}_{self.name}_{card}.json"

    def table(self) -> Text:
        """The numbers as aligned text, in the units their names end with."""
        rows = [[_words(name), _with_unit(name, value)] for name, value in self.numbers.items()]
        return aligned_table([["measured", ""], *rows])

    def __str__(self) -> str:
        parts = [self.title]
        if self.numbers:
            parts.append(self.table())
        for name, timeline in self.timelines.items():
            parts += [f"{name}:", str(timeline)]
        return on_page(*parts)

    def to_json(self) -> str:
        """JSON text that ``from_json`` reads back to an equal recording, its timelines without their events."""
        timelines = {
            name: asdict(replace(each, events=())) | {"events": []}
            for name, each in self.timelines.items()
        }
        data = {"chapter": self.chapter, "name": self.name, "provenance": dict(self.provenance)}
        data |= {"numbers": dict(self.numbers), "timelines": timelines}
        return json.dumps(data, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The recording that ``to_json`` wrote."""
        data = json.loads(text)
        timelines = {
            name: MemoryTimeline(
                **each | {"instants": tuple(Instant(**instant) for instant in each["instants"])}
            )
            for name, each in data["timelines"].items()
        }
        return cls(**(data | {"timelines": timelines}))


def save_recording(recording: Recording, folder: str | Path = FOLDER) -> Path:
    """Write the recording into ``folder``, timelines without their events, and return the file."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / recording.file_name
    path.write_text(recording.to_json() + "\n", encoding="utf-8")
    return path


def load_recordings(chapter: str, folder: str | Path = FOLDER) -> tuple[Recording, ...]:
    """All recordings of a chapter (``"01"``), the newest first; none where there is no such folder."""
    files = sorted(Path(folder).glob(f"{chapter}_*.json"))
    found = [Recording.from_json(file.read_text(encoding="utf-8")) for file in files]
    return tuple(sorted(found, key=lambda each: each.provenance["date"], reverse=True))


def find_recording(chapter: str, name: str, folder: str | Path = FOLDER) -> Recording | None:
    """The newest recording of a measurement, or ``None``."""
    return next((each for each in load_recordings(chapter, folder) if each.name == name), None)


def recorded_or_words(chapter: str, name: str, folder: str | Path = FOLDER) -> Text:
    """The recording as text. Without one: what would stand here, and the command that measures it.

    >>> from book import recorded_or_words
    >>> print(recorded_or_words("99", "moon_phase"))
    Not recorded yet: the moon phase.
    On a machine with a CUDA card `make record` measures it, in the book's folder.
    """
    if (recording := find_recording(chapter, name, folder)) is not None:
        return str(recording)
    shown = SHOWS.get((chapter, name), f"the {_words(name)}")
    where = "On a machine with a CUDA card `make record` measures it, in the book's folder."
    return on_page(f"Not recorded yet: {shown}.\n{where}")


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


def _words(name: str) -> str:
    return re.sub(r"(_bytes|_bytes_per_s|_seconds)$", "", name).replace("_", " ")


def _with_unit(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    if name.endswith("_bytes_per_s"):
        return f"{format_gb(value)}/s"
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_seconds"):
        return f"{value * 1e3:,.3f} ms"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
