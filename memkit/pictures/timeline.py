"""Bars of instants, whether a formula, a trace or a measurement made them: a step, choices, three columns beside.

Chapters 00, 01, 08 and 10, and the explorers of plans. An instant of the training step is a bar, its pieces are the
parts.
"""

from collections.abc import Mapping, Sequence

from memkit.pictures.bars import Bar, bars_figure, short
from memkit.pictures.svg import INK, Chart
from memkit.timeline import PARTS, Instant, MemoryTimeline, provenance_line, where
from memkit.units import format_bytes, format_ratio

MAX_BARS, MAX_COMPARED = 16, 10
"""More bars than this, or groups of them, cannot be labelled at 800 pixels; then only the last step is drawn."""
REST = "not attributed"
Key = tuple[str, int, int]


def drawn_instants(timeline: MemoryTimeline) -> list[Instant]:
    """The instants that get a bar: of micro-batches the first and last; the last step alone, if crowded."""
    last = max(i.micro_batch for i in timeline.instants)
    chosen = [i for i in timeline.instants if i.micro_batch in (1, last)]
    if len(chosen) > MAX_BARS:
        step = max(i.step for i in chosen)
        chosen = [i for i in chosen if i.step == step]
    return chosen


def sizes_of(instant: Instant) -> dict[str, int]:
    """Bytes of each part and of what no part accounts for, from the bottom of a bar; an unknown part has none."""
    return {**{part: size or 0 for part, size in instant.parts.items()}, REST: instant.unattributed_bytes}


def named_parts(instants: Sequence[Instant]) -> list[tuple[str, str]]:
    """Parts with their names, from the top of a bar down."""
    rest = [REST] if any(instant.unattributed_bytes for instant in instants) else []
    return [(part, part.replace("_", " ")) for part in (*rest, *reversed(PARTS))]


def _key(instant: Instant) -> Key:
    return instant.name, instant.step, instant.micro_batch


def _names(instant: Instant, is_split: bool) -> tuple[str, str]:
    """What stands below a bar: its moment, and the phase that it shares with its neighbours.

    A tab and the step follow the phase, so that the same phase of two steps is two groups.
    """
    phase, _, moment = instant.name.partition(" ")
    if phase in ("init", "zero_grad"):
        return "", f"{phase}\t{instant.step}"
    batch = f"\nbatch {instant.micro_batch}" if is_split and phase in ("forward", "backward") else ""
    return moment or "end", f"{phase}{batch}\t{instant.step}"


def timeline_figure(
    timeline: MemoryTimeline,
    capacity_bytes: int | None = None,
    card_name: str = "card",
    title: str = "Memory through a training step",
    before: MemoryTimeline | None = None,
) -> Chart:
    """A stacked bar per instant; beside them the parts of the peak in words and bytes.

    ``capacity_bytes`` draws the card as a line; ``before`` is another timeline, whose bars are outlined where they
    differ. A bar's ``data-pick`` is its number.
    """
    instants = drawn_instants(timeline)
    shown = max(instants, key=lambda i: i.total_bytes)
    chosen, most = instants.index(shown), max(i.total_bytes for i in instants)
    ghosts = {_key(i): i.total_bytes for i in drawn_instants(before)} if before else {}
    is_split, bars, spans = len({i.micro_batch for i in instants}) > 1, [], {}
    for number, instant in enumerate(instants):
        if instant.name != "init":
            spans.setdefault(f"step {instant.step}", []).append(number)
        moment, phase = _names(instant, is_split)
        ghost = ghosts.get(_key(instant), instant.total_bytes)
        bars.append(Bar(
            name=moment, group=phase, pieces=sizes_of(instant), above=short(instant.total_bytes),
            whose=where(instant), data={"pick": number},
            ghost=ghost if abs(ghost - instant.total_bytes) > most // 250 else 0,
        ))
    sizes = {**shown.parts, REST: shown.unattributed_bytes}
    card, notes = "", [f"total: {format_bytes(shown.total_bytes)}"]
    if capacity_bytes is not None:
        card = f"{card_name}: {format_bytes(capacity_bytes, 1)}"
        notes += ["", f"dashed: {card_name}", format_bytes(capacity_bytes, 1)]
    chart = bars_figure(
        title, bars, subtitle=provenance_line(timeline), chosen=chosen, spans=spans,
        limit=(card, capacity_bytes) if card else None,
        head=f"Peak of the step:\n{where(shown)}",
        beside=[(part, f"{name}\n{format_bytes(sizes[part])}") for part, name in named_parts(instants)],
        notes="\n".join(notes),
    )
    peak, last = timeline.peak, timeline.instants[-1]
    chart.alt = (
        f"{title} ({provenance_line(timeline)}): stacked bars for {len(timeline.instants)} instants. "
        f"The tallest, {format_bytes(peak.total_bytes)}, is the {where(peak)}; "
        f"the last, {where(last)}, has {format_bytes(last.total_bytes)}."
    )
    return chart


