"""The workshop of 90 minutes, walked by a class on the real hub: what each cell takes when everybody runs it.

    python course/walk.py                                40 students, who want 40 GB
    python course/walk.py --students 4 --json walk.json

Everybody logs in, opens a chapter, runs it down to the last cell that the workshop needs there, at her own pace as
*Run All Above Selected Cell* does, and shuts the kernel down; then comes the next chapter. The cells and their order
are those of the guide's table. Students are those of `load.py`: all on this machine, without a browser. Exit code 1: a
cell failed.
"""

import argparse
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "course")]

from guide import CHAPTERS, walked
from load import Class, Student, running_hub, spread


def run_cells(student: Student, cells: Sequence[dict]) -> list[tuple[float, str]]:
    """Seconds and the error's name, that the kernel died, or nothing, of each cell in order."""
    told = []
    for cell in cells:
        started = time.monotonic()
        try:
            error = student.run("".join(cell["source"]))[0]
        except ConnectionError as died:
            # such as where the machine's memory was full; the next cell finds a new kernel
            error = str(died).partition(": ")[2]
        told.append((time.monotonic() - started, error))
    return told


def walk(room: Class) -> dict[str, dict]:
    """'chapter::cell' → the spread of its seconds over the class, and the errors that it ended in."""
    found = {}
    for chapter, (cells, talked, after) in walked("workshop").items():
        path = str(CHAPTERS[chapter].relative_to(ROOT))
        room.all_at_once(
            f"chapter {chapter:02d} opened", lambda student, path=path: student.open_chapter(path)
        )
        told = room.all_at_once(
            f"chapter {chapter:02d} run above {after!r}",
            lambda student, cells=cells: run_cells(student, cells),
        )
        room.all_at_once(f"chapter {chapter:02d} closed", Student.close_chapter)
        for cell, mine in zip(cells, zip(*told, strict=True), strict=True):
            seconds, errors = zip(*mine, strict=True)
            name = f"{chapter:02d}::{cell['id']}"
            found[name] = spread(seconds) | {
                "talked": cell["id"] in talked,
                "errors": sorted({*errors} - {""}),
            }
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Walk; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--students", type=int, default=40)
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    options, password = parser.parse_args(arguments), secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as folder, running_hub(Path(folder), password) as hub:
        names = [f"student{number:02}" for number in range(options.students)]
        url = "http://127.0.0.1:8123"
        room = Class(
            students=[Student(name=name, hub=url, password=password) for name in names], hub=hub
        )
        room.all_at_once("logged in", Student.log_in)
        cells = walk(room)
    for name, told in cells.items():
        if told["max"] >= 1 or told["errors"]:
            print(
                f"{name:40} p50 {told['p50']:6.1f} s, max {told['max']:6.1f} s  {' '.join(told['errors'])}"
            )
    print(f"{len(cells)} cells; the others take less than a second")
    if options.json:
        figures = {"students": options.students, **room.figures, "cells": cells}
        Path(options.json).write_text(json.dumps(figures, indent=1))
    return int(any(told["errors"] for told in cells.values()))


if __name__ == "__main__":
    sys.exit(main())
