"""Charts of the allocator and of plans, as text: segments with their blocks and holes; a job's plans by bytes and time.

Nothing is told by colour alone: a part has a hatch, a hole is empty, the unasked rest of a block is dotted, a new
block has a dark frame.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from textwrap import wrap

from memkit.pictures.bars import Bar, bars_figure, short
from memkit.pictures.colours import LOOKS, OKABE_ITO
from memkit.pictures.planes import SHAPES, plane, point, stairs
from memkit.pictures.svg import (
    DASHED,
    GREY,
    PAPER,
    WIDE,
    Chart,
    Scale,
    broken,
    redrawn,
    text_width,
)
from memkit.pictures.timeline import REST as UNKNOWN
from memkit.pictures.timeline import named_parts, sizes_of
from memkit.timeline import PARTS, Instant
from memkit.units import MIB, format_bytes
from stepscope.allocator.film import AllocatorState, Film, Piece, Row
from stepscope.planner.search import PlansFound

MAX_ROWS = 14
ROW = 25
REST = (OKABE_ITO[7], "...")


@redrawn
def allocator_picture(
    film: Film, index: int | None = None, room: int = 0, width: float = WIDE
) -> Chart:
    """A film at its end, or after ``index`` events; the scale fits the whole film.

    Segments by address from top to bottom, and below them allocated and reserved bytes. Blocks tell their bytes. A
    ``room`` for so many segments keeps its height, and rows of more stand closer.
    """
    state = film.state(len(film) if index is None else index)
    widest_bytes = max((row.size for each in film.states for row in each.rows), default=MIB)
    num_rows = min(max(3, *(len(each.rows) for each in film.states)), MAX_ROWS)
    chart = Chart(width, 0, f"event {state.index} of {len(film)}")
    words, lines = state.words, 3 if chart.is_narrow else 1
    while broken(words, width - 20, 12).count("\n") >= lines:
        words = words.removesuffix(" …").rpartition(" ")[0] + " …"
    chart.words(10, 34, broken(words, width - 20, 12), 12, at="top")
    top = 62 + 15 * (lines - 1)
    bottom = top + ROW * (room or num_rows)
    each_row = min(ROW, (bottom - top) / num_rows)
    x = Scale(low=0, high=widest_bytes, start=98, end=width - (24 if chart.is_narrow else 18))
    step = max(MIB, 1 << max(widest_bytes // 8 - 1, 1).bit_length())
    ticks = [(x(tick), format_bytes(tick, 0)) for tick in range(0, widest_bytes + 1, step)]
    small = 11.5 if chart.is_narrow else 10.5
    chart.row(ticks[:: 2 if chart.is_narrow else 1], bottom + 1, small, shade=GREY)
    rows = state.rows if len(state.rows) <= num_rows else state.rows[: num_rows - 1]
    for number, row in enumerate(rows):
        y = top + 8 + each_row * number
        chart.words(
            90 + chart.is_narrow, y, f"{format_bytes(row.size, 0)} {_kind(row)}", 11, anchor="end"
        )
        for piece in row.pieces:
            _draw_piece(chart, piece, x, y)
    if more := len(state.rows) - len(rows):
        chart.words(90, top + 8 + each_row * (num_rows - 1), f"{more} more", 11, anchor="end")
    bottom = _draw_totals(chart, state, film, bottom + 36)
    parts = [(LOOKS[part], part.replace("_", " ")) for part in PARTS]
    parts += [(REST, "unasked rest"), ((PAPER, ""), "hole")]
    chart.height = round(chart.legend(parts, 10, bottom + 22, width - 10, small) - 2)
    segments = "1 segment" if len(state.rows) == 1 else f"{len(state.rows)} segments"
    chart.alt = (
        f"After event {state.index} of {len(film)}: {state.words}. {segments}, "
        f"{format_bytes(state.allocated_bytes)} allocated, {format_bytes(state.reserved_bytes)} reserved, "
        f"largest hole {format_bytes(state.largest_hole_bytes)}."
    )
    return chart


def _kind(row: Row) -> str:
    return "grows" if row.is_expandable else "small" if row.is_small else "large"


def _draw_piece(chart: Chart, piece: Piece, x: Scale, y: float) -> None:
    """A block or a hole; what the block got unasked is dotted, a new one has a frame, its name stands in it."""
    left, right = x(piece.offset), x(piece.offset + piece.size)
    box, edge = (left, right, y, 18), {"stroke": PAPER, "stroke_width": 0.7}
    if piece.is_free:
        tells = {"tip": f"hole: {format_bytes(piece.size)}", "data": {"hole": piece.size}}
        chart.bar(*box, (PAPER, ""), stroke="currentColor", stroke_opacity=0.6, **tells)
        return
    part = piece.part if piece.part in LOOKS else UNKNOWN
    tip = f"{piece.label}: {format_bytes(piece.size)}, {part.replace('_', ' ')}"
    tip += f", {format_bytes(piece.rest_bytes)} unasked" if piece.rest_bytes else ""
    chart.bar(*box, LOOKS[part], **edge, tip=tip, data={"part": part, "bytes": piece.size})
    rest = x(piece.rest_bytes) - x(0)
    if rest > 1.7:
        chart.bar(right - rest, right, y, 18, REST, **edge, pointer_events="none")
    if piece.is_new:
        chart.bar(*box, stroke="currentColor", stroke_width=2, pointer_events="none")
    size = 11 if chart.is_narrow else 10
    if text_width(piece.label, size) + 6 < right - left:
        chart.words((left + right - rest) / 2, y, piece.label, size, anchor="middle", boxed=True)


def _draw_totals(chart: Chart, state: AllocatorState, film: Film, top: float) -> float:
    """Two bars: what blocks use, what segments hold, and the card's line; the lower end."""
    capacity = film.capacity_bytes
    most = max(*(each.reserved_bytes for each in film.states), capacity or 0, MIB)
    end, tall = (chart.width - 18, 40) if chart.is_narrow else (500, 24)
    x = Scale(low=0, high=most, start=98, end=end)
    card = f" of the card's {format_bytes(capacity)}" if capacity else ""
    hole = f", largest hole {format_bytes(state.largest_hole_bytes)}" if state.hole_bytes else ""
    totals = (
        ("allocated", state.allocated_bytes, (OKABE_ITO[5], ""), hole),
        ("reserved", state.reserved_bytes, (OKABE_ITO[7], "///"), card),
    )
    for row, (name, size, look, more) in enumerate(totals):
        y = top + 10 + tall * row
        chart.words(90, y, name, 12, anchor="end")
        tip = f"{name}: {format_bytes(size)}"
        chart.bar(x.start, x(size), y, 18, look, tip=tip, data={"bytes": size})
        text = format_bytes(size) + more
        if chart.is_narrow:
            chart.words(chart.width - 8, y + 18, text, 12, anchor="end", boxed=True)
        else:
            chart.words(512, y, text, 12)
    if capacity is not None:
        pieces = [(-2, 20), (38, 60)] if chart.is_narrow else [(-2, 46)]  # between the words
        for low, high in pieces:
            ends = [(x(capacity), top + low), (x(capacity), top + high)]
            chart.line(ends, OKABE_ITO[1], stroke_width=2, stroke_dasharray=DASHED)
    return top + 2 * tall


