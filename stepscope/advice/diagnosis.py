"""One page about a run, for chapter 07 and ``stepscope snapshot``: what filled the memory, when, and by which line.

It says what is held, by which line and since when, what grows, and what would cure it. A number stands beside a cure
only where the same events were replayed by other options of the allocator: what a changed program takes is known when
it is traced again, as ``stepscope report`` does. A recording has no program, and names no parts.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from memkit.timeline import PARTS, Events, MemoryTimeline
from memkit.units import Printable, aligned_table, format_bytes, on_page
from stepscope.advice.changes import EXPANDABLE_SEGMENTS, SHARE_SHOWN, Change, Effect, Run, cures_of
from stepscope.advice.growing import BEFORE_THE_STEPS, NUM_SPANS, Growing, growing_lines, line_of
from stepscope.allocator.caching import AllocatorConfig
from stepscope.allocator.replay import Replay, replay_trace
from stepscope.allocator.snapshots import RecordedRun, read_snapshot

NUM_LINES = 8
NUM_CURES = 4


@dataclass(frozen=True, kw_only=True)
class Line:
    """Blocks alive at the peak that one line of the model, or one operation, made; the oldest of them ``since``."""

    where: str
    part: str | None
    num_blocks: int
    num_bytes: int
    since: str = ""

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Its cells in a table."""
        part = (self.part or "–").replace("_", " ")
        return self.where, part, str(self.num_blocks), format_bytes(self.num_bytes)


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Printable):
    """One page about a run: its peak, what stood there, and what would help.

    ``recorded`` is the recording it is of, if it is of one. ``moment`` is the peak's phase and step in words.
    ``cures`` are named without a number. ``changes`` have one base, ``peak_reserved_bytes``: a saving is the difference
    of two replays of these very events from an empty card, taken off it.
    """

    result: Replay
    recorded: RecordedRun | None
    moment: str
    parts: dict[str | None, int]
    lines: tuple[Line, ...]
    changes: tuple[Effect, ...]
    cures: tuple[Change, ...]
    peak_reserved_bytes: int
    growing: tuple[Growing, ...] = ()

    def __str__(self) -> str:
        lines = [("by line", "part", "since", "bytes")]
        lines += [(*line.row[:2], line.since, line.row[3]) for line in self.lines]
        cached = self.result.peak_reserved_bytes - self.result.peak_allocated_bytes
        unseen = max(self.result.peak_allocated_bytes - sum(self.parts.values()), 0)
        return on_page(
            self._headline(),
            self._parts(),
            aligned_table(lines),
            *growth_in_words(self.growing),
            f"In no tensor: {format_bytes(unseen)} in the allocator's rounding and workspaces, "
            f"{format_bytes(cached)} reserved but not allocated.",
            cures_in_words(self.cures[:NUM_CURES]),
            changes_in_words(self.changes),
        )

    def _headline(self) -> str:
        result, failure = self.result, self.result.failure
        when = f", reached in {self.moment}" if self.moment else ""
        peak = f"Peak: {format_bytes(result.peak_allocated_bytes)} allocated{when}; "
        lines = [peak + f"{format_bytes(result.peak_reserved_bytes)} reserved."]
        if self.recorded is not None and self.recorded.failed:
            lines.append(f"Failed: {self.recorded.failed}.")
        if failure is not None:
            asked = f"{format_bytes(failure.requested_bytes)} asked by {failure.where or 'a line not recorded'}"
            lines.append(f"Failed: {asked}. {failure.message}")
        if self.peak_reserved_bytes != result.peak_reserved_bytes:
            lines.append(
                f"With room enough it would reserve {format_bytes(self.peak_reserved_bytes)}."
            )
        return "\n".join(lines)

    def _parts(self) -> str:
        events, total = self.result.timeline.events, sum(self.parts.values())
        if set(self.parts) == {None}:
            older = events.unfreed() & {event.block for event in events if event.phase == "before"}
            older_bytes = sum(event.num_bytes for event in events if event.block in older)
            stands = f"At its end {format_bytes(events.num_bytes)} stand"
            return f"A recording names no parts. {stands}, {format_bytes(older_bytes)} of them from before it."
        rows = [["in memory at the peak", "bytes", "share"]]
        for part, size in self.parts.items():
            if size:
                name = (part or "not told apart").replace("_", " ")
                rows.append([name, format_bytes(size), f"{size / total:.0%}"])
        return aligned_table(rows)


def changes_in_words(changes: tuple[Effect, ...]) -> str:
    """A table of changes with what each saves, and a line with its reason."""
    if not changes:
        return "Of what was tried, nothing saves a byte."
    rows = [["what would help most", "saves", "reserved then", "known by"]]
    rows += [
        [c.name, format_bytes(c.saved_bytes), format_bytes(c.after_bytes), c.how] for c in changes
    ]
    return on_page(aligned_table(rows), *(f"{c.name}: {c.why}" for c in changes), between="\n")


