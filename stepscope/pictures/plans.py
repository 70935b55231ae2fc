"""The plane of bytes and time of a job's plans (chapter 10)."""

from itertools import pairwise
from textwrap import wrap

from memkit.pictures.axes import Scale, byte_ticks, draw_limit, round_ticks
from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.planes import point
from memkit.pictures.svg import GREY, Chart
from memkit.units import format_bytes
from stepscope.fitting.plans import PlansFound


def plans_figure(found: PlansFound, title: str) -> Chart:
    """The unbeaten plans as a staircase, with names: time on paper across, peak upwards; the others pale.

    A mark's ``data-pick`` is the plan's place in ``found.plans``. Pale are those whose peak was worked out besides.
    """
    front, card, first = found.front, found.plans[0].card, found.first
    shown = [plan for plan in found.played if plan.peak_bytes < 2 * plan.fit.room_bytes]
    places = {id(plan): number for number, plan in enumerate(found.plans)}
    least = min((plan.seconds for plan in shown), default=1)
    longest = max((plan.seconds for plan in shown), default=1) / least
    most = 1.05 * max([found.plans[0].fit.room_bytes, *(plan.peak_bytes for plan in shown)])
    chart = Chart(800, max(430, 86 + 62 * len(front)), title)
    x = Scale(low=1 - 0.04 * longest, high=1.04 * longest, start=80, end=430)
    y = Scale(low=0, high=most, start=372, end=56)
    y.ticks_beside(chart, byte_ticks(most), 80, 430, "peak")
    x.ticks_below(chart, [(t, f"{t:g}") for t in round_ticks(x.low, x.high)], y.end, y.start, "time of a step ÷ least")
    draw_limit(chart, y, found.plans[0].fit.room_bytes, 80, 430, f"room on {card.name}")
    steps = [(x(plan.seconds / least), y(plan.peak_bytes)) for plan in front]
    corners = [corner for (a, b), (c, d) in pairwise(steps) for corner in ((a, b), (c, b), (c, d))]
    chart.line(corners or steps, shade=GREY, stroke_width=1.4)
    pale = [plan for plan in shown if not any(plan is step for step in front)]
    for plan in (*pale, *front):
        is_step = any(plan is step for step in front)
        colour = OKABE_ITO[1 if plan is first else 0] if is_step else "currentColor"
        tells = {
            "tip": f"{format_bytes(plan.peak_bytes)}, {plan.seconds / least:.2f} × the least time: {plan.name}",
            "data": {"pick": places[id(plan)], "bytes": plan.peak_bytes},
        }
        size = 5 if is_step else 3
        style = {} if is_step else {"opacity": 0.3}
        point(chart, x(plan.seconds / least), y(plan.peak_bytes), "circle", colour, size, is_step, **tells, **style)
    for number, (across, high) in enumerate(steps, 1):
        chart.words(across + 9, high - 9, str(number), 11.5, bold=True)
    for number, plan in enumerate(front, 1):
        lines = [*wrap(f"{number}  {plan.name}", 50), *wrap(f"gives up: {', '.join(plan.gives_up) or 'nothing'}", 56)]
        if plan is first:
            lines.append("chosen: no plan that fits gives up less")
        chart.words(450, 60 + 62 * (number - 1), "\n".join(lines), 11, at="top", bold=plan is first)
    chart.words(450, 60 + 62 * len(front), "pale: other plans whose peak was worked out\ndashed: room on the card", 11,
                shade=GREY, at="top")
    names = "; ".join(f"{plan.name} at {plan.seconds / least:.2f}" for plan in front)
    chart.alt = (
        f"{title}: of {len(found.plans)} plans {len(front)} are unbeaten on the {card.name}, by time ÷ least: {names}."
    )
    return chart