@redrawn
def plans_figure(found: PlansFound, title: str, width: float = WIDE) -> Chart:
    """The unbeaten plans as a staircase, with names: time on paper across, peak upwards; the others pale.

    A mark's ``data-pick`` is the plan's place in ``found.plans``. Pale are those whose peak was worked out besides.
    On a narrow page the names stand below.
    """
    front, first = found.front, found.first
    card, room = found.plans[0].card, found.plans[0].fit.room_bytes  # which works out its peak
    shown = [plan for plan in found.played if plan.peak_bytes < 2 * plan.fit.room_bytes]
    places = {id(plan): number for number, plan in enumerate(found.plans)}
    least = min((plan.seconds for plan in shown), default=1)
    longest = max((plan.seconds for plan in shown), default=1) / least
    chart = Chart(width, max(430, 86 + 62 * len(front)), title)
    left, top, room_across = 450, 60, 430
    if chart.is_narrow:
        left, top, room_across = 10, 430 + chart.lower, width - 18
    most = max([room, *(plan.peak_bytes for plan in shown)])
    ends, limit = (1 - 0.04 * longest, 1.04 * longest), (f"room on {card.name}", room)
    x, y = plane(chart, room_across, ends, "time of a step ÷ least", most, limit)
    at = {id(plan): (x(plan.seconds / least), y(plan.peak_bytes)) for plan in shown}
    stairs(chart, [at[id(plan)] for plan in sorted(front, key=lambda plan: -plan.seconds)])
    numbers = {id(plan): number for number, plan in enumerate(front, 1)}
    for plan in (*(plan for plan in shown if id(plan) not in numbers), *front):
        size, style = (5, {}) if id(plan) in numbers else (3, {"opacity": 0.3})
        colour = OKABE_ITO[1 if plan is first else 0] if id(plan) in numbers else "currentColor"
        times = f"{plan.seconds / least:.2f} × the least time"
        style["tip"] = f"{format_bytes(plan.peak_bytes)}, {times}: {plan.name}"
        style["data"] = {"pick": places[id(plan)], "bytes": plan.peak_bytes}
        point(chart, *at[id(plan)], SHAPES[0], colour, size, id(plan) in numbers, **style)
    for number, plan in enumerate(front, 1):
        across, high = at[id(plan)]
        beside = product((-9, 9, -22, 22), (9, -16))  # down, and to the right
        ways = ([(across + right, high + down, str(number))] for down, right in beside)
        chart.place(*ways, size=11.5, anchor="start", bold=True)
    for number, plan in enumerate(front, 1):
        gives = f"gives up: {', '.join(plan.gives_up) or 'nothing'}"
        lines = [*wrap(f"{number}  {plan.name}", 50), *wrap(gives, 56)]
        if chart.is_narrow:
            name = f"{number}  {plan.name}"
            lines = [
                line
                for text in (name, gives)
                for line in broken(text, width - 20, 11, True).split("\n")
            ]
        lines += ["chosen: the least price"] * (plan is first)
        chart.words(left, top, "\n".join(lines), 11, at="top", bold=plan is first)
        top += 13 * len(lines) + 10 if chart.is_narrow else 62
    words = "pale: other plans whose peak was worked out\ndashed: room on the card"
    chart.words(left, top, words, 11, shade=GREY, at="top")
    if chart.is_narrow:
        chart.height = top + 34
    names = "; ".join(f"{plan.name} at {plan.seconds / least:.2f}" for plan in front)
    unbeaten = f"of {len(found.plans)} plans {len(front)} are unbeaten on the {card.name}"
    chart.alt = f"{title}: {unbeaten}, by time ÷ least: {names}."
    return chart


