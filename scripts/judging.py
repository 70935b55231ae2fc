"""The record of a judge: what was judged of its seeds, in one JSON file with which a stopped run goes on."""

import json
import platform
from datetime import date
from pathlib import Path

import torch


def recorded(file: Path, rows: str, **seeds: object) -> list[dict]:
    """The rows of these seeds that the file holds."""
    data = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"about": {}}
    return data[rows] if all(data["about"].get(name) == value for name, value in seeds.items()) else []


def write(file: Path, about: dict, **rows: list[dict]) -> None:
    """What the rows come to, the rows one a line, and where they were judged; whole or not at all."""
    about |= {"torch": torch.__version__, "machine": platform.machine(), "date": date.today().isoformat()}
    ((name, items),) = rows.items()
    lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in items)
    aside = file.with_suffix(".part")
    aside.write_text(f'{{"about": {json.dumps(about)},\n"{name}": [\n{lines}\n]}}\n', encoding="utf-8")
    aside.replace(file)
