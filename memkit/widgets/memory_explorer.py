"""The memory explorer: a model, a recipe, the shape of a step; where the bytes are and what would help."""

from dataclasses import replace

from memkit.fitting.advice import NO_CARD, advice_in_words, steady_step, verdict
from memkit.formula.parameters import count_parameters
from memkit.hardware.cards import CARDS
from memkit.pictures.timeline import TimelinePicture, drawn_instants
from memkit.setup.models import PUBLISHED_MODELS, TINY_GPT2, TINY_LLAMA, ModelConfig
from memkit.setup.recipes import OPTIMIZERS, PRECISIONS, OptimizerConfig
from memkit.setup.strategies import RECOMPUTATIONS
from memkit.setup.training import ATTENTIONS, TrainingSetup
from memkit.units import format_count
from memkit.widgets.panel import Number, Panel, View, choice

MODELS = {config.name: config for config in (TINY_GPT2, TINY_LLAMA, *PUBLISHED_MODELS.values())}


class MemoryExplorer(Panel):
    """Model, recipe, optimizer, batch, sequence, attention, recomputation, accumulation and card → the
    step's bytes.

    ``model`` may be a ``ModelConfig`` of the reader's own.
    """

    def __init__(self, model: str | ModelConfig = "GPT-2 small", **values):
        self.models = dict(MODELS)
        if isinstance(model, ModelConfig):
            self.models[model.name] = model
            model = model.name
        self.bars = TimelinePicture()
        setup = {
            "model": choice("Model", list(self.models), "GPT-2 small"),
            "precision": choice("Recipe", list(PRECISIONS), "fp32"),
            "optimizer": choice("Optimizer", list(OPTIMIZERS), "AdamW"),
            "micro_batch_size": Number("Micro-batch", 8, low=1, high=64),
            "seq_len": Number("Sequence", 1024, low=128, high=8192, step=128),
            "grad_accum_steps": Number("Accumulation", 1, low=1, high=32),
            "attention": choice("Attention", list(ATTENTIONS), "flash"),
            "recomputation": choice("Recomputation", list(RECOMPUTATIONS), "none"),
            "card": choice("Card", [NO_CARD, *CARDS], "RTX 4090"),
        }
        super().__init__(setup, **({} if model == "GPT-2 small" else {"model": model}), **values)

    def setup(self, model, precision, optimizer, **shape) -> TrainingSetup:
        """The ``TrainingSetup`` of a state.

        Raises: ValueError: a name that no menu has, or a shape that no setup takes.
        """
        for name, value, allowed in (("model", model, self.models), ("precision", precision, PRECISIONS)):
            if not isinstance(value, str) or value not in allowed:
                raise ValueError(f"{name}={value!r} is not one of {', '.join(allowed)}")
        return TrainingSetup(
            model=self.models[model],
            precision=PRECISIONS[precision],
            optimizer=OptimizerConfig(name=optimizer),
            **shape,
        )

    def view(self, card, **state) -> View:
        """The step's timeline as bars, with the card as a line."""
        if not isinstance(card, str) or card not in (NO_CARD, *CARDS):
            raise ValueError(f"card={card!r} is not one of {', '.join((NO_CARD, *CARDS))}")
        setup = self.setup(**state)
        timeline = steady_step(setup)
        capacity = None if card == NO_CARD else CARDS[card].memory_bytes
        title = (
            f"{setup.model.name}, {format_count(count_parameters(setup.model))} parameters: one training step"
        )
        self.bars.redraw(timeline, capacity_bytes=capacity, card_name=card, title=title)
        return View(
            png=self.bars.png(),
            alt=self.bars.alt,
            words=(verdict(setup, card),),
            more=lambda: advice_in_words(setup),
            table=replace(timeline, instants=tuple(drawn_instants(timeline))).rows(),
        )
