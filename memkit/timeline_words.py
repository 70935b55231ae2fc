"""What a picture of a timeline says in words: places, sources, and bytes in few digits."""

from memkit.timeline import Instant, MemoryTimeline
from memkit.units import format_bytes


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
    told = [str(timeline.provenance[key]) for key in ("card", "torch", "date") if key in timeline.provenance]
    rules = "CUDA's rules" if timeline.device == "cuda" else "a CPU's rules"
    return ", ".join([timeline.source, *(told or [rules])])


def describe(timeline: MemoryTimeline, title: str) -> str:
    """The bars in one sentence, for who does not see them."""
    peak, last = timeline.peak, timeline.instants[-1]
    return (
        f"{title} ({provenance_line(timeline)}): stacked bars for {len(timeline.instants)} instants. "
        f"The tallest, {format_bytes(peak.total_bytes)}, is the {where(peak)}; "
        f"the last, {where(last)}, has {format_bytes(last.total_bytes)}."
    )


def tick_words(num_bytes: int) -> str:
    """A tick's bytes with no more digits than it needs.

    >>> tick_words(2**30), tick_words(3 * 2**39)
    ('1 GiB', '1.5 TiB')
    """
    return format_bytes(num_bytes, 1).replace(".0 ", " ")


def short(num_bytes: int) -> str:
    """Bytes in three or four digits, for the top of a narrow bar.

    >>> short(97 * 2**20 + 2**19), short(949 * 2**20)
    ('97.5 MiB', '949 MiB')
    """
    text = format_bytes(num_bytes, 1)
    return text if len(text.split()[0]) < 5 else format_bytes(num_bytes, 0)
