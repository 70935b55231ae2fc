"""The plan explorer (chapter 10): a job and a card → every plan, and what each gives up."""

from functools import lru_cache

from memkit.fitting.advice import verdict
from memkit.fitting.plan_code import code_of
from memkit.fitting.plans import GIVES_UP, PlansFound, TrainingPlan, find_plans
from memkit.hardware.cards import CARDS
from memkit.pictures.planes import plans_figure
from memkit.setup.models import PUBLISHED_MODELS
from memkit.widgets.explorer import Choice, Explorer, Number, View, model_takes
from memkit.widgets.plan_bars import table_of

LENGTHS, NUM_CARDS, MAX_ROWS = (512, 1024, 2048, 4096), (1, 2, 4, 8), 12
ANYTHING, NOTHING = "anything", "nothing but time"


@lru_cache(maxsize=32)
def plans_for(model: str, card: str, tokens: int, seq_len: int, num_cards: int) -> PlansFound:
    """The plans of a job, remembered: finding them takes a second, walking through them must not."""
    sizes = {"tokens_per_step": tokens, "seq_len": seq_len, "num_cards": num_cards}
    return find_plans(PUBLISHED_MODELS[model], CARDS[card], **sizes)


class PlanExplorer(Explorer):
    """Model, card, tokens a step, what may be given up → plans by peak and time, and the code of the chosen one.

    ``plan`` counts the plans that fit, the one that gives up least first.
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
        seq_len=Choice("Sequence", LENGTHS, 2048, model_takes),
        num_cards=Choice("Cards", NUM_CARDS, 1),
        gives_up=Choice("May give up", [NOTHING, *GIVES_UP, ANYTHING], ANYTHING),
        plan=Number("Plan", 1, low=1, high=40),
    ) -> View:
        """Every plan as a point, the chosen one framed; it in words, and in code."""
        job = model, card, tokens_per_step, seq_len, num_cards
        found = plans_for(*job)
        if job != self.job:  # hundreds of points are drawn once a job; each plan frames another of them
            title = f"{model} on {num_cards} × {card}, {tokens_per_step:,} tokens a step"
            self.job, self.chart = job, plans_figure(found, title)
        allowed = allowed_by(found, gives_up)
        if plan > max(len(allowed), 1):
            raise ValueError(f"plan={plan} is past the last of {len(allowed)} that fit")
        chosen = allowed[plan - 1] if allowed else None
        self.chart.marked = found.plans.index(chosen) if chosen else None
        words = [f"None of {len(found.plans)} plans fits that gives up {gives_up}.", next_best(found)]
        if chosen:
            words = [f"Plan {plan} of {len(allowed)} that fit: {chosen.name}.", *in_words(chosen, found)]
        rows = {plan.name: plan for plan in allowed[:MAX_ROWS]}
        columns = {
            "time ÷ least": [times_least(plan, found) for plan in rows.values()],
            "gives up": [", ".join(plan.gives_up) or "nothing" for plan in rows.values()],
        }
        return View(
            chart=self.chart, words=words, table=table_of(rows, columns), kept=(found, allowed),
            code=code_of(chosen) if chosen else "", ends={"plan": max(len(allowed), 1)},
        )

    def pick(self, mark: str) -> None:
        """Choose the plan whose point was clicked, if it fits."""
        found, allowed = self.shown.kept
        if found.plans[int(mark)] in allowed:
            self.set(plan=allowed.index(found.plans[int(mark)]) + 1)


def allowed_by(found: PlansFound, gives_up: str) -> tuple[TrainingPlan, ...]:
    """The plans that fit and give up nothing dearer than what is allowed."""
    names = [NOTHING, *GIVES_UP, ANYTHING]
    allowed = set(GIVES_UP[: names.index(gives_up)])
    return tuple(plan for plan in found.fitting if set(plan.gives_up) <= allowed)


def in_words(plan: TrainingPlan, found: PlansFound) -> tuple[str, ...]:
    """Its bytes and time, what it gives up, and whether another does better."""
    gives = f"it gives up {' and '.join(plan.gives_up) or NOTHING}"
    better = next((each for each in found.front if plan.is_beaten_by(each)), None)
    front = f"{better.name} is as good or better" if better else "No plan that fits is as good"
    return (
        verdict(plan.peak, plan.card.name),
        f"A step takes {times_least(plan, found)} × the least time; {gives}.",
        f"{front} in bytes, time and what it gives up.",
    )


def times_least(plan: TrainingPlan, found: PlansFound) -> str:
    """The time of its step ÷ the least of all plans, as text."""
    return f"{plan.seconds / min(each.seconds for each in found.plans):.2f}"


def next_best(found: PlansFound) -> str:
    """What would fit if more were given up."""
    if not found.fitting:
        return "No plan of another kind fits either: fewer tokens in a sequence, or more cards."
    plan = found.fitting[0]
    return f"{plan.name} would fit; it gives up {' and '.join(plan.gives_up) or 'time'}."
