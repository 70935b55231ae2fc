"""Plans by bytes and time, the front filled."""

from memkit.fitting.plans import PlansFound
from memkit.pictures.picture import GREY, INK, OKABE_ITO, Picture, bare
from memkit.units import GIB, format_bytes

MARKS = {"o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "P": "✚"}
COLOURS = (INK, OKABE_ITO[0], OKABE_ITO[1], OKABE_ITO[2], OKABE_ITO[5], OKABE_ITO[3])


def plans_figure(found: PlansFound, title: str) -> Picture:
    """Every plan by its peak and its time on paper; the front's are filled, and what is given up has a mark."""
    picture = Picture(8.0, 4.1)
    plot = picture.add_axes((0.09, 0.13, 0.55, 0.72))
    bare(plot, "peak in GiB", "time of a step ÷ least")
    least = min(plan.seconds for plan in found.plans)
    kinds = list(dict.fromkeys(plan.gives_up for plan in sorted(found.plans, key=lambda plan: plan.sacrifice)))
    front = found.front
    for number, kind in enumerate(kinds):
        colour, mark = COLOURS[number % len(COLOURS)], list(MARKS)[number % len(MARKS)]
        for plan in (plan for plan in found.plans if plan.gives_up == kind):
            face = colour if plan in front else "none"
            plot.plot(
                plan.peak_bytes / GIB, plan.seconds / least, mark, markersize=6, color=colour, markerfacecolor=face
            )
        y = 0.82 - 0.1 * number
        picture.text(0.67, y, MARKS[mark], fontsize=10, color=colour)
        picture.text(0.695, y, "\n".join(kind) or "gives up nothing", fontsize=8.5, color=INK, va="center")
    card = found.plans[0].card
    plot.axvline(card.memory_bytes / GIB, color=OKABE_ITO[1], linewidth=1.6, linestyle=(0, (3, 1.5)))
    plot.set_xlim(left=0)
    picture.text(0.67, 0.12, f"filled: on the front\ndashed: {card.name}", fontsize=8.5, color=GREY, va="center")
    picture.text(0.012, 0.95, title, fontsize=11.5, fontweight="bold", va="center", color=INK)
    picture.alt = (
        f"{title}: {len(found.plans)} plans by peak and time; {len(found.fitting)} fit the {card.name}, "
        f"{len(found.front)} of them are on the front, from "
        f"{format_bytes(min((p.peak_bytes for p in found.front), default=0), 1)} upwards."
    )
    return picture
