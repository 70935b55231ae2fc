"""From a log of allocations to the parts and instants of a step: one rule for trace and measurement.

Whoever watches a run writes a ``Log``: blocks born and freed in program order, which phase the program was
in, and which blocks turned out to be a weight, a gradient or a state. What a block is *for* is known only
later (nobody can tell a gradient from scratch at birth), so parts are given at the end, and a block has its
part from birth.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from memkit.timeline import Event, Events, Instant, MemoryTimeline
from memkit.units import ALLOCATOR_BLOCK_BYTES, format_bytes

ALWAYS_SHOWS_PEAK = ("forward", "backward", "optimizer")


class Birth(NamedTuple):
    """What asked for a block: the operation, its place in the program, and the phase that the program was in."""

    op: object
    place: object
    phase: str


class Moment(NamedTuple):
    """A phase, the step, and the how many-th of its kind it is there."""

    phase: str
    step: int
    count: int


class Mark(NamedTuple):
    """An instant: a phase of this name ended before the event of this position."""

    position: int
    name: str
    step: int
    count: int


@dataclass(slots=True)
class Log:
    """What happened, in order: ``events[i]`` is a block's number at its birth, ``~number`` when it is freed.

    ``births`` are by block, ``moments`` by event, and the sets hold block numbers.
    """

    sizes: list[int] = field(default_factory=list)
    births: list[Birth] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    live: set[int] = field(default_factory=set)
    weights: set[int] = field(default_factory=set)
    trained: set[int] = field(default_factory=set)
    gradients: set[int] = field(default_factory=set)
    states: set[int] = field(default_factory=set)
    activations: set[int] = field(default_factory=set)
    copies: set[int] = field(default_factory=set)
    weight_casts: set[int] = field(default_factory=set)
    scratch: set[int] = field(default_factory=set)
    phase: str = "init"
    step: int = 1
    micro_batch: int = 1
    num_optimizer_steps: int = 0
    # the first block of the last recomputation; -1: none, or it is settled
    recomputed_from: int = -1
    is_recomputing: bool = False
    outer_phase: str = ""

    @property
    def moment(self) -> Moment:
        """Now, as the mark that ends the phase will say it."""
        if self.phase == "optimizer":
            return Moment(self.phase, self.step, self.num_optimizer_steps + 1)
        return Moment(self.phase, self.step, 1 if self.phase == "zero_grad" else self.micro_batch)

    def allocate(self, num_bytes: int, op: object, place: object = None) -> int:
        """A block is born; returns its number."""
        if self.recomputed_from >= 0 and not self.is_recomputing:
            self.keep_recomputed()
        block = len(self.sizes)
        self.sizes.append(num_bytes)
        self.births.append(Birth(op, place, self.phase))
        self.events.append(block)
        self.moments.append(self.moment)
        self.live.add(block)
        return block

    def free(self, block: int) -> None:
        """A block is freed: it is alive no longer, but keeps its part."""
        self.events.append(~block)
        self.moments.append(self.moment)
        self.live.discard(block)

    def mark(self, name: str, count: int = 1) -> None:
        """The instant ``name`` is now: a phase ends here, the ``count``-th of its kind in this step."""
        self.marks.append(Mark(len(self.events), name, self.step, count))

    def start_backward(self) -> None:
        """A backward starts: what was made outside backward and optimizer and is alive is an activation."""
        self.mark("forward", self.micro_batch)
        later = "backward", "optimizer"
        self.activations |= {block for block in self.live if self.births[block].phase not in later}
        self.phase = "backward"

    def end_backward(self) -> None:
        """A backward ends, and with it a micro-batch."""
        self.keep_recomputed()
        self.mark("backward", self.micro_batch)
        self.phase = "forward"
        self.micro_batch += 1

    def start_recomputation(self) -> None:
        """Inside a backward, a part of the forward runs again."""
        self.recomputed_from, self.is_recomputing = len(self.sizes), True

    def end_recomputation(self) -> None:
        """The part has run; what of it is alive at the next allocation was made for the backward."""
        self.is_recomputing = False

    def keep_recomputed(self) -> None:
        """What the last recomputation made and left alive is an activation."""
        if self.recomputed_from >= 0:
            self.activations |= {block for block in self.live if block >= self.recomputed_from}
            self.recomputed_from = -1

    def start_optimizer(self) -> None:
        """An optimizer's step begins, maybe from a hook inside the backward."""
        self.outer_phase, self.phase = self.phase, "optimizer"

    def end_optimizer(self) -> None:
        """The optimizer's step ends; outside a backward, the rest of the step is called ``zero_grad``."""
        if self.outer_phase == "backward":
            self.phase = "backward"
        else:
            self.num_optimizer_steps += 1
            self.mark("optimizer", self.num_optimizer_steps)
            self.phase = "zero_grad"

    def start_step(self, step: int) -> None:
        """The next training step begins with a forward."""
        self.step, self.phase = step, "forward"
        self.micro_batch, self.num_optimizer_steps = 1, 0

    def end_step(self) -> None:
        """The training step has returned; what outlives it without another name is an activation."""
        if not any(mark.step == self.step and mark.name != "init" for mark in self.marks):
            self.mark("forward")  # no backward at all: inference
        self.mark("zero_grad")
        self.activations |= self.live
        # once found they stay, though weights may be assigned anew
        if not self.copies or self.copies - self.live:
            self.copies = self.second_set()

    def second_set(self) -> set[int]:
        """Of what was made before the first step and never freed: a second set of the trained weights.

        An EMA's shadow in a list is no parameter of anything, and no activation either: half the batch does not
        halve it. It is known by its sizes, one of each trained weight's, in the same dtype or in float32.
        """
        trained = Counter(self.sizes[block] for block in self.trained)
        rest = self.live - self.trained - self.states - self.gradients
        rest = [block for block in rest if self.births[block].phase == "init"]
        for scale in (1, 2):
            wanted, found = Counter({size * scale: n for size, n in trained.items()}), set()
            for block in rest:
                if wanted[self.sizes[block]]:
                    wanted[self.sizes[block]] -= 1
                    found.add(block)
            # of a single weight's size a batch may be too
            if trained.total() > 1 and not wanted.total():
                return found
        return set()

    def parts(self) -> list[str]:
        """The part of every block, by its number; a later line here outweighs an earlier one."""
        order = {
            "activations": self.activations - self.weight_casts,
            "gradients": self.gradients,
            "optimizer_states": self.states,
            "weights": self.weights | self.copies,
        }
        parts = ["temporary"] * len(self.sizes)
        for part, blocks in order.items():
            for block in blocks:
                parts[block] = part
        return parts


