"""Plans by bytes and time, the front filled."""

from memkit.fitting.plans import PlansFound
from memkit.pictures.axes import COLOURS, DASHED, SHAPES, Scale, point, round_ticks, ticks_below, ticks_beside
from memkit.pictures.svg import GREY, OKABE_ITO, Chart
from memkit.units import GIB, format_bytes

NAMES_TOP = 76.0


def plans_figure(found: PlansFound, title: str) -> Chart:
    """Every plan by its peak and its time on paper; the front's are filled, and what is given up has its own shape.

    A mark's ``data-pick`` is the plan's place in ``found.plans``.
    """
    kinds = list(dict.fromkeys(plan.gives_up for plan in sorted(found.plans, key=lambda plan: plan.sacrifice)))
    colours = (COLOURS[n % len(COLOURS)] for n in range(len(kinds)))
    looks = {kind: (colour, shape) for kind, colour, shape in zip(kinds, colours, SHAPES, strict=False)}
    names_end = NAMES_TOP + sum(_height_of(kind) for kind in kinds)
    chart = Chart(800, max(410, round(names_end + 50)), title)
    plans, card, least = found.plans, found.plans[0].card, min(plan.seconds for plan in found.plans)
    most, slowest = (
        max(card.memory_bytes, *(plan.peak_bytes for plan in plans)) / GIB,
        max(p.seconds for p in plans) / least,
    )
    x, y = (
        Scale(low=0, high=most * 1.05, start=62, end=512),
        Scale(low=1, high=slowest * 1.06, start=350, end=60),
    )
    ticks_below(chart, x, [(tick, f"{tick:g}") for tick in round_ticks(0, x.high)], 60, 350, "peak in GiB")
    ticks_beside(
        chart, y, [(tick, f"{tick:g}") for tick in round_ticks(1, y.high)], 62, 512, "time of a step ÷ least"
    )
    chart.line(
        [(x(card.memory_bytes / GIB), 60), (x(card.memory_bytes / GIB), 350)],
        OKABE_ITO[1],
        stroke_width=2,
        stroke_dasharray=DASHED,
    )
    for number, plan in enumerate(plans):
        colour, shape = looks[plan.gives_up]
        tip = f"{format_bytes(plan.peak_bytes)}, {plan.seconds / least:.2f} × the least time: {plan.name}"
        point(
            chart,
            x(plan.peak_bytes / GIB),
            y(plan.seconds / least),
            shape,
            colour,
            is_filled=plan in found.front,
            tip=tip,
            data={"pick": number, "bytes": plan.peak_bytes},
        )
    _name_kinds(chart, looks, card.name)
    chart.alt = (
        f"{title}: {len(plans)} plans by peak and time; {len(found.fitting)} fit the {card.name}, "
        f"{len(found.front)} of them are on the front, from "
        f"{format_bytes(min((p.peak_bytes for p in found.front), default=0), 1)} upwards."
    )
    return chart


def _height_of(kind: tuple[str, ...]) -> float:
    """What the name of a kind takes beside the picture: a line for each thing that it gives up, or for nothing."""
    return 16 + 13.5 * max(len(kind), 1)


def _name_kinds(chart: Chart, looks: dict, card: str) -> None:
    """What each mark gives up, in words."""
    place = NAMES_TOP
    for kind, (colour, shape) in looks.items():
        lines = list(kind) or ["gives up nothing"]
        point(chart, 540, place + 6, shape, colour, 5)
        chart.words(556, place, "\n".join(lines), 11.5, at="top")
        place += _height_of(kind)
    chart.words(536, place + 14, f"filled: on the front\ndashed: {card}", 11.5, shade=GREY, at="top")
