"""What explorers of plans share (chapters 08, 09, 10): the kit's bars, rows and verdicts of a ``TrainingPlan`` each."""

from collections.abc import Mapping, Sequence

from memkit.widgets import explorer
from memkit.widgets.explorer import View
from stepscope.fitting.plan import TrainingPlan

Plans = Mapping[str, TrainingPlan]


def plans_view(plans: Plans, *said: object, **choice: object) -> View:
    """``memkit.widgets.explorer.choices_view`` of plans for one card; the host's memory counts too."""
    card = next(iter(plans.values())).card
    peaks = {name: plan.peak for name, plan in plans.items()}
    fitting = [name for name, plan in plans.items() if plan.fits]
    return explorer.choices_view(peaks, card, *said, fitting=fitting, **choice)


def table_of(plans: Plans, columns: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """A row for each plan."""
    peaks, fits = ({name: getattr(plan, each) for name, plan in plans.items()} for each in ("peak", "fit"))
    return explorer.table_of(peaks, fits, columns)