def instants(marks: Sequence[Mark], events: Events, granularity: int = 1) -> tuple[Instant, ...]:
    """Bytes by part at every mark and at the peak before it, each block rounded up to ``granularity`` bytes.

    Init and zero_grad get a peak only where it is above both ends.
    """
    levels, start, out = events.levels(granularity=granularity), 0, []
    for end, name, step, micro_batch in marks:
        when, peak = {"step": step, "micro_batch": micro_batch}, levels.peak(start, end)
        is_above = sum(levels.at(peak).values()) > sum(levels.at(end - 1).values())
        if name in ALWAYS_SHOWS_PEAK or (is_above and peak >= start):
            out.append(Instant(name=f"{name} peak", **levels.at(peak), **when))
        out.append(Instant(name=name, **levels.at(end - 1), **when))
        start = end
    return tuple(out)


def timeline_of(
    log: Log, source: str, device: str, provenance: Mapping[str, str] | None = None, **more
) -> MemoryTimeline:
    """The ``MemoryTimeline`` of a log; its provenance names the bytes of a second set of weights."""
    parts, made, provenance = log.parts(), [], dict(provenance or {})
    texts = [(str(op), str(place or "")) for op, place, _ in log.births]
    end = log.marks[-1].position  # what is freed later is freed with the program, in no step
    for event, (phase, *when) in zip(log.events[:end], log.moments[:end], strict=True):
        block = max(event, ~event)
        size = log.sizes[block] if event >= 0 else -log.sizes[block]
        how = phase, *texts[block], block in log.scratch, *when
        made.append(Event(block, size, parts[block], *how))
    if log.copies:
        provenance["copies of the weights"] = format_bytes(
            sum(log.sizes[block] for block in log.copies)
        )
    events = Events(made)
    at = instants(log.marks, events, ALLOCATOR_BLOCK_BYTES if device == "cuda" else 1)
    return MemoryTimeline(
        instants=at, events=events, source=source, device=device, provenance=provenance, **more
    )
