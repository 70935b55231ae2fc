"""The state explorer (chapter 08): the peak under each optimizer, stepping here or there."""

from dataclasses import replace

from memkit.fitting.plans import TrainingPlan, plan_of
from memkit.formula.offload import link_bytes
from memkit.formula.states import state_bytes
from memkit.hardware.cards import CARDS
from memkit.setup.adapters import AdapterConfig
from memkit.setup.models import PUBLISHED_MODELS
from memkit.setup.optimizers import IMPLEMENTATIONS, OPTIMIZERS, Place
from memkit.setup.recipes import PRECISIONS, OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.units import format_bytes
from memkit.widgets.explorer import Choice, Explorer, Number, View
from memkit.widgets.plan_bars import plans_view

SHOWN = tuple(name for name, record in OPTIMIZERS.items() if record.is_shown)
LABELS = {name: name.removeprefix("torchao ").replace(" ", "\n") for name in SHOWN}
OTHERWISE = {
    "implementation": "no formula for such a step, shown with its default",
    "place": "no formula for a step in the backward, shown after it",
}
"""What an optimizer may not offer, and how it is shown then."""
TRAINED = {"all weights": None, "LoRA, rank 16, attention": 16, "LoRA, rank 64, attention": 64}
MODELS = [name for name, model in PUBLISHED_MODELS.items() if not model.fuses_qkv]


class StateExplorer(Explorer):
    """Model, precision, optimizer, its implementation and place, trained share, batch and card → peaks."""

    def view(
        self,
        model=Choice("Model", MODELS, "Llama-2-7B"),
        precision=Choice("Precision", PRECISIONS, "pure bf16"),
        optimizer=Choice("Optimizer", SHOWN, "AdamW"),
        implementation=Choice("Its step", IMPLEMENTATIONS, "foreach"),
        place=Choice("It steps", tuple(Place), Place.AFTER_BACKWARD),
        trained=Choice("Trained", TRAINED, "all weights"),
        micro_batch_size=Number("Micro-batch", 1, low=1, high=32),
        seq_len=Choice("Sequence", [512, 1024, 2048, 4096], 512),
        card=Choice("Card", CARDS, "A100 SXM 80 GB"),
    ) -> View:
        """Each optimizer's peak as a bar; the words are about the chosen one."""
        rank = TRAINED[trained]
        asked = TrainingSetup(
            model=PUBLISHED_MODELS[model], precision=PRECISIONS[precision], recomputation="full",
            micro_batch_size=micro_batch_size, seq_len=seq_len, adapter=AdapterConfig(rank=rank) if rank else None,
            optimizer=OptimizerConfig(name=optimizer, implementation=implementation, place=place),
        )
        plans = {LABELS[name]: plan_of(with_optimizer(asked, name), CARDS[card]) for name in SHOWN}
        own = LABELS[optimizer]
        title = f"{model}, {precision}, {trained}: the peak under each optimizer"
        subtitle = f"{micro_batch_size} × {seq_len} tokens, full recomputation; steps {place}"
        states = [format_bytes(plan.peak.optimizer_states) for plan in plans.values()]
        return plans_view(
            plans, title, subtitle, (*states_in_words(plans[own]), *otherwise(asked, plans)), chosen=own,
            columns={"states on the card": states}, picks={"optimizer": SHOWN},
        )


def with_optimizer(setup: TrainingSetup, name: str) -> TrainingSetup:
    """The setup with another optimizer; where the formula does not know its step that way, with the first it knows."""
    record, asked = OPTIMIZERS[name], setup.optimizer
    implementation = asked.implementation if asked.implementation in record.estimated else record.estimated[0]
    is_refused = asked.place == Place.IN_BACKWARD and not record.steps_in_backward
    place = Place.AFTER_BACKWARD if is_refused else asked.place
    return replace(setup, optimizer=OptimizerConfig(name=name, implementation=implementation, place=place))


def otherwise(asked: TrainingSetup, plans: dict[str, TrainingPlan]) -> list[str]:
    """Which bars step otherwise than asked for."""
    words = []
    for choice, why in OTHERWISE.items():
        wanted, optimizers = getattr(asked.optimizer, choice), [plan.setup.optimizer for plan in plans.values()]
        names = [each.name for each in optimizers if getattr(each, choice) != wanted]
        if names:
            words.append(f"{', '.join(names)}: {why}.")
    return words


def states_in_words(plan: TrainingPlan) -> list[str]:
    """What the states take, and what an optimizer on the host moves."""
    setup = plan.setup
    states = state_bytes(setup.model, setup.precision, setup.optimizer, setup.adapter)["optimizer_states"]
    paged = "; torch does not count the paged ones, there or on the host" if setup.optimizer.record.is_paged else ""
    words = [f"Its states on the card: {format_bytes(states)}{paged}."]
    moved = link_bytes(setup)
    if setup.optimizer.is_on_host and moved:
        each = max(moved.values())
        words.append(
            f"A step moves {format_bytes(each)} each way over the link, {each / plan.card.pcie_bytes_per_s:.2f} s by "
            f"its data sheet; the host holds {format_bytes(plan.host_bytes)}."
        )
    return words