def cures_in_words(cures: tuple[Change, ...]) -> str:
    """Cures and their reasons; what each saves only a trace of the changed program says."""
    if not cures:
        return "These events point to no cure."
    head = "What these events point to; what it saves, a trace of the changed program says:"
    return on_page(head, *(f"- {cure.name}: {cure.why}" for cure in cures), between="\n")


def diagnose_memory(
    source: dict | str | Path | MemoryTimeline,
    config: AllocatorConfig | None = None,
    *,
    device: int | None = None,
    **card,
) -> Diagnosis:
    """Diagnose a memory snapshot (or its file), of one ``device``, or a traced timeline.

    ``card`` is what ``replay_trace`` takes: with a ``compute_capability`` the page of a trace counts the workspaces of
    cuBLAS too.

    Raises: ValueError: the source carries no events.

    >>> from memkit import TrainingSetup, models, trace_memory, training_build
    >>> from stepscope import diagnose_memory
    >>> trace = trace_memory(training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=64)))
    >>> [cure.name for cure in diagnose_memory(trace).cures]
    ['8-bit AdamW']
    """
    recorded = None if isinstance(source, MemoryTimeline) else read_snapshot(source, device)
    timeline, own_config = (recorded.timeline, recorded.config) if recorded else (source, None)
    result = replay_trace(timeline, config or own_config, **card)
    # the events alone: without a card's end and without its workspaces
    base = replay_trace(timeline, result.config)
    if recorded and config is None and not card:
        # A run that started warm found holes that its events do not show: what it reserved is what the recording says.
        result = replace(result, timeline=timeline)
    events = timeline.events
    live = events.live_at(base.peak_event)
    has_failed = result.failure is not None or bool(recorded and recorded.failed)
    has_phases = any(event.part for event in events)
    run = Run(events=events, live=live, has_failed=has_failed, has_phases=has_phases)
    growing = growing_lines(events, max(live.num_bytes // SHARE_SHOWN, 1))
    headline = result.peak_reserved_bytes if result.failure is None else base.peak_reserved_bytes
    parts = {part: born.num_bytes for part, born in live.by(lambda event: event.part).items()}
    return Diagnosis(
        result=result,
        recorded=recorded,
        moment=events.moment(base.peak_event),
        parts={part: parts[part] for part in (*PARTS, None) if part in parts},
        lines=lines_of(live, events)[:NUM_LINES],
        changes=without_holes(base, headline),
        # a forward that died half-way grows too
        cures=cures_of(run, () if has_failed and not has_phases else growing),
        peak_reserved_bytes=headline,
        growing=growing,
    )


def without_holes(base: Replay, before_bytes: int) -> tuple[Effect, ...]:
    """What segments that grow would save on the very same events, where that is a byte."""
    if base.config.expandable_segments:
        return ()
    growing = replay_trace(base.timeline, AllocatorConfig(expandable_segments=True))
    after_bytes = before_bytes - base.peak_reserved_bytes + growing.peak_reserved_bytes
    sizes = {"before_bytes": before_bytes, "after_bytes": after_bytes}
    effect = Effect(change=EXPANDABLE_SEGMENTS, **sizes, how="replay")
    return (effect,) if effect.saved_bytes > 0 else ()


def growth_in_words(growing: tuple[Growing, ...]) -> tuple[str, ...]:
    """A table of what grows, and what it means."""
    if not growing:
        return ()
    num_spans, name = len(growing[0].floors), growing[0].span
    spans = [f"{name} {number + 1}" for number in range(num_spans)]
    rows = [["what grows: the least it holds in", *spans]]
    rows += [[line.where, *map(format_bytes, line.floors)] for line in growing[:NUM_LINES]]
    meaning = "So few steps do not tell a leak from what is fetched ahead once: four do."
    if num_spans == NUM_SPANS:
        meaning = (
            "What is kept from step to step is a leak. These lines made it; look for what still holds it, such as a "
            "list of losses that were not detached."
        )
    return aligned_table(rows), meaning


def lines_of(births: Events, events: Events) -> tuple[Line, ...]:
    """The blocks by line and part, the line with most bytes first, each since its oldest block was made."""
    first: dict[object, int] = {}
    for number, event in enumerate(events):
        first.setdefault(event.block, number)  # its birth
    lines = []
    for (where, part), own in births.by(lambda event: (line_of(event), event.part)).items():
        oldest = min(first[event.block] for event in own)
        phase, step = events[oldest].phase, events[oldest].step
        since = phase if phase in BEFORE_THE_STEPS else f"step {step}, {phase}"
        if not phase:
            since = f"event {oldest + 1:,} of {len(events):,}"
        lines.append(
            Line(where=where, part=part, num_blocks=len(own), num_bytes=own.num_bytes, since=since)
        )
    return tuple(sorted(lines, key=lambda line: -line.num_bytes))
