"""The state explorer: the peak of one step under each optimizer, by where it steps and what is trained."""

from dataclasses import replace
from typing import ClassVar

from memkit.fitting.advice import steady_step
from memkit.fitting.room import fit_on
from memkit.formula.offload import host_bytes, link_bytes
from memkit.formula.states import state_bytes
from memkit.hardware.cards import CARDS
from memkit.pictures.peaks import choices_figure
from memkit.setup.adapters import AdapterConfig
from memkit.setup.models import PUBLISHED_MODELS
from memkit.setup.optimizers import IMPLEMENTATIONS, OPTIMIZERS
from memkit.setup.recipes import PLACES, PRECISIONS, OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.timeline import Instant, where
from memkit.units import format_bytes
from memkit.widgets.explorer import Choice, Explorer, Number, View

SHOWN = {
    "SGD": "SGD",
    "SGD momentum": "SGD\nmomentum",
    "AdamW": "AdamW",
    "Adafactor": "Adafactor",
    "Lion": "Lion",
    "Muon": "Muon",
    "8-bit AdamW": "8-bit\nAdamW",
    "torchao 4-bit AdamW": "4-bit\nAdamW",
    "paged AdamW": "paged\nAdamW",
}
TRAINED = {"all weights": None, "LoRA, rank 16, attention": 16, "LoRA, rank 64, attention": 64}
MODELS = [name for name, model in PUBLISHED_MODELS.items() if not model.fuses_qkv]


class StateExplorer(Explorer):
    """Model, precision, optimizer, its implementation and place, trained share, batch and card → peaks."""

    controls: ClassVar = {
        "model": Choice("Model", MODELS, "Llama-2-7B"),
        "precision": Choice("Precision", list(PRECISIONS), "pure bf16"),
        "optimizer": Choice("Optimizer", list(SHOWN), "AdamW"),
        "implementation": Choice("Its step", list(IMPLEMENTATIONS), "foreach"),
        "place": Choice("It steps", list(PLACES), PLACES[0]),
        "trained": Choice("Trained", list(TRAINED), "all weights"),
        "micro_batch_size": Number("Micro-batch", 1, low=1, high=32),
        "seq_len": Choice("Sequence", [512, 1024, 2048, 4096], 512),
        "card": Choice("Card", list(CARDS), "A100 SXM 80 GB"),
    }

    def view(
        self,
        model: str,
        precision: str,
        optimizer: str,
        implementation: str,
        place: str,
        trained: str,
        micro_batch_size: int,
        seq_len: int,
        card: str,
    ) -> View:
        """Each optimizer's peak as a bar; the words are about the chosen one."""
        rank = TRAINED[trained]
        setup = TrainingSetup(
            model=PUBLISHED_MODELS[model],
            precision=PRECISIONS[precision],
            micro_batch_size=micro_batch_size,
            seq_len=seq_len,
            recomputation="full",
            adapter=AdapterConfig(rank=rank) if rank else None,
            optimizer=OptimizerConfig(name=optimizer, implementation=implementation, place=place),
        )
        setups = {name: with_optimizer(setup, name) for name in SHOWN}
        peaks = {name: steady_step(one).peak for name, one in setups.items()}
        capacity = CARDS[card].memory_bytes
        title = f"{model}, {precision}, {trained}: the peak under each optimizer"
        subtitle = f"{micro_batch_size} × {seq_len} tokens, full recomputation; steps {place}; dashed: {card}"
        bars = {SHOWN[name]: peak for name, peak in peaks.items()}
        chart = choices_figure(bars, title, subtitle, capacity, list(SHOWN).index(optimizer))
        table = [("optimizer", "peak", "at", "states on the card")]
        for name, peak in peaks.items():
            states = format_bytes(peak.optimizer_states)
            table.append((name, format_bytes(peak.total_bytes), where(peak), states))
        words = in_words(setups[optimizer], peaks[optimizer], CARDS[card]) + otherwise(setup, setups)
        return View(chart=chart, words=words, table=tuple(table))

    def pick(self, mark: str) -> None:
        """Choose the optimizer whose bar was clicked."""
        self.set(optimizer=list(SHOWN)[int(mark)])


def with_optimizer(setup: TrainingSetup, name: str) -> TrainingSetup:
    """The setup with another optimizer; one that has no fused kernel steps in torch's ``foreach`` way."""
    implementation, place = setup.optimizer.implementation, setup.optimizer.place
    if implementation not in OPTIMIZERS[name].implementations:
        implementation = "foreach"
    if not OPTIMIZERS[name].steps_in_backward and place == "in backward":
        place = "after backward"
    return replace(setup, optimizer=OptimizerConfig(name=name, implementation=implementation, place=place))


def otherwise(asked: TrainingSetup, setups: dict[str, TrainingSetup]) -> tuple[str, ...]:
    """Which bars step otherwise than asked for, in words."""
    why = {
        "implementation": "no fused kernel, shown with foreach",
        "place": "no formula for a step in the backward, shown after it",
    }
    return tuple(
        f"{', '.join(names)}: {words}."
        for what, words in why.items()
        if (
            names := [
                n
                for n, one in setups.items()
                if getattr(one.optimizer, what) != getattr(asked.optimizer, what)
            ]
        )
    )


def in_words(setup: TrainingSetup, peak: Instant, card) -> tuple[str, ...]:
    """Which part is the largest, what the states cost a parameter, and what an optimizer on the host moves."""
    optimizer = setup.optimizer
    parts = {part.replace("_", " "): size for part, size in peak.parts.items()}
    largest = max(parts, key=parts.get)
    states = state_bytes(setup.model, setup.precision, optimizer, setup.adapter)
    fits = f"{fit_on(card, peak.total_bytes).verdict} on the {card.name}"
    own = f"{optimizer.name}: peak {format_bytes(peak.total_bytes)} at the {where(peak)}, which {fits}"
    own = f"{own}; the largest part is {largest}, {format_bytes(parts[largest])}."
    paged = "; torch does not count the paged ones, there or on the host" * optimizer.name.startswith("paged")
    words = [own, f"Its states on the card: {format_bytes(states['optimizer_states'])}{paged}."]
    moved = link_bytes(setup)
    if optimizer.is_on_host and moved:
        each = max(moved.values())
        words.append(
            f"A step moves {format_bytes(each)} each way over the link, {each / card.pcie_bytes_per_s:.2f} s by its "
            f"data sheet; the host holds {format_bytes(sum(host_bytes(setup).values()))}."
        )
    return tuple(words)
