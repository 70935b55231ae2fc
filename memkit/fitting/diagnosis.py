"""What filled the memory, when, by which line, and which three changes would help most.

Every change is tried, not guessed: the events are changed as the change would change them, played through the
allocator again, and the two peaks are subtracted (``memkit.fitting.advice``). A recording has no parts; where
they are inferred from its pattern the page says so, and where they cannot be it says that.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from memkit.allocator.config import AllocatorConfig
from memkit.allocator.replays import Replay
from memkit.allocator.snapshot_replay import replay_snapshot, replay_trace
from memkit.events import Events
from memkit.fitting.advice import Effect, Run, best_of_each_kind, effects_on_run
from memkit.fitting.edits import line_of
from memkit.fitting.recorded_parts import with_parts
from memkit.timeline import PARTS, MemoryTimeline
from memkit.units import Printable, aligned_table, format_bytes, on_page

NUM_LINES = 8
NUM_CHANGES = 3
NUM_SPANS = 4
"""A line grows if the least that it holds rises over so many equal spans of the events."""
SHARE_SHOWN = 100
"""Less than one part in so many of the peak is no growth worth a line."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Blocks alive at the peak that one line of the model, or one operation, made."""

    where: str
    part: str | None
    num_blocks: int
    num_bytes: int

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Its cells in a table."""
        part = (self.part or "–").replace("_", " ")
        return self.where, part, str(self.num_blocks), format_bytes(self.num_bytes)


@dataclass(frozen=True, kw_only=True)
class Growing:
    """A line that holds more and more: the least bytes that are there from it in each span of the recording."""

    where: str
    floors: tuple[int, ...]

    @property
    def grown_bytes(self) -> int:
        """How much more it holds in the last span than in the first."""
        return self.floors[-1] - self.floors[0]

    @property
    def is_rising(self) -> bool:
        """Whether it holds more in each span; the first may be the start, where there is nothing yet."""
        first, *rest = self.floors
        return first <= rest[0] and all(a < b for a, b in pairwise(rest))


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Printable):
    """One page about a run: its peak, what stood there, and what would help.

    ``parts_from`` is "trace" where the program told them, "pattern" where they are inferred from a recording,
    "" where nothing tells them; ``timeline`` has them. ``moment`` is the peak's phase and step in words. The changes
    have one base, ``peak_reserved_bytes``: a saving is the difference of two replays from an empty card, taken off it.
    """

    result: Replay
    timeline: MemoryTimeline
    phase: str
    moment: str
    parts: dict[str | None, int]
    all_lines: tuple[Line, ...]
    tried: tuple[Effect, ...]
    parts_from: str
    peak_reserved_bytes: int
    growing: tuple[Growing, ...] = ()

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines that allocated most of what is in memory at the peak."""
        return self.all_lines[:NUM_LINES]

    @property
    def changes(self) -> tuple[Effect, ...]:
        """The changes that help most."""
        return tuple(best_of_each_kind(self.tried, NUM_CHANGES))

    def __str__(self) -> str:
        lines = [("by line", "part", "blocks", "bytes"), *(line.row for line in self.lines)]
        pages = [self._headline(), self._parts(), aligned_table(lines), *growth_in_words(self.growing)]
        total, result = sum(self.parts.values()), self.result
        cached = result.peak_reserved_bytes - result.peak_allocated_bytes
        unseen = format_bytes(max(result.peak_allocated_bytes - total, 0))
        rounded, idle = f"{unseen} in the allocator's rounding and workspaces", f"{format_bytes(cached)} reserved"
        pages.append(f"In no tensor: {rounded}, {idle} but not allocated.")
        return on_page(*pages, changes_in_words(self.changes))

    def _headline(self) -> str:
        result, failure = self.result, self.result.failure
        when = f", reached in {self.moment}" if self.moment else ""
        peak = f"Peak: {format_bytes(result.peak_allocated_bytes)} allocated{when}; "
        lines = [peak + f"{format_bytes(result.peak_reserved_bytes)} reserved."]
        if failure is not None:
            asked = f"{format_bytes(failure.requested_bytes)} asked by {failure.where or 'a line not recorded'}"
            lines.append(f"Failed: {asked}. {failure.message}")
        if self.peak_reserved_bytes != result.peak_reserved_bytes:
            lines.append(f"With room enough it would reserve {format_bytes(self.peak_reserved_bytes)}.")
        return "\n".join(lines)

    def _parts(self) -> str:
        if not self.parts_from:
            return "What was in memory cannot be told apart: the recording shows no whole training step."
        total = sum(self.parts.values())
        head = "in memory at the peak" + (", as its pattern suggests" if self.parts_from == "pattern" else "")
        rows = [[head, "bytes", "share"]]
        for part, size in self.parts.items():
            if size:
                name = (part or "not told apart").replace("_", " ")
                rows.append([name, format_bytes(size), f"{size / total:.0%}"])
        return aligned_table(rows)


