"""What a run's events show of what it keeps: lines that hold more and more, and graphs that no backward wanted."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from memkit.timeline import Event, Events
from memkit.units import format_bytes

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
    born -= Events(events).unfreed()
    sizes = (event.num_bytes for event in events if event.block in born)
    most = max(accumulate(sizes, initial=0))
    runs = (list(run) for is_free, run in groupby(events, lambda e: e.num_bytes < 0) if is_free)
    graphs = [[e for e in run if e.block in born] for run in runs if len(run) >= MIN_BURST]
    num_large = sum(-2 * sum(event.num_bytes for event in graph) > most for graph in graphs)
    return {event.block for graph in graphs for event in graph} if num_large >= min_times else set()