def choices_figure(
    peaks: Mapping[str, Instant],
    title: str,
    subtitle: str = "",
    capacity_bytes: int = 0,
    chosen: int = -1,
    above: Sequence[str] = (),
    foot: str = "",
) -> Chart:
    """A stacked bar for each peak, its bytes above, its name below; a triangle marks the ``chosen`` index.

    ``above`` is a second line above each bar, and ``foot`` says what the texts are. A bar's ``data-pick`` is its
    number.

    Raises: ValueError: nothing to draw.
    """
    if not peaks:
        raise ValueError("choices_figure needs at least one peak")
    bars, told = [], []
    for number, (name, peak) in enumerate(peaks.items()):
        flat, second = name.replace("\n", " "), list(above[number:][:1])
        top = "\n".join([short(peak.total_bytes), *second])
        bars.append(Bar(name=name, pieces=sizes_of(peak), above=top, whose=flat, data={"pick": number}))
        size = ", ".join([format_bytes(peak.total_bytes), *second])
        told.append(f"{flat}{', chosen' if number == chosen else ''}{': ' if second else ' '}{size}")
    limit = ("", capacity_bytes) if capacity_bytes else None
    parts = [entry for entry in named_parts(list(peaks.values())) if any(bar.pieces[entry[0]] for bar in bars)]
    chart = bars_figure(title, bars, subtitle=subtitle, beside=parts, limit=limit, chosen=chosen)
    chart.words(92, 408, foot, 12, shade=INK)
    chart.alt = f"{title}. {subtitle}. {foot or 'Stacked bars'}: {'; '.join(told)}."
    return chart


def compare_figure(*timelines: MemoryTimeline, title: str = "One training step, three ways") -> Chart:
    """For each instant that all timelines know, a stacked bar of each.

    Above an instant stands the first ÷ the last of its bars; the letters below the bars name the timelines.

    Raises: ValueError: no instant in common.
    """
    known = [{_key(i): i for i in drawn_instants(timeline)} for timeline in timelines]
    keys = [key for key in known[-1] if all(key in instants for instants in known)] if timelines else []
    if not keys:
        raise ValueError(f"compare_figure needs timelines with an instant in common, got {len(timelines)} timelines")
    if len(keys) > MAX_COMPARED:
        keys = [key for key in keys if key[1] == keys[-1][1]]
    sources, bars = [timeline.source for timeline in timelines], []
    for key in keys:
        group = [instants[key] for instants in known]
        moment, phase = _names(group[0], False)
        ratio = format_ratio(group[0].total_bytes, group[-1].total_bytes)
        for place, (instant, source) in enumerate(zip(group, sources, strict=True)):
            bars.append(Bar(
                name=source[0], group=phase.replace("\t", f"\n{moment}\t"), pieces=sizes_of(instant),
                above=ratio if place == len(group) // 2 else "", whose=f"{where(instant)}, {source}",
                data={"source": source},
            ))
    parts = named_parts([instant for instants in known for instant in instants.values()])
    letters = "\n".join(f"{source[0]}  {source}" for source in sources)
    subtitle = f"above the bars: {sources[0]} ÷ {sources[-1]}"
    chart = bars_figure(title, bars, subtitle=subtitle, beside=parts, notes=letters)
    peaks = ", ".join(f"{t.source} {format_bytes(t.peak_bytes)}" for t in timelines)
    chart.alt = f"{title}: groups of stacked bars, one group per instant. Peaks: {peaks}."
    return chart
