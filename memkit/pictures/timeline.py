"""One drawing for any timeline, whether a formula, a trace or a measurement made it.

A bar is an instant of the training step, its pieces are the parts.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from memkit.pictures.axes import DASHED, Scale
from memkit.pictures.svg import GREY, INK, LOOKS, Chart, text_width
from memkit.timeline import PARTS, Instant, MemoryTimeline, provenance_line, where
from memkit.units import format_bytes

MAX_BARS = 16
"""More bars than this cannot be labelled at 800 pixels; then only the last step is drawn."""
PALE = 0.3  # how much of its colour a faded bar keeps
STACK = (*PARTS, "not attributed")
"""What a bar is stacked of, from its bottom to its top."""


def tick_words(num_bytes: int) -> str:
    """A tick's bytes with no more digits than it needs.

    >>> tick_words(2**30), tick_words(3 * 2**39), tick_words(21 * 2**26)
    ('1 GiB', '1.5 TiB', '1.3125 GiB')
    """
    number, unit = format_bytes(num_bytes, 4).split()
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def short(num_bytes: int) -> str:
    """Bytes in three or four digits, for the top of a narrow bar.

    >>> short(97 * 2**20 + 2**19), short(949 * 2**20)
    ('97.5 MiB', '949 MiB')
    """
    text = format_bytes(num_bytes, 1)
    return text if len(text.split()[0]) < 5 else format_bytes(num_bytes, 0)


def drawn_instants(timeline: MemoryTimeline) -> list[Instant]:
    """The instants that get a bar: of micro-batches the first and last; the last step alone, if crowded."""
    last = max(i.micro_batch for i in timeline.instants)
    chosen = [i for i in timeline.instants if i.micro_batch in (1, last)]
    if len(chosen) > MAX_BARS:
        step = max(i.step for i in chosen)
        chosen = [i for i in chosen if i.step == step]
    return chosen


def axis_top(peak_bytes: int, capacity_bytes: int | None = None) -> int:
    """Top of the memory axis: 4, 5, 6 or 7 times a power of two, with an eighth of room above the peak.

    There is room above the card too, if that is near. So quarters of the axis are round in bytes.

    >>> axis_top(100), axis_top(100, 240), axis_top(100, 100_000)
    (128, 320, 128)
    """
    needed = max(peak_bytes, 4) * 9 // 8 + 1
    if capacity_bytes and capacity_bytes <= 2.5 * needed:
        needed = max(needed, capacity_bytes * 9 // 8)
    unit = 1 << max((needed - 1).bit_length() - 3, 2)
    return -(-needed // unit) * unit


def sizes_of(instant: Instant) -> dict[str, int]:
    """Bytes of each part and of what no part accounts for, from the bottom of a bar; an unknown part has none."""
    sizes = {part: size or 0 for part, size in instant.parts.items()}
    return {**sizes, "not attributed": instant.unattributed_bytes}


def stacked_bar(chart: Chart, instant: Instant, x: float, width: float, y: Scale, name: str, *, shade=INK, data=None):
    """The parts of an instant on top of one another, each with its bytes under the pointer."""
    bottom = 0
    for part, size in sizes_of(instant).items():
        if size:
            top = bottom + size
            tells = {"tip": f"{part.replace('_', ' ')}: {format_bytes(size)}, {name}", "shade": shade}
            tells["data"] = {"part": part, "bytes": size, **(data or {})}
            edge = {"stroke": "#fff", "stroke_width": 0.7}
            chart.rect(x - width / 2, y(top), width, y(bottom) - y(top), LOOKS[part], **tells, **edge)
            bottom = top
    chart.keep_clear(x - width / 2, y(bottom), x + width / 2, y.start)


def memory_axis(chart: Chart, y: Scale, left: float, right: float) -> None:
    """Quarters of the axis, in bytes with their unit."""
    quarters = [int(y.high) * quarter // 4 for quarter in range(5)]
    y.ticks_beside(chart, [(size, tick_words(size)) for size in quarters], left, right)


def card_line(chart: Chart, y: Scale, num_bytes: int | None, left: float, right: float, name: str = "") -> None:
    """A card's capacity across the bars, where it is near, named at the end that has room."""
    if num_bytes and num_bytes < y.high:
        chart.line(
            [(left, y(num_bytes)), (right, y(num_bytes))],
            stroke_width=1.6,
            stroke_dasharray=DASHED,
            tip=f"{name}: {format_bytes(num_bytes)}",
            data={"bytes": num_bytes},
        )
        if name:
            half, line = text_width(name, 12) / 2 + 3, y(num_bytes)
            room = right - left - 2 * half
            steps = (0, 8, *range(1, 8))
            places = [(right - half - room * step / 8, line + away) for away in (-9, 9) for step in steps]
            chart.place(*([(x, height, name)] for x, height in places), [], boxed=True)


