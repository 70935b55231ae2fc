"""What is in memory, and when: the events of a step in order, and what stands at its named instants, part by part.

A block is allocated and freed, each for one part of a training step. Formula, trace, measurement and recording all
write down ``Events``. From them follow the bytes of each part at each moment, the peak and the blocks that are
allocated there. All of that is worked out here alone.

``MemoryTimeline`` is the one type of the book: formula, trace and measurement all return it. So an estimate divided by
a measurement is one line, and one table and one plot draw all three.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter

from memkit.units import (
    ALLOCATOR_BLOCK_BYTES,
    Printable,
    Text,
    aligned_table,
    as_one_of,
    format_bytes,
    on_page,
    round_up,
)

PARTS = ("weights", "gradients", "optimizer_states", "activations", "temporary")
"""What memory is for. Buffers count as weights, and so does a second set of the weights, such as EMA's; a cast made
by autocast, even of a weight, is temporary.

An activation is what the forward allocated and has not freed when the backward begins: tensors saved by autograd, the
loss, and whatever the program still holds. All else that is neither a weight, a gradient nor a state is temporary.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One allocation (``num_bytes`` > 0) or free (< 0) of a block, in program order.

    ``block`` names the block: a free carries the number of its allocation. ``num_bytes`` is what was asked
    for, before the allocator rounds. ``op`` is the operation that asked, ``where`` the model's own line or
    module. ``phase``, ``step`` and ``micro_batch`` are those of the instant that ends the phase.
    """

    block: int
    num_bytes: int
    part: str | None = None
    phase: str = ""
    op: str = ""
    where: str = ""
    is_scratch: bool = False  # allocated and freed inside one operation
    step: int = 1
    micro_batch: int = 1


@dataclass(frozen=True)
class Levels:
    """Bytes of each part after each event; ``parts[part][index]`` are those after event ``index``."""

    parts: dict[Hashable, list[int]]

    @cached_property
    def totals(self) -> list[int]:
        """Bytes of all parts after each event."""
        return [sum(column) for column in zip(*self.parts.values(), strict=True)]

    def at(self, index: int) -> dict[Hashable, int]:
        """Bytes by part after event ``index``; -1 is the moment before the first event, when there are none."""
        return {part: heights[index] if index >= 0 else 0 for part, heights in self.parts.items()}

    def peak(self, start: int = 0, end: int | None = None) -> int:
        """Which event of ``start`` to ``end`` brought most bytes, the first of equal ones.

        The moment before them counts too: where nothing rises above it the answer is ``start - 1``.
        """
        totals = self.totals
        stop = len(totals) if end is None else end
        return max(range(start - 1, stop), key=lambda index: totals[index] if index >= 0 else 0)


class Events(Sequence):
    """Allocations and frees in program order, and what follows from them: bytes at each moment, the peak, phases.

    ``events`` is an iterable, or a function that makes one and is called when the first event is asked for.

    >>> events = Events([Event(1, 8, "weights"), Event(2, 4, "gradients"), Event(1, -8, "weights")])
    >>> events.levels().totals, events.peak()
    ([8, 12, 4], 1)
    """

    def __init__(self, events: Iterable[Event] | Callable[[], Iterable[Event]] = ()):
        self._source = events

    @cached_property
    def _made(self) -> tuple[Event, ...]:
        return tuple(self._source() if callable(self._source) else self._source)

    def __getitem__(self, index):
        return Events(self._made[index]) if isinstance(index, slice) else self._made[index]

    def __len__(self) -> int:
        return len(self._made)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._made)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._made == tuple(other)

    def __repr__(self) -> str:
        return "<events, when asked>" if callable(self._source) else repr(self._made)

    def levels(
        self, key: Callable[[Event], Hashable] | None = None, granularity: int = 1
    ) -> Levels:
        """Bytes of each part, or under each ``key``, after each event, every block rounded up to ``granularity``.

        All of ``PARTS`` are there; ``None`` is there too where an event has no part.
        """
        key = key or attrgetter("part")
        now = dict.fromkeys((*PARTS, *map(key, self)), 0)
        parts = {part: [] for part in now}
        for event in self:
            size = round_up(abs(event.num_bytes), granularity)
            now[key(event)] += size if event.num_bytes > 0 else -size
            for part, heights in parts.items():
                heights.append(now[part])
        return Levels(parts)

    def peak(self, granularity: int = 1) -> int:
        """Which event brought the most bytes, the first of equal ones, every block rounded up to ``granularity``."""
        return self.levels(granularity=granularity).peak()

    def moment(self, index: int) -> str:
        """When an event was, in words: its phase and its step of so many; nothing where no phase is known.

        >>> Events([Event(1, 8, phase="init"), Event(2, 4, phase="forward"), Event(2, -4, phase="zero_grad")]).moment(1)
        'forward of step 1'
        >>> Events([Event(1, 8, phase="init"), Event(2, 4, phase="forward", step=2)]).moment(0)
        'init, before the first step'
        """
        event, num_steps = self[index], max(event.step for event in self)
        if event.phase in ("", "before"):
            return ""
        if event.phase == "init":
            return "init, before the first step"
        return f"{event.phase} of step {event.step}" + (f" of {num_steps}" if num_steps > 1 else "")


INSTANTS = (
    "init",
    "forward peak",
    "forward",
    "backward peak",
    "backward",
    "optimizer peak",
    "optimizer",
    "zero_grad",
)
"""The instants of one step in order: a phase's name alone is the moment the phase ends, ``peak`` its maximum.

