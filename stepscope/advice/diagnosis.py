"""One page about a run, for chapter 07 and ``stepscope snapshot``: what filled the memory, when, and by which line.

It says what is held, by which line and since when, what grows, and what would cure it. A number stands beside a cure
only where the same events were replayed by other options of the allocator: what a changed program takes is known when
it is traced again, as ``stepscope report`` does; it cannot be read off these events. A recording has no program, and
names no parts.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from pathlib import Path

from memkit.timeline import PARTS, Event, Events, MemoryTimeline
from memkit.units import Printable, aligned_table, format_bytes, on_page
from stepscope.advice.alive import bytes_of, grouped, live_at, unfreed
from stepscope.advice.changes import CHANGES, EXPANDABLE_SEGMENTS, Change, Effect
from stepscope.allocator.caching import AllocatorConfig
from stepscope.allocator.replay import Replay, replay_trace
from stepscope.allocator.snapshots import IN_AUTOGRAD, RecordedRun, read_snapshot
from stepscope.optimizers import MIN_8BIT_VALUES

NUM_LINES = 8
NUM_CURES = 4

SHARE_SHOWN = 100
"""What is about less than one part in so many of the peak is not worth a line."""

NUM_SPANS = 4
"""A line grows if the least that it holds rises over so many equal spans of the events."""

MIN_BURST = 8
"""So many blocks freed behind one another are a graph that is let go, not single tensors."""

KEPT_PARTS = ("weights", "gradients", "optimizer_states")
"""What may stand from step to step."""

BEFORE_THE_STEPS = ("init", "before")
"""Phases whose blocks no step made."""


def line_of(event: Event) -> str:
    """The line of an event, else its operation, else its size in words."""
    return event.where or event.op or f"blocks of {format_bytes(abs(event.num_bytes))}"


@dataclass(frozen=True, kw_only=True)
class Growing:
    """A line that holds more and more: its least bytes in each span, a step or a quarter, and its bytes at the end."""

    where: str
    floors: tuple[int, ...]
    num_bytes: int
    span: str = "quarter"

    @property
    def grown_bytes(self) -> int:
        """How much more it holds in the last span than in the first."""
        return self.floors[-1] - self.floors[0]

    @property
    def rises(self) -> bool:
        """Whether each span holds more than the one before."""
        first, *rest = self.floors  # the first may be the start, where there is nothing yet
        return first <= rest[0] and all(before < after for before, after in pairwise(rest))


def growing_lines(events: Sequence[Event], least_bytes: int = 1) -> tuple[Growing, ...]:
    """Lines whose least bytes rise by ``least_bytes`` or more: leaks and caches, the largest first.

    A span is a quarter of the events, and a step where there are only two, three or four, each of which
    has to leave a block of its own (what a loop's variables hold was made by the last one). Weights
    and states are there from the first steps on and rise no more; activations and gradients fall to
    nothing in each step. A forward that fails half-way grows too, and a recording does not tell it
    from a leak.
    """
    spans = [list(step) for _, step in groupby(events, lambda event: event.step)]
    is_short = 1 < len(spans) <= NUM_SPANS
    if not is_short:
        ends = [len(events) * number // NUM_SPANS for number in range(NUM_SPANS + 1)]
        spans = [events[first:last] for first, last in pairwise(ends)]
    standing: dict[int, tuple[str, int]] = {}  # line and step of the blocks that stand
    held, floors = Counter(), []
    for span in spans:
        least = Counter(held)
        for event in span:
            may_leak = event.part not in KEPT_PARTS and event.phase not in BEFORE_THE_STEPS
            if event.num_bytes > 0 and may_leak:
                standing[event.block] = line_of(event), event.step
                held[line_of(event)] += event.num_bytes
            elif event.block in standing:
                where, _ = standing.pop(event.block)
                held[where] += event.num_bytes
                least[where] = min(least[where], held[where])
        floors.append(least)
    steps_left = Counter(where for where, _ in set(standing.values()))
    lines = (
        Growing(
            where=where,
            floors=tuple(least[where] for least in floors),
            num_bytes=num_bytes,
            span="step" if is_short else "quarter",
        )
        for where, num_bytes in held.items()
        if not is_short or steps_left[where] >= len(spans)
    )
    growing = [line for line in lines if line.rises and line.grown_bytes >= least_bytes]
    return tuple(sorted(growing, key=lambda line: -line.grown_bytes))


def held_for_no_backward(events: Sequence[Event], min_times: int = 1) -> set[int]:
    """Blocks that pile up and are let go together, in a run without a backward: a graph that nobody needed.

    Empty where fewer than ``min_times`` such runs of frees hold half of what the steps had at their peak.
    """
    births = [event for event in events if event.num_bytes > 0]
    born = {event.block for event in births if event.phase not in BEFORE_THE_STEPS}
    born -= unfreed(events)
    sizes = (event.num_bytes for event in events if event.block in born)
    most = max(accumulate(sizes, initial=0))
    runs = (list(run) for is_free, run in groupby(events, lambda e: e.num_bytes < 0) if is_free)
    graphs = [[e for e in run if e.block in born] for run in runs if len(run) >= MIN_BURST]
    num_large = sum(-2 * sum(event.num_bytes for event in graph) > most for graph in graphs)
    return {event.block for graph in graphs for event in graph} if num_large >= min_times else set()


def is_in_backward(event: Event) -> bool:
    """Whether autograd made or freed a block, for a module, for a function's ``backward`` or for no line at all."""
    return event.where == IN_AUTOGRAD or event.where.rpartition(" ")[2] in (
        "backward",
        "(backward)",
    )


def held_at_peak(
    events: Events, live: Sequence[Event], has_failed: bool, has_parts: bool
) -> dict[str, int]:
    """Bytes of the blocks alive at the peak that a change may be about, by ``Change.touches``.

    A graph is unwanted where the run shows that no backward follows its forwards, never where it only lacks one. A run
    that failed may have died before its first backward. A recording, whose phases are not named, must have let a graph
    go at least twice without a line of autograd's.
    """
    phases, kept, graphs = {event.phase for event in events}, unfreed(events), set()
    trains = phases & {"backward", "optimizer"} or any(map(is_in_backward, events))
    if not has_failed and not trains:
        graphs = held_for_no_backward(events, 1 if has_parts else 2)

    def held(is_meant: Callable[[Event], bool]) -> int:
        return sum(event.num_bytes for event in live if is_meant(event))

    now = max((event.step for event in live), default=0)

    def is_of_last_step(event: Event) -> bool:
        return event.phase not in BEFORE_THE_STEPS and event.step < now

    large = 4 * MIN_8BIT_VALUES  # in float32
    return {
        "activations": held(lambda e: e.part == "activations" and "backward" in phases),
        "large_states": held(lambda e: e.part == "optimizer_states" and e.num_bytes >= large),
        "step_scratch": held(lambda e: e.part == "temporary" and e.phase == "optimizer"),
        # they stand through the next forward too
        "kept_gradients": held(lambda e: e.part == "gradients" and e.block in kept),
        "last_gradients": held(lambda e: e.part == "gradients" and is_of_last_step(e)),
        # what a step has made and no step keeps
        "last_outputs": held(lambda e: e.part not in KEPT_PARTS and is_of_last_step(e)),
        "unwanted_graph": held(lambda e: e.block in graphs),
    }


def cures_of(
    held: dict[str, int], peak_bytes: int, growing: Sequence[Growing]
) -> tuple[Change, ...]:
    """What a run points to, without a number: its leaks, then changes that are about bytes at its peak, most first."""
    leaks = [
        Change(
            name=f"let go of what {line.where} leaves behind",
            comes_first=True,
            why=f"it holds more after each {line.span}; {format_bytes(line.num_bytes)} stand at the end",
        )
        for line in growing[:1]
    ]
    about = [change for change in CHANGES if SHARE_SHOWN * held.get(change.touches, 0) > peak_bytes]
    about.sort(key=lambda change: (not change.comes_first, -held[change.touches]))
    return (*leaks, *about)


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
            wanted = format_bytes(self.peak_reserved_bytes)
            lines.append(f"With room enough it would reserve {wanted}.")
        return "\n".join(lines)

    def _parts(self) -> str:
        events, total = self.result.timeline.events, sum(self.parts.values())
        if set(self.parts) == {None}:
            older = unfreed(events) & {event.block for event in events if event.phase == "before"}
            older_bytes = sum(event.num_bytes for event in events if event.block in older)
            stands = f"At its end {format_bytes(bytes_of(events))} stand"
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
        return "Of what was tried, nothing lowers what the allocator reserves."
    rows = [["what would help most", "saves", "reserved then", "known by"]]
    for c in changes:
        rows.append([c.name, format_bytes(c.saved_bytes), format_bytes(c.after_bytes), c.how])
    return on_page(aligned_table(rows), *(f"{c.name}: {c.why}" for c in changes), between="\n")


def cures_in_words(cures: tuple[Change, ...]) -> str:
    """Cures and their reasons; what each saves only a trace of the changed program says."""
    if not cures:
        return "These events point to no cure."
    head = "What these events point to; what it saves, a trace of the changed program says:"
    return on_page(head, *(f"- {cure.name}: {cure.why}" for cure in cures), between="\n")


def diagnose_memory(
    source: dict | str | Path | MemoryTimeline, *, device: int | None = None, **card
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
    timeline, config = (recorded.timeline, recorded.config) if recorded else (source, None)
    result = replay_trace(timeline, config, **card)
    # the events alone: without a card's end and without its workspaces
    base = replay_trace(timeline, config)
    if recorded and not card:
        # A run that started warm found holes that its events do not show: what it reserved is what the recording says.
        result.timeline = timeline
    events = timeline.events
    live = live_at(events, base.peak_event)
    live_bytes = bytes_of(live)
    has_failed = result.failure is not None or bool(recorded and recorded.failed)
    has_parts = any(event.part for event in events)
    held = held_at_peak(events, live, has_failed, has_parts)
    growing = growing_lines(events, max(live_bytes // SHARE_SHOWN, 1))
    headline = result.peak_reserved_bytes if result.failure is None else base.peak_reserved_bytes
    parts = {part: bytes_of(own) for part, own in grouped(live, lambda e: e.part).items()}
    return Diagnosis(
        result=result,
        recorded=recorded,
        moment=events.moment(base.peak_event),
        parts={part: parts[part] for part in (*PARTS, None) if part in parts},
        lines=lines_of(live, events)[:NUM_LINES],
        changes=without_holes(base, headline),
        # a forward that died half-way grows too
        cures=cures_of(held, live_bytes, () if has_failed and not has_parts else growing),
        peak_reserved_bytes=headline,
        growing=growing,
    )


def without_holes(base: Replay, before_bytes: int) -> tuple[Effect, ...]:
    """What segments that grow would save on the very same events, where that is a byte."""
    if base.allocator.config.expandable_segments:
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


def lines_of(births: Sequence[Event], events: Events) -> tuple[Line, ...]:
    """The blocks by line and part, the line with most bytes first, each since its oldest block was made."""
    first: dict[object, int] = {}
    for number, event in enumerate(events):
        first.setdefault(event.block, number)  # its birth
    lines = []
    for (where, part), own in grouped(births, lambda e: (line_of(e), e.part)).items():
        oldest = min(first[event.block] for event in own)
        phase, step = events[oldest].phase, events[oldest].step
        since = phase if phase in BEFORE_THE_STEPS else f"step {step}, {phase}"
        if not phase:
            since = f"event {oldest + 1:,} of {len(events):,}"
        lines.append(
            Line(where=where, part=part, num_blocks=len(own), num_bytes=bytes_of(own), since=since)
        )
    return tuple(sorted(lines, key=lambda line: -line.num_bytes))
