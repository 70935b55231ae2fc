"""What filled the memory, when, by which line, and which three changes would help most.

Every change is tried, not guessed: the events are changed as the change would change them, played through the
allocator again, and the two peaks are subtracted.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memkit.allocator.config import AllocatorConfig
from memkit.allocator.replays import Replay
from memkit.allocator.snapshot_replay import replay_snapshot, replay_trace
from memkit.timeline import PARTS, Event, MemoryTimeline
from memkit.units import aligned_table, format_bytes

NUM_LINES = 8
NUM_CHANGES = 3


@dataclass(frozen=True, kw_only=True)
class Line:
    """Blocks alive at the peak that one line of the model, or one operation, made."""

    where: str
    part: str | None
    num_blocks: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change with the peak of reserved bytes before and after it, both from a replay."""

    name: str
    why: str
    before_bytes: int
    after_bytes: int

    @property
    def saved_bytes(self) -> int:
        return self.before_bytes - self.after_bytes


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One page about a run: its peak, what stood there, and what would help. ``print`` it."""

    result: Replay
    phase: str
    parts: dict[str | None, int]
    lines: tuple[Line, ...]
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        result = self.result
        total = sum(self.parts.values())
        when = f", reached in {self.phase}" if self.phase else ""
        pages = [
            f"Peak: {format_bytes(result.peak_allocated_bytes)} allocated{when}; "
            + f"{format_bytes(result.peak_reserved_bytes)} reserved."
        ]
        if result.failure is not None:
            f = result.failure
            asked = f"Failed: {format_bytes(f.requested_bytes)} asked by {f.where or 'a line not recorded'}."
            pages.append(f"{asked} {f.message}")
        if None not in self.parts:
            rows = [["what stands there", "bytes", "share"]]
            rows += [
                [part.replace("_", " "), format_bytes(size), f"{size / total:.0%}"]
                for part, size in self.parts.items()
                if size
            ]
            pages.append(aligned_table(rows))
        rows = [["by line", "part", "blocks", "bytes"]]
        rows += [
            [
                line.where,
                (line.part or "–").replace("_", " "),
                str(line.num_blocks),
                format_bytes(line.num_bytes),
            ]
            for line in self.lines
        ]
        pages.append(aligned_table(rows))
        rounding = result.peak_allocated_bytes - total
        cached = result.peak_reserved_bytes - result.peak_allocated_bytes
        pages.append(
            f"In no tensor: {format_bytes(max(rounding, 0))} in the allocator's rounding and workspaces, "
            f"{format_bytes(cached)} reserved but not allocated."
        )
        rows = [["what would help most", "saves", "peak reserved then"]]
        rows += [[c.name, format_bytes(c.saved_bytes), format_bytes(c.after_bytes)] for c in self.changes]
        reasons = [f"{c.name}: {c.why}" for c in self.changes]
        helps = "\n".join([aligned_table(rows), *reasons])
        pages.append(helps if self.changes else "Nothing tried here saves a byte.")
        return "\n\n".join(pages)


def diagnose_memory(
    source: dict | str | Path | MemoryTimeline, config: AllocatorConfig | None = None, **card
) -> Diagnosis:
    """Diagnose a memory snapshot (or its file) or a traced timeline; ``card`` as in ``replay``.

    Raises: ValueError: the source carries no events.

    >>> from memkit import TrainingSetup, diagnose_memory, models, trace_memory, training_build
    >>> trace = trace_memory(training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=64)))
    >>> "what would help most" in str(diagnose_memory(trace))
    True
    """
    result = replay_snapshot(source, config, **card)
    timeline = result.timeline
    base = replay_trace(timeline, result.config)
    peak = base.peak_event
    live: dict[int, Event] = {}
    for event in timeline.events[: peak + 1]:
        if event.num_bytes > 0:
            live[event.block] = event
        else:
            live.pop(event.block, None)
    parts: Counter = Counter()
    lines: dict[tuple[str, str | None], list[int]] = {}
    for event in live.values():
        parts[event.part] += event.num_bytes
        lines.setdefault((_line(event), event.part), []).append(event.num_bytes)
    ranked = sorted(lines.items(), key=lambda item: -sum(item[1]))
    order = {part: index for index, part in enumerate(PARTS)}
    return Diagnosis(
        result=result,
        phase=timeline.events[peak].phase,
        parts=dict(sorted(parts.items(), key=lambda item: order.get(item[0], len(order)))),
        lines=tuple(
            Line(where=where, part=part, num_blocks=len(sizes), num_bytes=sum(sizes))
            for (where, part), sizes in ranked[:NUM_LINES]
        ),
        changes=_best_changes(timeline, base, list(live.values()), ranked),
    )


def _line(event: Event) -> str:
    return event.where or event.op or f"blocks of {format_bytes(abs(event.num_bytes))}"


def _best_changes(
    timeline: MemoryTimeline, base: Replay, live: list[Event], ranked: list
) -> tuple[Change, ...]:
    """Try what applies, keep the ones that save most."""
    before, tried = base.peak_reserved_bytes, []

    def attempt(name: str, why: str, events: Sequence[Event], config: AllocatorConfig = base.config) -> None:
        after = replay_trace(replace(timeline, events=tuple(events)), config).peak_reserved_bytes
        if after < before and after not in [c.after_bytes for c in tried if c.name.startswith("recompute")]:
            tried.append(Change(name=name, why=why, before_bytes=before, after_bytes=after))

    events = timeline.events
    if not base.config.expandable_segments:
        growing = replace(base.config, expandable_segments=True, max_split_bytes=None)
        why = "the same requests, but segments that grow leave no holes between them"
        attempt("PYTORCH_ALLOC_CONF=expandable_segments:True", why, events, growing)
    grown, unfreed = growing_lines(events), _unfreed(events)
    if grown:
        leak = max(grown, key=grown.get)
        why = f"what it makes in each step is never freed; {format_bytes(grown[leak])} stand at the end"
        kept = without(events, lambda e: _line(e) == leak and e.block in unfreed)
        attempt(f"let go of what {leak} leaves behind", why, kept)
    made = [e for e in live if e.block not in unfreed and e.phase not in ("init", "before")]
    named = {_line(e) for e in made if e.where or e.op}
    held = [where for (where, part), _ in ranked if part in ("activations", None) and where in named]
    again = {e.block for e in events if e.block not in unfreed and e.phase not in ("init", "before")}
    if held:
        why = "keep nothing of it; each block is made again just before its last use"
        kept = recomputed(events, lambda e: _line(e) == held[0] and e.block in again)
        attempt(f"recompute {held[0]}", why, kept)
    if any(e.part == "activations" for e in live):
        why = "every activation half as large; gradients and states stay"
        attempt("half the micro-batch, twice the accumulation steps", why, scaled(events, "activations", 2))
        why = "keep none; at least this much stays, for a recomputed layer holds all of its own at once"
        kept = recomputed(events, lambda e: e.part == "activations" and e.block in again)
        attempt("recompute all activations", why, kept)
    if any(e.part == "optimizer_states" for e in live):
        why = "a quarter of the bytes of 32-bit states"
        attempt("optimizer states in 8 bits", why, scaled(events, "optimizer_states", 4))
    if any(e.part == "temporary" and e.phase == "optimizer" for e in live):
        why = "the optimizer's scratch for one parameter at a time, not for all at once"
        kept = recomputed(events, lambda e: e.part == "temporary" and e.phase == "optimizer")
        attempt("foreach=False", why, kept)
    leaks_first = sorted(tried, key=lambda c: (not c.name.startswith("let go"), c.after_bytes))
    return tuple(leaks_first[:NUM_CHANGES])


def _unfreed(events: Sequence[Event]) -> set[int]:
    born = {event.block for event in events if event.num_bytes > 0}
    return born - {event.block for event in events if event.num_bytes < 0}


def growing_lines(events: Sequence[Event]) -> dict[str, int]:
    """Lines that leave blocks behind in each of several steps, with their bytes at the end: leaks, and caches."""
    unfreed, step, previous = _unfreed(events), 0, ""
    steps: dict[str, set[int]] = {}
    sizes: Counter = Counter()
    for event in events:
        step += event.phase == "forward" and previous in ("zero_grad", "optimizer")
        previous = event.phase or previous
        if (
            event.block in unfreed
            and event.part in ("activations", "temporary", None)
            and event.phase != "before"
        ):
            steps.setdefault(_line(event), set()).add(step)
            sizes[_line(event)] += event.num_bytes
    return {line: sizes[line] for line, seen in steps.items() if len(seen) > 1}


def without(events: Sequence[Event], leaves_out: Callable[[Event], bool]) -> list[Event]:
    """The events without the blocks that ``leaves_out`` names."""
    gone = {event.block for event in events if event.num_bytes > 0 and leaves_out(event)}
    return [event for event in events if event.block not in gone]


def scaled(events: Sequence[Event], part: str, divisor: int) -> list[Event]:
    """The events with every block of ``part`` a ``divisor``-th as large."""
    out = []
    for event in events:
        if event.part == part:
            size = -(-abs(event.num_bytes) // divisor)
            event = replace(event, num_bytes=size if event.num_bytes > 0 else -size)
        out.append(event)
    return out


def recomputed(events: Sequence[Event], chosen: Callable[[Event], bool]) -> list[Event]:
    """The events with the chosen blocks freed once the next block is born, and made again before their free."""
    chosen_blocks = {event.block for event in events if event.num_bytes > 0 and chosen(event)}
    out: list[Event] = []
    waiting: list[Event] = []
    for event in events:
        if event.num_bytes > 0:
            out.append(event)
            out += [replace(born, num_bytes=-born.num_bytes) for born in waiting]
            waiting = [event] if event.block in chosen_blocks else []
            continue
        if event.block in chosen_blocks and event.block not in [born.block for born in waiting]:
            out.append(replace(event, num_bytes=-event.num_bytes))
        waiting = [born for born in waiting if born.block != event.block]
        out.append(event)
    return out
