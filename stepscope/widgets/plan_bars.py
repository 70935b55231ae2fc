"""What explorers of plans show (chapters 05, 08, 09, 10): a bar, a row and a verdict each.

An explorer says which plans there are; picture, table and verdict follow from them here.
"""

from collections.abc import Mapping, Sequence

from memkit.hardware.fit import verdict
from memkit.pictures.timeline import choices_figure
from memkit.timeline import where
from memkit.units import format_bytes
from memkit.widgets.explorer import View
from stepscope.fitting.plan import TrainingPlan

Plans = Mapping[str, TrainingPlan]


def plans_view(
    plans: Plans,
    title: str,
    subtitle: str,
    words: Sequence[str] = (),
    *,
    chosen: str = "",
    columns: Mapping[str, Sequence[str]] | None = None,
    above: Sequence[str] = (),
    foot: str = "",
    picks: Mapping[str, Sequence] | None = None,
) -> View:
    """A bar for each plan, the ``chosen`` one marked; dashed is the room for tensors on the card.

    A line break in a plan's name breaks its label. ``columns`` of the table are headers with a
    text for each plan; ``above`` and ``foot`` are ``choices_figure``'s.
    """
    names, card = list(plans), next(iter(plans.values())).card
    room = next(iter(plans.values())).fit.room_bytes
    peaks = {name: plan.peak for name, plan in plans.items()}
    place = names.index(chosen) if chosen else -1
    subtitle = f"{subtitle}; dashed: room on {card.name}"
    chart = choices_figure(peaks, title, subtitle, room, place, above, foot)
    own = [verdict(plans[chosen].peak, card.name)] if chosen else []
    words = (*own, those_that_fit(plans), *words)
    answer = {"headline": plans[chosen].fit.headline, "fits": plans[chosen].fits} if chosen else {}
    return View(chart=chart, words=words, **answer, table=table_of(plans, columns or {}), picks=picks or {})


def table_of(plans: Plans, columns: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """A row for each plan: its peak, where that is, whether it fits, and ``columns``."""
    columns = {
        "plan": [name.replace("\n", " ") for name in plans],
        "peak": [format_bytes(plan.peak_bytes) for plan in plans.values()],
        "at": [where(plan.peak) for plan in plans.values()],
        "on the card": [plan.fit.verdict for plan in plans.values()],
        **columns,
    }
    return [tuple(columns), *zip(*columns.values(), strict=True)]


def those_that_fit(plans: Plans) -> str:
    """Which of the plans fit their card, by the one rule, ``TrainingPlan.fits``."""
    card = next(iter(plans.values())).card
    fitting = [name.replace("\n", " ") for name, plan in plans.items() if plan.fits]
    if not fitting:
        return f"None of the {len(plans)} fits one {card.name} ({format_bytes(card.memory_bytes)})."
    return f"Of the {len(plans)} fit one {card.name}, as expected: {'; '.join(fitting)}."
