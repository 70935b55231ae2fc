"""``memkit compare``: two runs on one axis, and what grew between them, line by line.

Before and after a change, rank 0 and rank 3: each run at its own peak, block by block. A line is
matched by its file and function where its number moved.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from memkit.allocator.replays import Replay
from memkit.events import Event, Events
from memkit.fitting.diagnosis import NUM_LINES, played
from memkit.fitting.edits import line_of
from memkit.timeline import MemoryTimeline
from memkit.units import Printable, aligned_table, format_bytes, on_page


@dataclass(frozen=True, kw_only=True)
class TwoRuns(Printable):
    """What ``compare_runs`` found: the bytes that each line holds at the peaks, what changed most first, either way."""

    names: tuple[str, str]
    runs: tuple[Replay, Replay]
    lines: Mapping[str, tuple[int, int]]

    @property
    def changed(self) -> dict[str, tuple[int, int]]:
        """The lines that do not hold the same in both."""
        return {where: (first, second) for where, (first, second) in self.lines.items() if first != second}

    @property
    def words(self) -> str:
        """The difference in a few sentences."""
        peaks = [run.peak_allocated_bytes for run in self.runs]
        reserved = [run.peak_reserved_bytes for run in self.runs]
        told = " and ".join(f"{name} peaks at {format_bytes(peak)}" for name, peak in zip(self.names, peaks))
        if peaks[0] == peaks[1] and not self.changed:
            return f"{told}. Nothing at the peak differs."
        largest, pair = next(iter(self.lines.items()))
        return (
            f"{told}, {change(*peaks)}. What changed most is {largest}: {change(*pair)}. "
            f"Reserved, the peaks differ by {change(*reserved)}."
        )

    def __str__(self) -> str:
        rows = dict(list(self.changed.items())[:NUM_LINES])
        rows["all other lines"] = summed(pair for where, pair in self.lines.items() if where not in rows)
        asked = summed(self.lines.values())
        rows["rounding, workspaces"] = tuple(run.peak_allocated_bytes - part for run, part in zip(self.runs, asked))
        cells = [[where, *map(format_bytes, pair), change(*pair)] for where, pair in rows.items()]
        return on_page(self.words, aligned_table([["by line", *self.names, "change"], *cells]))


def compare_runs(
    first: MemoryTimeline | dict | str | Path,
    second: MemoryTimeline | dict | str | Path,
    *,
    names: tuple[str, str] = ("before", "after"),
    device: int | None = None,
) -> TwoRuns:
    """Two recordings or traces, each at its peak; of a snapshot of several cards this ``device``.

    Raises: ValueError: one of them carries no events, or is no snapshot.
    """
    runs = tuple(played(run, None, device)[0] for run in (first, second))
    return TwoRuns(names=names, runs=runs, lines=matched(*(lines_at_peak(run.timeline.events) for run in runs)))


def lines_at_peak(events: Events) -> dict[str, int]:
    """The bytes at the peak by the line that made them."""

    def line(event: Event) -> str:
        is_older = event.phase == "before" and not event.where
        return "stood before the recording" if is_older else line_of(event)

    standing = events.live_at(events.peak()).by(line)
    return {where: births.num_bytes for where, births in standing.items()}


def matched(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """The lines of both; one that moved in its function is the same line; several keep their order."""
    gone: dict[str, list[str]] = {}
    by_number = lambda where: (len(where), where)
    for where in sorted(first.keys() - second.keys(), key=by_number):
        gone.setdefault(without_number(where), []).append(where)
    before = {}
    for where in sorted(second, key=by_number):
        moved = [] if where in first else gone.get(without_number(where), [])
        before[where] = moved.pop(0) if moved else where
    before |= {where: where for where in first.keys() - before.values()}
    lines = {where: (first.get(old, 0), second.get(where, 0)) for where, old in before.items()}
    return dict(sorted(lines.items(), key=lambda line: (-abs(line[1][1] - line[1][0]), line[0])))


def without_number(where: str) -> str:
    """A line's file and function."""
    return re.sub(r"(\.py|cell):\d+", r"\1", where)


def summed(pairs) -> tuple[int, int]:
    """The bytes of many lines, in the first run and in the second."""
    return tuple(map(sum, zip((0, 0), *pairs)))


def change(first: int, second: int) -> str:
    """How much more there is in the second run.

    >>> change(1024, 2048), change(512, 0), change(3, 3)
    ('+1.00 KiB', '−512 B', 'no change')
    """
    return "no change" if first == second else "−+"[second > first] + format_bytes(abs(second - first))