@redrawn
def choices_figure(
    peaks: Mapping[str, Instant],
    title: str,
    subtitle: str = "",
    capacity_bytes: int = 0,
    chosen: int = -1,
    above: Sequence[str] = (),
    foot: str = "",
    width: float = WIDE,
) -> Chart:
    """A stacked bar for each peak, its bytes above, its name below; a triangle marks the ``chosen`` index.

    ``above`` is a second line above each bar, and ``foot`` says what the texts are. A bar's ``data-pick`` is its
    number.

    Raises: ValueError: nothing to draw.
    """
    if not peaks:
        raise ValueError("choices_figure needs at least one peak")
    bars, words = [], []
    for number, (name, peak) in enumerate(peaks.items()):
        flat, second = name.replace("\n", " "), list(above[number:][:1])
        top = "\n".join([short(peak.total_bytes), *second])
        data = {"pick": number}
        bars.append(Bar(name=name, pieces=sizes_of(peak), above=top, whose=flat, data=data))
        marked, colon = ", chosen" if number == chosen else "", ":" if second else ""
        size = ", ".join([format_bytes(peak.total_bytes), *second])
        words.append(f"{flat}{marked}{colon} {size}")
    limit = ("", capacity_bytes) if capacity_bytes else None
    parts = named_parts(list(peaks.values()))
    parts = [part for part in parts if any(bar.pieces[part[0]] for bar in bars)]
    told = {"subtitle": subtitle, "beside": parts, "limit": limit, "chosen": chosen, "foot": foot}
    chart = bars_figure(title, bars, **told, width=width)
    chart.alt = f"{title}. {subtitle}. {foot or 'Stacked bars'}: {'; '.join(words)}."
    return chart
