"""Run every benchmark, or those named, and print one table: ``python -m dev.bench [import slider ...]``."""

import argparse
import importlib
import platform
import sys
import traceback
from importlib.metadata import version
from pathlib import Path

from dev.bench import Row


def table_of(rows: list[Row]) -> str:
    """The rows as an aligned table, one promise a line."""
    lines = [("", "promise", "measured", "wanted", "")]
    for row in rows:
        lines.append(
            ("ok" if row.met else "NO", row.name, f"{row.ratio:.2f}×", row.requirement, row.detail)
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main() -> int:
    names = sorted(
        path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py")
    )
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"one or more of {', '.join(names)}")
    parser.add_argument(
        "--rows",
        type=Path,
        help="with public: predict and judge the rows of this file (csv, csv.gz)",
    )
    chosen = parser.parse_args()
    if chosen.rows:
        from book.many_cards import cards_words
        from dev.bench.many_cards import predicted_rows

        print(cards_words(list(predicted_rows(chosen.rows))))
        return 0
    asked = chosen.names or names
    if unknown := sorted(set(asked) - set(names)):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(names)}")
    rows, broken = [], []
    for name in asked:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            rows += importlib.import_module(f"dev.bench.bench_{name}").run()
        except Exception:  # noqa: BLE001 - one broken benchmark does not hide the others
            traceback.print_exc()
            broken.append(name)
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {version('torch')}\n")
    print(table_of(rows))
    if broken:
        print(f"\nbroken: {', '.join(broken)}")
    return 1 if broken or not all(row.met for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
