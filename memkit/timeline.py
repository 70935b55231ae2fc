"""The one type of the book: what is in memory at named instants of a training step, part by part.

The closed formula, the trace on fake tensors and the measurement all return a ``MemoryTimeline``. So an
estimate divided by a measurement is one line, and one table and one plot draw all three.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from memkit.events import PARTS, Event, Events
from memkit.units import Printable, Text, aligned_table, as_one_of, format_bytes, format_ratio, on_page

INSTANTS = (
    "init", "forward peak", "forward", "backward peak", "backward", "optimizer peak", "optimizer", "zero_grad",
)
"""The instants of one step in order: a phase's name alone is the moment the phase ends, ``peak`` its maximum.

``init`` comes once, when model and optimizer are built; ``zero_grad`` is the end of the step.
"""

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
        elif sum(known) > self.total_bytes or (len(known) == len(PARTS) and sum(known) != self.total_bytes):
            raise ValueError(
                f"instant {self.name!r}: the parts sum to {sum(known)} B, but total_bytes={self.total_bytes}"
            )

    @property
    def parts(self) -> dict[str, int | None]:
        """Bytes by part, in the order of ``PARTS``."""
        return {part: getattr(self, part) for part in PARTS}

    @property
    def unattributed_bytes(self) -> int:
        """Bytes of the total that no part accounts for."""
        return self.total_bytes - sum(value or 0 for value in self.parts.values())


@dataclass(frozen=True, kw_only=True)
class MemoryTimeline(Printable):
    """Bytes at the instants of a training step, from one of ``SOURCES``.

    ``device`` is ``"cuda"`` or ``"cpu"`` (whose rules apply); ``provenance`` says which machine, versions,
    date and command a measurement came from, and what is ``"left out"`` of a number. ``reserved_peak_bytes`` is
    what the allocator held from the driver, if known. ``source_lines`` is what stands on the lines that a trace's
    events name as ``where``.

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

    def at(self, name: str, step: int | None = None, micro_batch: int | None = None) -> Instant:
        """The last instant called ``name`` (of that step and micro-batch, where given)."""
        matching = [
            instant
            for instant in self.instants
            if instant.name == name
            and step in (None, instant.step)
            and micro_batch in (None, instant.micro_batch)
        ]
        if not matching:
            names = ", ".join(dict.fromkeys(instant.name for instant in self.instants))
            raise ValueError(f"no instant {name!r} (step={step}, micro_batch={micro_batch}); there are: {names}")
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
        header = ["instant", *(part.replace("_", " ") for part in PARTS), "total"]
        columns = [[*instant.parts.values(), instant.total_bytes] for instant in self.instants]
        return [header] + [
            [_label(instant, self), *(format_bytes(value) for value in values)]
            for instant, values in zip(self.instants, columns, strict=True)
        ]

    def table(self) -> Text:
        """``rows`` as aligned text."""
        return aligned_table(self.rows())

    def __str__(self) -> str:
        at_least = "at least " if "left out" in self.provenance else ""
        peak = f"peak {at_least}{format_bytes(self.peak_bytes)} at {_label(self.peak, self)}"
        left_out = f"left out: {self.provenance['left out']}" if "left out" in self.provenance else ""
        return on_page(f"{self.source}, {self.device} rules: {peak}", self.table(), left_out, between="\n")

    def to_json(self) -> str:
        """JSON text that ``from_json`` reads back to an equal timeline."""
        events = [asdict(event) for event in self.events]
        return json.dumps({**asdict(replace(self, events=())), "events": events}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "MemoryTimeline":
        """The timeline that ``to_json`` wrote.

        Raises: ValueError: the text is none, or a field is missing or unknown.
        """
        try:
            data = json.loads(text)
            records = {"instants": Instant, "events": Event}
            return cls(**data | {key: tuple(kind(**item) for item in data[key]) for key, kind in records.items()})
        except (AttributeError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"no timeline: {type(error).__name__} {error}") from error


def _label(instant: Instant, timeline: MemoryTimeline) -> str:
    steps = {i.step for i in timeline.instants}
    micro_batches = {i.micro_batch for i in timeline.instants if i.name.startswith(("forward", "backward"))}
    label = instant.name
    if len(micro_batches) > 1 and instant.name.startswith(("forward", "backward")):
        label += f", micro-batch {instant.micro_batch}"
    if len(steps) > 1 and instant.name != "init":
        label += f", step {instant.step}"
    return label


def compare(*timelines: MemoryTimeline, names: Iterable[str] = INSTANTS) -> Text:
    """Formula, trace and measurement side by side: total bytes per instant, and each column ÷ the last.

    Instants are matched by name, step and micro-batch; one that a timeline lacks is ``unknown``. Where the peaks are
    of different moments (a trace's may be of making the model), that is said below.

    >>> from memkit import TrainingSetup, estimate_memory, models, trace_memory, training_build
    >>> setup = TrainingSetup(model=models.TINY_GPT2, seq_len=64)
    >>> columns = estimate_memory(setup), trace_memory(training_build(setup))
    >>> print(compare(*columns, names=["forward", "optimizer peak"]))
    instant                    formula      traced  formula ÷ traced
    ────────────────────────────────────────────────────────────────
    forward, step 1          78.54 MiB   78.54 MiB             1.00×
    optimizer peak, step 1  310.66 MiB  310.66 MiB             1.00×
    forward, step 2         202.81 MiB  202.81 MiB             1.00×
    optimizer peak, step 2  310.66 MiB  310.66 MiB             1.00×
    peak                    346.69 MiB  346.69 MiB             1.00×
    """
    if len(timelines) < 2:
        raise ValueError(f"compare needs at least two timelines, got {len(timelines)}")
    *_, last = timelines
    known = dict.fromkeys((*INSTANTS, *(instant.name for timeline in timelines for instant in timeline.instants)))
    wanted = {as_one_of("names", name, known) for name in names}
    columns = [t.source for t in timelines]
    rows = [["instant", *columns, *(f"{c} ÷ {columns[-1]}" for c in columns[:-1])]]
    totals = [{(i.name, i.step, i.micro_batch): i.total_bytes for i in t.instants} for t in timelines]
    keys = [(i.name, i.step, i.micro_batch) for i in last.instants if i.name in wanted]
    for key, instant in zip(keys, (i for i in last.instants if i.name in wanted), strict=True):
        values = [column.get(key) for column in totals]
        ratios = [format_ratio(value, values[-1]) for value in values[:-1]]
        rows.append([_label(instant, last), *(format_bytes(value) for value in values), *ratios])
    peaks = [t.peak_bytes for t in timelines]
    ratios = [format_ratio(value, peaks[-1]) for value in peaks[:-1]]
    partial = [(t, t.provenance["left out"]) for t in timelines if "left out" in t.provenance]
    rows.append(["peak", *(format_bytes(value) for value in peaks), *ratios])
    notes = [f"{t.source}: at least; left out: {left_out}" for t, left_out in partial]
    moments = [_label(t.peak, t) for t in timelines]
    if len(set(moments)) > 1:
        pairs = zip(timelines, moments, strict=True)
        notes.append("The peaks are of different moments: " + "; ".join(f"{t.source} at {m}" for t, m in pairs))
    return on_page(aligned_table(rows), *notes, between="\n")


def where(instant: Instant) -> str:
    """An instant's place in the step, in words.

    >>> where(Instant(name="backward peak", total_bytes=1)), where(Instant(name="forward", total_bytes=1))
    ('peak of backward', 'end of forward')
    """
    if instant.name in ("init", "zero_grad"):
        return f"after {instant.name}"
    phase, _, moment = instant.name.partition(" ")
    return f"{moment or 'end'} of {phase}"


def provenance_line(timeline: MemoryTimeline) -> str:
    """Where a timeline's numbers come from, in one line: source, rules or card, versions, date."""
    origin = [str(timeline.provenance[key]) for key in ("card", "torch", "date") if key in timeline.provenance]
    rules = "CUDA's rules" if timeline.device == "cuda" else "a CPU's rules"
    return ", ".join([timeline.source, *(origin or [rules])])
