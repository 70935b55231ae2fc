"""What explorers of choices show: a bar, a row and a verdict for each way to run, and the room on the card.

An explorer says which ways there are and how high each is; picture, table and verdict follow from them here.
"""

from collections.abc import Iterable, Mapping, Sequence

from memkit.hardware.cards import Card
from memkit.hardware.fit import Fit, fit_on, verdict
from memkit.pictures.timeline import choices_figure
from memkit.timeline import Instant, where
from memkit.units import format_bytes
from memkit.widgets.explorer import View


def choices_view(
    peaks: Mapping[str, Instant],
    card: Card,
    title: str,
    subtitle: str,
    words: Sequence[str] = (),
    *,
    chosen: str = "",
    fitting: Iterable[str] | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    above: Sequence[str] = (),
    foot: str = "",
    picks: Mapping[str, Sequence] | None = None,
) -> View:
    """A bar for each peak, the ``chosen`` one marked; dashed is the room for tensors on the card.

    A line break in a name breaks its label. ``fitting`` are the names of those that fit, if more than the card decides.
    ``columns`` of the table are headers with a text for each peak; ``above`` and ``foot`` are ``choices_figure``'s.
    """
    names, fits = list(peaks), {name: fit_on(card, peak.total_bytes) for name, peak in peaks.items()}
    if fitting is None:
        fitting = [name for name, fit in fits.items() if fit.is_expected]
    fitting = list(fitting)
    place = names.index(chosen) if chosen else -1
    subtitle = f"{subtitle}; dashed: room on {card.name}"
    chart = choices_figure(peaks, title, subtitle, fits[names[0]].room_bytes, place, above, foot)
    own = [verdict(peaks[chosen], card.name)] if chosen else []
    words = (*own, those_that_fit(fitting, len(names), card), *words)
    answer = {}
    if chosen:
        is_held_back = fits[chosen].is_expected and chosen not in fitting  # by more than the card
        answer = {"headline": fits[chosen].headline, "fits": not is_held_back and fits[chosen].is_certain}
    return View(chart=chart, words=words, **answer, table=table_of(peaks, fits, columns or {}), picks=picks or {})


def table_of(
    peaks: Mapping[str, Instant], fits: Mapping[str, Fit], columns: Mapping[str, Sequence[str]]
) -> list[tuple[str, ...]]:
    """A row for each name: its peak, where that is, whether it fits, and ``columns``."""
    columns = {
        "plan": [name.replace("\n", " ") for name in peaks],
        "peak": [format_bytes(peak.total_bytes) for peak in peaks.values()],
        "at": [where(peak) for peak in peaks.values()],
        "on the card": [fits[name].verdict for name in peaks],
        **columns,
    }
    return [tuple(columns), *zip(*columns.values(), strict=True)]


def those_that_fit(fitting: Sequence[str], num_choices: int, card: Card) -> str:
    """Which of them fit their card, by the one rule, ``fit_on``."""
    if not fitting:
        return f"None of the {num_choices} fits one {card.name} ({format_bytes(card.memory_bytes)})."
    names = "; ".join(name.replace("\n", " ") for name in fitting)
    return f"Of the {num_choices} fit one {card.name}, as expected: {names}."