``init`` comes once, when model and optimizer are built; ``zero_grad`` is the end of the step.
"""

PEAK = " peak"
"""What the name of an instant that is a maximum ends with."""

MAX_STEPS = 10_000
"""So many steps are estimated, traced or measured in one call; the second one is like all that follow."""

SOURCES = ("formula", "traced", "measured")


@dataclass(frozen=True, kw_only=True)
class Instant:
    """Bytes in memory at one instant. A part that cannot be told apart is ``None``, never 0."""

    name: str
    weights: int | None = None
    gradients: int | None = None
    optimizer_states: int | None = None
    activations: int | None = None
    temporary: int | None = None
    total_bytes: int = -1  # left out: the sum of the parts
    step: int = 1
    micro_batch: int = 1

    def __post_init__(self):
        known = [value for value in self.parts.values() if value is not None]
        if self.total_bytes == -1:
            if len(known) < len(PARTS):
                raise ValueError(f"instant {self.name!r} has unknown parts and no total_bytes")
            object.__setattr__(self, "total_bytes", sum(known))
        elif sum(known) > self.total_bytes or (
            len(known) == len(PARTS) and sum(known) != self.total_bytes
        ):
            raise ValueError(
                f"instant {self.name!r}: the parts sum to {sum(known)} B, but total_bytes={self.total_bytes}"
            )

    @property
    def parts(self) -> dict[str, int | None]:
        """Bytes by part, in the order of ``PARTS``."""
        return {part: getattr(self, part) for part in PARTS}

    @property
    def phase(self) -> str:
        """The phase that it ends, or is the peak of."""
        return self.name.removesuffix(PEAK)

    @property
    def is_peak(self) -> bool:
        """Whether it is the moment with the most bytes of its phase, and not its end."""
        return self.name.endswith(PEAK)

    @property
    def unattributed_bytes(self) -> int:
        """Bytes of the total that no part accounts for."""
        return self.total_bytes - sum(value or 0 for value in self.parts.values())


@dataclass(frozen=True, kw_only=True)
class MemoryTimeline(Printable):
    """Bytes at the instants of a training step, from one of ``SOURCES``.

    ``device`` is ``"cuda"`` or ``"cpu"`` (whose rules apply); ``provenance`` says which machine, versions, date and
    command a measurement came from. ``reserved_peak_bytes`` is what the allocator held from the driver, if known.
    ``source_lines`` is what stands on the lines that a trace's events name as ``where``. ``left_out`` says what no
    number here counts: the peak is printed as "at least" then.

    >>> from memkit import TrainingSetup, estimate_memory, models
    >>> timeline = estimate_memory(TrainingSetup(model=models.GPT2_SMALL, seq_len=1024))
    >>> timeline.peak.name, timeline.at("init").weights
    ('backward peak', 497759232)
    """

    instants: tuple[Instant, ...]
    source: str
    device: str = "cuda"
    events: Sequence[Event] = ()
    reserved_peak_bytes: int | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    left_out: str = ""
    source_lines: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self):
        as_one_of("source", self.source, SOURCES)
        if not self.instants:
            raise ValueError("a timeline needs at least one instant")
        if not isinstance(self.events, Events):
            object.__setattr__(self, "events", Events(self.events))

    @property
    def peak(self) -> Instant:
        """The instant with the most bytes, the first of them when several are equal."""
        return max(self.instants, key=lambda instant: instant.total_bytes)

    @property
    def peak_bytes(self) -> int:
        """The peak is a maximum over instants, not a sum of parts: no instant has the most of every part."""
        return self.peak.total_bytes

    @property
    def granularity(self) -> int:
        """Bytes of which a block takes whole multiples: CUDA's allocator rounds up, a CPU's does not."""
        return ALLOCATOR_BLOCK_BYTES if self.device == "cuda" else 1

    def at(self, name: str, step: int | None = None, micro_batch: int | None = None) -> Instant:
        """The last instant called ``name`` (of that step and micro-batch, where given)."""
        matching = [
            i
            for i in self.instants
            if i.name == name and step in (None, i.step) and micro_batch in (None, i.micro_batch)
        ]
        if not matching:
            names = ", ".join(dict.fromkeys(i.name for i in self.instants))
            raise ValueError(
                f"no instant {name!r} (step={step}, micro_batch={micro_batch}); there are: {names}"
            )
        return matching[-1]

    def for_step(self, step: int) -> "MemoryTimeline":
        """The same timeline with the instants of one step only (``init`` belongs to step 1); events are dropped."""
        instants = tuple(instant for instant in self.instants if instant.step == step)
        if not instants:
            steps = ", ".join(str(number) for number in sorted({i.step for i in self.instants}))
            raise ValueError(f"step={step} is not in this timeline; it has: {steps}")
        return replace(self, instants=instants, events=())

    def rows(self) -> list[list[str]]:
        """Instants as rows, parts as columns, in text; the first row is the header."""
        rows = [["instant", *(part.replace("_", " ") for part in PARTS), "total"]]
        for instant in self.instants:
            values = *instant.parts.values(), instant.total_bytes
            rows.append([label_of(instant, self), *map(format_bytes, values)])
        return rows

    def table(self) -> Text:
        """``rows`` as aligned text."""
        return aligned_table(self.rows())

    def __str__(self) -> str:
        at_least = "at least " if self.left_out else ""
        left_out = f"left out: {self.left_out}" if self.left_out else ""
        peak = f"peak {at_least}{format_bytes(self.peak_bytes)} at {label_of(self.peak, self)}"
        title = f"{self.source}, {self.device} rules: {peak}"
        return on_page(title, self.table(), left_out, between="\n")


def label_of(instant: Instant, timeline: MemoryTimeline) -> str:
    """An instant's name, with its step and its micro-batch where a timeline has several."""
    label, repeated = instant.name, ("forward", "backward")
    if instant.phase in repeated:
        of_batches = (i for i in timeline.instants if i.phase in repeated)
        if len({i.micro_batch for i in of_batches}) > 1:
            label += f", micro-batch {instant.micro_batch}"
    if len({i.step for i in timeline.instants}) > 1 and instant.name != "init":
        label += f", step {instant.step}"
    return label


def where(instant: Instant) -> str:
    """An instant's place in the step, in words.

    >>> where(Instant(name="backward peak", total_bytes=1)), where(Instant(name="forward", total_bytes=1))
    ('peak of backward', 'end of forward')
    """
    if instant.name in ("init", "zero_grad"):
        return f"after {instant.name}"
    return f"{'peak' if instant.is_peak else 'end'} of {instant.phase}"


def provenance_line(timeline: MemoryTimeline) -> str:
    """Where a timeline's numbers come from, in one line: source, rules or card, versions, date."""
    known = timeline.provenance
    origin = [str(known[key]) for key in ("card", "torch", "date") if key in known]
    rules = "CUDA's rules" if timeline.device == "cuda" else "a CPU's rules"
    return ", ".join([timeline.source, *(origin or [rules])])
