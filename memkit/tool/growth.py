"""``memkit compare``: two runs on one axis, and what grew between them, line by line.

Before and after a change, rank 0 and rank 3: each run at its own peak, block by block. A line is
matched by its file and function where its number moved.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from memkit.allocator.replays import Replay
from memkit.events import Event, Events
from memkit.fitting.diagnosis import NUM_LINES, played
from memkit.fitting.edits import line_of
from memkit.timeline import MemoryTimeline
from memkit.units import Printable, aligned_table, format_bytes, on_page


@dataclass(frozen=True, kw_only=True)
class LineGrowth:
    """Bytes that one line holds at the peak of each run; 0 where it holds nothing."""

    where: str
    bytes: tuple[int, int]

    @property
    def grown_bytes(self) -> int:
        return self.bytes[1] - self.bytes[0]


@dataclass(frozen=True, kw_only=True)
class TwoRuns(Printable):
    """What ``compare_runs`` found; ``lines`` are sorted by how much they changed, either way."""

    names: tuple[str, str]
    runs: tuple[Replay, Replay]
    lines: tuple[LineGrowth, ...]

    @property
    def peaks(self) -> tuple[int, int]:
        """Peak of allocated bytes of each run."""
        first, second = self.runs
        return first.peak_allocated_bytes, second.peak_allocated_bytes

    @property
    def grown_bytes(self) -> int:
        """How much higher the second run's peak is."""
        return self.peaks[1] - self.peaks[0]

    @property
    def words(self) -> str:
        """The difference in a few sentences."""
        named = zip(self.names, self.peaks, strict=True)
        peaks = " and ".join(f"{name} peaks at {format_bytes(peak)}" for name, peak in named)
        if not self.grown_bytes and not any(line.grown_bytes for line in self.lines):
            return f"{peaks}. Nothing at the peak differs."
        largest = max(self.lines, key=lambda line: abs(line.grown_bytes))
        reserved = self.runs[1].peak_reserved_bytes - self.runs[0].peak_reserved_bytes
        return (
            f"{peaks}, {signed(self.grown_bytes)}. What changed most is {largest.where}: "
            f"{signed(largest.grown_bytes)}. Reserved, the peaks differ by {signed(reserved)}."
        )

    def __str__(self) -> str:
        shown = [line for line in self.lines if line.grown_bytes][:NUM_LINES]
        others = [line.bytes for line in self.lines if line not in shown]
        sums = tuple(sum(pair[i] for pair in others) for i in (0, 1))
        asked = [sum(line.bytes[i] for line in self.lines) for i in (0, 1)]
        rest = tuple(peak - size for peak, size in zip(self.peaks, asked, strict=True))
        named = [(line.where, line.bytes) for line in shown]
        named += [("all other lines", sums), ("rounding, workspaces", rest)]
        rows = [[where, *map(format_bytes, pair), signed(pair[1] - pair[0])] for where, pair in named]
        return on_page(self.words, aligned_table([["by line", *self.names, "change"], *rows]))


def compare_runs(
    first: MemoryTimeline | dict | str | Path,
    second: MemoryTimeline | dict | str | Path,
    *,
    names: tuple[str, str] = ("before", "after"),
    device: int | None = None,
) -> TwoRuns:
    """Two recordings or traces, each at its peak; of a snapshot of several cards this ``device``.

    Raises: ValueError: one of them carries no events, or is no snapshot.

    >>> from memkit.allocator.stories import growing_story
    >>> from memkit.timeline import Instant
    >>> story = growing_story()
    >>> end = Instant(name="end", total_bytes=0)
    >>> runs = [MemoryTimeline(instants=(end,), source="traced", events=tuple(events))
    ...         for events in (story[:5], story)]
    >>> compare_runs(*runs).words
    'before peaks at 48.00 MiB and after peaks at 64.00 MiB, +16.00 MiB. What changed most is ...'
    """
    runs = tuple(played(run, None, device)[0] for run in (first, second))
    lines = matched(*(lines_at_peak(run.timeline.events) for run in runs))
    return TwoRuns(
        names=names, runs=runs,
        lines=tuple(sorted(lines, key=lambda line: (-abs(line.grown_bytes), line.where))),
    )


def lines_at_peak(events: Events) -> dict[str, int]:
    """The bytes at the peak by the line that made them."""

    def line(event: Event) -> str:
        is_older = event.phase == "before" and not event.where
        return "stood before the recording" if is_older else line_of(event)

    standing = events.live_at(events.peak()).by(line)
    return {where: births.num_bytes for where, births in standing.items()}


def matched(first: dict[str, int], second: dict[str, int]) -> list[LineGrowth]:
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
    return [
        LineGrowth(where=where, bytes=(first.get(old, 0), second.get(where, 0)))
        for where, old in before.items()
    ]


def without_number(where: str) -> str:
    """A line's file and function."""
    return re.sub(r"(\.py|cell):\d+", r"\1", where)


def signed(num_bytes: int) -> str:
    """Bytes with their sign.

    >>> signed(1024), signed(-512), signed(0)
    ('+1.00 KiB', '−512 B', 'no change')
    """
    if not num_bytes:
        return "no change"
    return ("+" if num_bytes > 0 else "−") + format_bytes(abs(num_bytes))