def timeline_figure(
    timeline: MemoryTimeline,
    selected: Instant | None = None,
    capacity_bytes: int | None = None,
    card_name: str = "card",
    title: str = "Memory through a training step",
    fades_later: bool = False,
    before: MemoryTimeline | None = None,
) -> Chart:
    """A stacked bar per instant; beside them the parts of ``selected`` (the peak, if not given) in words and bytes.

    ``capacity_bytes`` draws the card as a line; ``fades_later`` pales the instants after the selected one; ``before``
    is another timeline, whose bars are outlined where they differ. A bar's ``data-pick`` is its number.
    """
    instants = drawn_instants(timeline)
    shown = selected if selected in instants else max(instants, key=lambda i: i.total_bytes)
    index = instants.index(shown)
    top = axis_top(max(i.total_bytes for i in instants), capacity_bytes)
    chart = Chart(800, 430, title, provenance_line(timeline))
    left, right = 92, 606
    y = Scale(low=0, high=top, start=345, end=72)
    places, unit = _arranged(chart, instants, left, right, y.start)
    memory_axis(chart, y, left, right)
    known = {(i.name, i.step, i.micro_batch): i.total_bytes for i in drawn_instants(before)} if before else {}
    ghosts = [known.get((i.name, i.step, i.micro_batch), i.total_bytes) for i in instants]
    for number, (x, instant, ghost) in enumerate(zip(places, instants, ghosts, strict=True)):
        shade = PALE if fades_later and number > index else INK
        stacked_bar(chart, instant, x, 0.88 * unit, y, where(instant), shade=shade, data={"pick": number})
        if abs(ghost - instant.total_bytes) > top // 250:
            a, b = x - 0.44 * unit, x + 0.44 * unit
            outline = [(a, y(0)), (a, y(ghost)), (b, y(ghost)), (b, y(0))]
            chart.line(outline, shade=GREY, stroke_dasharray="3 3", data={"before": ghost})
    card = "" if capacity_bytes is None else f"{card_name}: {format_bytes(capacity_bytes, 1)}"
    _totals(chart, instants, places, y, [(capacity_bytes, ghost) for ghost in ghosts], index)
    card_line(chart, y, capacity_bytes, left, right, card)
    _beside(chart, timeline, shown, any(i.unattributed_bytes for i in instants), card)
    peak, last = timeline.peak, timeline.instants[-1]
    chart.alt = (
        f"{title} ({provenance_line(timeline)}): stacked bars for {len(timeline.instants)} instants. "
        f"The tallest, {format_bytes(peak.total_bytes)}, is the {where(peak)}; "
        f"the last, {where(last)}, has {format_bytes(last.total_bytes)}."
    )
    return chart


def _arranged(chart: Chart, instants: Sequence[Instant], left, right, bottom) -> tuple[list[float], float]:
    """Places of the bars, in groups by phase with the names below, and the width of one place."""
    keys = [(i.name.partition(" ")[0], i.step, i.micro_batch) for i in instants]
    gaps = [0.3 * number for number in accumulate((a != b for a, b in pairwise(keys)), initial=0)]
    x = Scale(low=-0.65, high=len(keys) - 0.35 + gaps[-1], start=left, end=right)
    places = [x(number + gap) for number, gap in enumerate(gaps)]
    groups: dict[tuple, list[float]] = {}
    for key, place in zip(keys, places, strict=True):
        groups.setdefault(key, []).append(place)
    moments = [i.name.partition(" ")[2] or "end" for i in instants]
    named = [(a, m) for a, m, key in zip(places, moments, keys, strict=True) if key[0] not in ("init", "zero_grad")]
    chart.row(named, bottom + 4, 11, shade=GREY)
    is_split = len({i.micro_batch for i in instants}) > 1
    names = []
    for (phase, _, batch), group in groups.items():
        name = f"{phase} batch_{batch}" if is_split and phase in ("forward", "backward") else phase
        names.append((sum(group) / len(group), name))
    chart.row([(a, name.replace("batch_", "\nbatch ").replace(" \n", "\n")) for a, name in names], bottom + 20, 11.5)
    for step in sorted({key[1] for key in keys}):
        own = [
            place for place, key, i in zip(places, keys, instants, strict=True) if key[1] == step and i.name != "init"
        ]
        if own:
            y, half = bottom + (56 if is_split else 50), 0.44 * (x(1) - x(0))
            chart.line([(own[0] - half, y), (own[-1] + half, y)], shade=GREY)
            chart.words(sum(own) / len(own), y + 4, f"step {step}", 12, anchor="middle", at="top")
    return places, x(1) - x(0)


def _totals(chart: Chart, instants, places, y: Scale, lines, chosen: int) -> None:
    """Bytes above each bar, above ``lines`` that would run through them, and a triangle on the chosen bar."""
    heights = []
    for instant, crossing in zip(instants, lines, strict=True):
        height = y(instant.total_bytes) - 3
        for line in sorted((y(size) for size in crossing if size and size < y.high), reverse=True):
            height = line - 3 if height - 28 < line <= height + 2 else height
        heights.append(height)
    words = [short(i.total_bytes) for i in instants]
    plain = list(zip(places, heights, words, strict=True))
    broken = [(x, height, text.replace(" ", "\n")) for x, height, text in plain]
    rows = 1 + chart.place(plain, broken, size=11.5, at="bottom")
    chart.words(places[chosen], heights[chosen] - 14 * rows, "▼", 11, anchor="middle", at="bottom")


def _beside(chart: Chart, timeline: MemoryTimeline, shown: Instant, has_rest: bool, card: str) -> None:
    """The legend in words, with the bytes of the selected instant."""
    is_peak = shown.total_bytes == timeline.peak_bytes
    chart.words(
        624, 12, f"{'Peak of the step' if is_peak else 'This instant'}:\n{where(shown)}", 13, bold=True, at="top"
    )
    sizes = {**shown.parts, "not attributed": shown.unattributed_bytes}
    parts = [*reversed(PARTS), *(["not attributed"] if has_rest else [])]
    entries = [(LOOKS[part], f"{part.replace('_', ' ')}\n{format_bytes(sizes[part])}") for part in parts]
    end = chart.legend(entries, 624, 72, 176, 12.5, row=45)
    chart.words(624, end, f"total: {format_bytes(shown.total_bytes)}", 13)
    chart.words(624, end + 19, card, 12, shade=GREY)
