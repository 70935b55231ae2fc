"""``memkit compare``: two runs on one axis, and what grew between them, by line and part.

Before and after a change, rank 0 and rank 3, predicted and recorded: each run at its own peak, block by block. A line
is matched by its file and function where its number moved. Where only one of the runs tells what its blocks are for,
lines are matched by their place alone.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from memkit.allocator.replays import Replay
from memkit.events import Event, Events
from memkit.fitting.diagnosis import played
from memkit.fitting.edits import line_of
from memkit.timeline import MemoryTimeline
from memkit.units import Printable, aligned_table, format_bytes, on_page

NUM_LINES = 8
Key = tuple[str, str | None]


@dataclass(frozen=True, kw_only=True)
class LineGrowth:
    """Bytes and blocks that one line holds at the peak of each run; 0 where it holds nothing."""

    where: str
    part: str | None
    bytes: tuple[int, int]
    blocks: tuple[int, int]

    @property
    def grown_bytes(self) -> int:
        return self.bytes[1] - self.bytes[0]


@dataclass(frozen=True, kw_only=True)
class TwoRuns(Printable):
    """What ``compare_runs`` found; ``lines`` are sorted by how much they changed, either way. ``print`` it."""

    names: tuple[str, str]
    runs: tuple[Replay, Replay]
    moments: tuple[str, str]
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
        names, grown = self.names, self.grown_bytes
        peaks = " and ".join(f"{n} peaks at {format_bytes(p)}" for n, p in zip(names, self.peaks, strict=True))
        if not grown and not any(line.grown_bytes for line in self.lines):
            return f"{peaks}. Nothing at the peak differs."
        sentences = [f"{peaks}, {signed(grown)}."]
        if any(self.moments):
            named = [f"{n} in {moment or 'a phase not named'}" for n, moment in zip(names, self.moments, strict=True)]
            moments = f"Both in {self.moments[0]}" if self.moments[0] == self.moments[1] else ", ".join(named)
            sentences.append(f"{moments}.")
        largest = max(self.lines, key=lambda line: abs(line.grown_bytes))
        part = f" ({largest.part.replace('_', ' ')})" if largest.part else ""
        sentences.append(f"What changed most is {largest.where}{part}: {signed(largest.grown_bytes)}.")
        reserved = self.runs[1].peak_reserved_bytes - self.runs[0].peak_reserved_bytes
        sentences.append(f"Reserved, the peaks differ by {signed(reserved)}.")
        return " ".join(sentences)

    def __str__(self) -> str:
        header = ["by line", "part", *self.names, "change"]
        shown = [line for line in self.lines if line.grown_bytes][:NUM_LINES]
        rows = [
            [line.where, (line.part or "–").replace("_", " "), *map(format_bytes, line.bytes), signed(line.grown_bytes)]
            for line in shown
        ]
        others = self.lines if not shown else [line for line in self.lines if line not in shown]
        sums = [sum(line.bytes[i] for line in others) for i in (0, 1)]
        rows.append(["all other lines", "–", *map(format_bytes, sums), signed(sums[1] - sums[0])])
        rest = [peak - sum(line.bytes[i] for line in self.lines) for i, peak in enumerate(self.peaks)]
        rows.append(["rounding, workspaces", "–", *map(format_bytes, rest), signed(rest[1] - rest[0])])
        return on_page(self.words, aligned_table([header, *rows]))


def compare_runs(
    first: MemoryTimeline | Replay | dict | str | Path,
    second: MemoryTimeline | Replay | dict | str | Path,
    *,
    names: tuple[str, str] = ("before", "after"),
    devices: tuple[int | None, int | None] = (None, None),
) -> TwoRuns:
    """Two recordings, traces or replays, each at its peak; of a snapshot of several cards the one in ``devices``.

    Raises: ValueError: one of them carries no events, or is no snapshot.

    >>> from memkit.allocator.stories import growing_story
    >>> from memkit.timeline import Instant
    >>> story = growing_story()
    >>> runs = [MemoryTimeline(instants=(Instant(name="end", total_bytes=0),), source="traced", events=tuple(events))
    ...         for events in (story[:5], story)]
    >>> compare_runs(*runs).words
    'before peaks at 48.00 MiB and after peaks at 64.00 MiB, +16.00 MiB. What changed most is batch 6 (activations)...'
    """
    pairs = zip((first, second), devices, strict=True)
    runs = [run if isinstance(run, Replay) else played(run, None, device)[0] for run, device in pairs]
    events = [run.timeline.events for run in runs]
    have_parts = all(any(event.part for event in own) for own in events)
    lines = matched(*(by_line(own.live_at(own.peak()), have_parts) for own in events))
    return TwoRuns(
        names=(str(names[0]), str(names[1])),
        runs=tuple(runs),
        moments=tuple(own.moment(own.peak()) for own in events),
        lines=tuple(sorted(lines, key=lambda line: (-abs(line.grown_bytes), line.where, line.part or ""))),
    )


def by_line(births: Events, has_parts: bool) -> dict[Key, Events]:
    """What each line has made, and for each part where both runs tell the parts."""

    def key(event: Event) -> Key:
        is_older = event.phase == "before" and not event.where
        return "stood before the recording" if is_older else line_of(event), event.part if has_parts else None

    return births.by(key)


def matched(first: dict[Key, Events], second: dict[Key, Events]) -> list[LineGrowth]:
    """The lines of both; one that moved inside its function is the same line."""
    gone = {without_number(key): key for key in sorted(first.keys() - second.keys(), key=str)}
    before = {key: key if key in first else gone.pop(without_number(key), key) for key in sorted(second, key=str)}
    before |= {key: key for key in first.keys() - before.values()}
    return [
        LineGrowth(
            where=key[0],
            part=key[1],
            bytes=(first.get(old, Events()).num_bytes, second.get(key, Events()).num_bytes),
            blocks=(len(first.get(old, ())), len(second.get(key, ()))),
        )
        for key, old in before.items()
    ]


def without_number(key: Key) -> Key:
    """A line's file and function, and its part."""
    where, part = key
    return re.sub(r"(\.py|cell):\d+", r"\1", where), part


def signed(num_bytes: int) -> str:
    """Bytes with their sign.

    >>> signed(1024), signed(-512), signed(0)
    ('+1.00 KiB', '−512 B', 'no change')
    """
    if not num_bytes:
        return "no change"
    return ("+" if num_bytes > 0 else "−") + format_bytes(abs(num_bytes))
