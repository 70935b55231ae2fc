"""The memory explorer: a model, a recipe, the shape of a step; where the bytes are and what would help."""

from dataclasses import replace

from memkit.fitting.advice import NO_CARD, advice_in_words, verdict
from memkit.fitting.step import second_step
from memkit.formula.parameters import count_parameters
from memkit.hardware.cards import CARDS
from memkit.pictures.timeline import drawn_instants, timeline_figure
from memkit.setup.models import PUBLISHED_MODELS, TINY_GPT2, TINY_LLAMA, ModelConfig
from memkit.setup.recipes import IMPLEMENTATIONS, OPTIMIZERS, PRECISIONS, OptimizerConfig
from memkit.setup.strategies import RECOMPUTATIONS
from memkit.setup.training import ATTENTIONS, TrainingSetup
from memkit.units import format_bytes, format_count
from memkit.widgets.explorer import Choice, Explorer, Number, View

OPENING, LONGEST = "Llama-2-7B", 8192
MODELS = {config.name: config for config in (TINY_GPT2, TINY_LLAMA, *PUBLISHED_MODELS.values())}


class MemoryExplorer(Explorer):
    """Model, recipe, optimizer and its implementation, batch, sequence, attention, dropout, recomputation,
    accumulation and card → the step's bytes.

    It opens on chapter 01's question. ``model`` may be a ``ModelConfig`` of the reader's own.
    """

    def __init__(self, model: str | ModelConfig = OPENING, **values):
        self.models = dict(MODELS)
        if isinstance(model, ModelConfig):
            self.models[model.name] = model
            model = model.name
        self.controls = {
            "model": Choice("Model", list(self.models), OPENING),
            "precision": Choice("Recipe", list(PRECISIONS), "pure bf16"),
            "optimizer": Choice("Optimizer", [n for n, record in OPTIMIZERS.items() if record.estimated], "AdamW"),
            "implementation": Choice("Its step", list(IMPLEMENTATIONS), "foreach"),
            "micro_batch_size": Number("Micro-batch", 1, low=1, high=64),
            "seq_len": Number("Sequence", 2048, low=128, high=LONGEST, step=128),
            "grad_accum_steps": Number("Accumulation", 1, low=1, high=32),
            "attention": Choice("Attention", list(ATTENTIONS), "flash"),
            "dropout": Choice("Dropout", [0.0, 0.1], 0.0),
            "recomputation": Choice("Recomputation", list(RECOMPUTATIONS), "none"),
            "card": Choice("Card", [NO_CARD, *CARDS], "H100 SXM"),
        }
        super().__init__(**({} if model == OPENING else {"model": model}), **values)

    def longest(self, model: str) -> int:
        """Tokens that the sequence's slider offers for a model: learned positions end."""
        config = self.models[model]
        return min(LONGEST, config.max_seq_len) if config.position == "learned" else LONGEST

    def followed(self, changes: dict) -> dict:
        """A model with fewer positions takes the sequence with it, and an optimizer its step, unless one is given."""
        if "model" in changes and "seq_len" not in changes:
            changes = {**changes, "seq_len": min(self.state["seq_len"], self.longest(changes["model"]))}
        if "optimizer" in changes and "implementation" not in changes:
            known = OPTIMIZERS[changes["optimizer"]].estimated if changes["optimizer"] in OPTIMIZERS else ()
            if known and self.state["implementation"] not in known:
                changes = {**changes, "implementation": known[0]}
        return changes

    def setup(self, model, precision, optimizer, implementation, **shape) -> TrainingSetup:
        """The ``TrainingSetup`` of a state. Raises: ValueError: a shape that no setup takes."""
        return TrainingSetup(
            model=self.models[model],
            precision=PRECISIONS[precision],
            optimizer=OptimizerConfig(name=optimizer, implementation=implementation),
            **shape,
        )

    def view(self, card, **state) -> View:
        """The step's timeline as bars, with the card as a line."""
        setup = self.setup(**state)
        timeline = second_step(setup)
        capacity = None if card == NO_CARD else CARDS[card].memory_bytes
        title = f"{setup.model.name}, {format_count(count_parameters(setup.model))} parameters: one training step"
        now, before = self.shown.kept if self.shown else (None, None)
        if timeline is not now:
            now, before = timeline, now
        chart = timeline_figure(timeline, capacity_bytes=capacity, card_name=card, title=title, before=before)
        chart.alt += f" The forward ends at {format_bytes(timeline.at('forward').total_bytes)}."
        return View(
            chart=chart,
            words=(verdict(timeline.peak, card),),
            more=lambda: advice_in_words(setup),
            table=replace(timeline, instants=tuple(drawn_instants(timeline))).rows(),
            ends={"seq_len": self.longest(setup.model.name)},
            kept=(now, before),
        )
