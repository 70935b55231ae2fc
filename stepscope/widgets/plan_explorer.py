"""The plan explorer (chapter 10): a job and a card, every plan, and what each gives up.

What explorers of plans share (chapters 08 and 09 too) is ``plans_view``: the kit's bars, rows and verdicts, one a
plan.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from memkit.cards import CARDS
from memkit.fit import verdict
from memkit.widgets import explorer
from memkit.widgets.explorer import Choice, Explorer, Number, View, takes_length
from stepscope.experts import PUBLISHED_MODELS
from stepscope.pictures import plans_figure
from stepscope.planner.plan import GIVES_UP, TrainingPlan
from stepscope.planner.search import PlansFound, find_plans

Plans = Mapping[str, TrainingPlan]


def plans_view(plans: Plans, *said: object, **choice: object) -> View:
    """``memkit.widgets.explorer.choices_view`` of plans for one card; the host's memory counts too."""
    card = next(iter(plans.values())).card
    peaks = {name: plan.peak for name, plan in plans.items()}
    fitting = [name for name, plan in plans.items() if plan.fits]
    return explorer.choices_view(peaks, card, *said, fitting=fitting, **choice)


def table_of(plans: Plans, columns: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """A row for each plan."""
    peaks, fits = (
        {name: getattr(plan, each) for name, plan in plans.items()} for each in ("peak", "fit")
    )
    return explorer.table_of(peaks, fits, columns)


LENGTHS, NUM_CARDS, MAX_ROWS = (512, 1024, 2048, 4096), (1, 2, 4, 8), 12
ANYTHING, NOTHING = "anything", "nothing but time"


@lru_cache(maxsize=32)
def plans_for(model: str, card: str, tokens: int, seq_len: int, num_cards: int) -> PlansFound:
    """The plans of a job, remembered: finding them takes a second, walking through them must not."""
    sizes = {"tokens_per_step": tokens, "seq_len": seq_len, "num_cards": num_cards}
    return find_plans(PUBLISHED_MODELS[model], CARDS[card], **sizes)


class PlanExplorer(Explorer, verdict=(130,), status=(225, 76, 175, 105)):
    """Model, card, tokens a step, what may be given up → the unbeaten plans, and the command that traces the code.

    ``plan`` counts the unbeaten plans, the one of the least price first.
    """

    job: tuple = ()

    def followed(self, changes: dict) -> dict:
        """Another job starts at its first plan."""
        return changes if "plan" in changes else {**changes, "plan": 1}

    def view(
        self,
        model=Choice("Model", PUBLISHED_MODELS, "Llama-3.2-1B"),
        card=Choice("Card", CARDS, "RTX 5090"),
        tokens_per_step=Number("Tokens a step", 2**14, low=2**12, high=2**17, step=2**12),
        seq_len=Choice("Sequence", LENGTHS, 2048, takes_length(PUBLISHED_MODELS)),
        num_cards=Choice("Cards", NUM_CARDS, 1),
        gives_up=Choice("May give up", [NOTHING, *GIVES_UP, ANYTHING], ANYTHING),
        plan=Number("Plan", 1, low=1, high=40),
    ) -> View:
        """The staircase, the chosen plan framed; it in words."""
        job = model, card, tokens_per_step, seq_len, num_cards
        found = plans_for(*job)
        # hundreds of points are drawn once a job; each plan frames another of them
        if job != self.job:
            title = f"{model} on {num_cards} × {card}, {tokens_per_step:,} tokens a step"
            self.job, self.chart = job, plans_figure(found, title)
        allowed = allowed_by(found, gives_up)
        if plan > max(len(allowed), 1):
            raise ValueError(f"plan={plan} is past the last of {len(allowed)} unbeaten ones")
        chosen = allowed[plan - 1] if allowed else None
        self.chart.marked = found.plans.index(chosen) if chosen else None
        words = [f"No plan fits that gives up {gives_up}.", next_best(found)]
        if chosen:
            words = [
                f"Plan {plan} of {len(allowed)} unbeaten: {chosen.name}.",
                *in_words(chosen, found),
            ]
            sizes = f"--tokens {tokens_per_step} --seq-len {seq_len} --cards {num_cards}"
            is_first = chosen is found.first
            words.append(
                f"Its code, traced: stepscope fit '{model}' --card '{card}' {sizes}"
                if is_first
                else ""
            )
        rows = {plan.name: plan for plan in allowed[:MAX_ROWS]}
        columns = {
            "time ÷ least": [times_least(plan, found) for plan in rows.values()],
            "gives up": [", ".join(plan.gives_up) or "nothing" for plan in rows.values()],
        }
        return View(
            chart=self.chart,
            words=[*filter(None, words)],
            table=table_of(rows, columns),
            kept=(found, allowed),
            ends={"plan": max(len(allowed), 1)},
        )

    def pick(self, mark: str) -> None:
        """Choose the plan whose point was clicked, if it fits."""
        found, allowed = self.shown.kept
        if found.plans[int(mark)] in allowed:
            self.set(plan=allowed.index(found.plans[int(mark)]) + 1)


def allowed_by(found: PlansFound, gives_up: str) -> tuple[TrainingPlan, ...]:
    """The unbeaten plans that give up nothing dearer than what is allowed, by price."""
    names = [NOTHING, *GIVES_UP, ANYTHING]
    allowed = set(GIVES_UP[: names.index(gives_up)])
    return tuple(plan for plan in found.front if set(plan.gives_up) <= allowed)


def in_words(plan: TrainingPlan, found: PlansFound) -> tuple[str, ...]:
    """Its bytes and time, what it gives up, and what the next would."""
    gives = f"it gives up {' and '.join(plan.gives_up) or NOTHING}"
    return (
        verdict(plan.peak, plan.card.name),
        f"A step takes {times_least(plan, found)} × the least time; {gives}: {priced(plan, found)} × the least price.",
        *found.why(plan).splitlines()[1:2],
    )


def times_least(plan: TrainingPlan, found: PlansFound) -> str:
    """The time of its step ÷ the least of the unbeaten plans, as text."""
    return f"{plan.seconds / min(each.seconds for each in found.front):.2f}"


def priced(plan: TrainingPlan, found: PlansFound) -> str:
    """Its price ÷ that of the first, as text."""
    return f"{plan.price / found.first.price:.2f}"


def next_best(found: PlansFound) -> str:
    """What would fit if more were given up."""
    if not found.first:
        return "No plan of another kind fits either: fewer tokens in a sequence, or more cards."
    return (
        f"{found.first.name} would fit; it gives up {' and '.join(found.first.gives_up) or 'time'}."
    )