def changes_in_words(changes: tuple[Effect, ...]) -> str:
    """A table of changes with what each saves, and a line with its reason."""
    if not changes:
        return "Nothing tried here saves a byte."
    rows = [["what would help most", "saves", "reserved then", "known by"]]
    rows += [[c.name, format_bytes(c.saved_bytes), format_bytes(c.after_bytes), c.how] for c in changes]
    return on_page(aligned_table(rows), *(f"{c.name}: {c.why}" for c in changes), between="\n")


def diagnose_memory(
    source: dict | str | Path | MemoryTimeline, config: AllocatorConfig | None = None, **card
) -> Diagnosis:
    """Diagnose a memory snapshot (or its file) or a traced timeline.

    ``card`` is what ``replay_snapshot`` takes of a snapshot, and ``replay_trace`` of a trace: there with a
    ``compute_capability`` the page counts the workspaces of cuBLAS too.

    Raises: ValueError: the source carries no events.

    >>> from memkit import TrainingSetup, diagnose_memory, models, trace_memory, training_build
    >>> trace = trace_memory(training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=64)))
    >>> "what would help most" in str(diagnose_memory(trace))
    True
    """
    replayed = replay_trace if isinstance(source, MemoryTimeline) else replay_snapshot
    result, parts_from = with_parts(replayed(source, config, **card))
    timeline = result.timeline
    base = replay_trace(timeline, result.config)
    live, moment = timeline.events.live_at(base.peak_event), timeline.events.moment(base.peak_event)
    failed, has_phases = result.failure is not None, parts_from != ""
    run = Run(events=timeline.events, live=live, config=result.config, has_failed=failed, has_phases=has_phases)
    headline = base.peak_reserved_bytes if failed else result.peak_reserved_bytes
    parts = {part: own.num_bytes for part, own in live.by(lambda event: event.part).items()}
    return Diagnosis(
        result=result,
        timeline=timeline,
        phase=timeline.events[base.peak_event].phase,
        moment=moment.replace("step", "recorded step") if parts_from == "pattern" else moment,
        parts={part: parts[part] for part in (*PARTS, None) if part in parts},
        all_lines=lines_of(live),
        tried=tuple(effects_on_run(timeline, run, headline, base.peak_reserved_bytes)),
        parts_from=parts_from,
        peak_reserved_bytes=headline,
        growing=rising_lines(timeline.events, live.num_bytes),
    )


def growth_in_words(growing: tuple[Growing, ...]) -> tuple[str, ...]:
    """A table of what grows, and what it means."""
    if not growing:
        return ()
    rows = [["what grows: the least it holds in", *(f"quarter {number + 1}" for number in range(NUM_SPANS))]]
    rows += [[line.where, *map(format_bytes, line.floors)] for line in growing[:NUM_LINES]]
    return aligned_table(rows), "If the recording spans several steps, this is kept from step to step: a leak."


def rising_lines(events: Events, peak_bytes: int) -> tuple[Growing, ...]:
    """The lines whose least bytes rise from span to span, the one that grows most first.

    Weights and states are there from the first steps on and rise no more; activations and gradients fall to nothing
    in each step. A forward that fails half-way grows too, and a recording does not tell it from a leak.
    """
    line, held, floors = {}, Counter(), []
    ends = [len(events) * number // NUM_SPANS for number in range(NUM_SPANS + 1)]
    for first, last in pairwise(ends):
        least = Counter(held)
        for event in events[first:last]:
            where = line.setdefault(event.block, line_of(event))
            held[where] += event.num_bytes
            least[where] = min(least[where], held[where])
        floors.append(least)
    found = (Growing(where=where, floors=tuple(least[where] for least in floors)) for where in held)
    worth = [one for one in found if one.is_rising and one.grown_bytes * SHARE_SHOWN >= peak_bytes]
    return tuple(sorted(worth, key=lambda one: -one.grown_bytes))


def lines_of(births: Events) -> tuple[Line, ...]:
    """The blocks by line and part, the line with most bytes first."""
    lines = [
        Line(where=where, part=part, num_blocks=len(own), num_bytes=own.num_bytes)
        for (where, part), own in births.by(lambda event: (line_of(event), event.part)).items()
    ]
    return tuple(sorted(lines, key=lambda line: -line.num_bytes))
