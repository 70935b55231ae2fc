"""The memory explorer: a model, a recipe, the shape of a step; where the bytes are, and what one sequence more adds."""

from dataclasses import replace

from memkit.cards import CARDS
from memkit.fit import NO_CARD, fit_on, peak_in_words
from memkit.formula.estimate import second_step
from memkit.formula.parameters import count_parameters
from memkit.models import PUBLISHED_MODELS, TINY_GPT2, TINY_LLAMA
from memkit.pictures.timeline import drawn_instants, timeline_figure
from memkit.recipes import IMPLEMENTATIONS, OPTIMIZERS, PRECISIONS, OptimizerConfig
from memkit.setup import ATTENTIONS, TrainingSetup
from memkit.strategies import RECOMPUTATIONS
from memkit.units import format_bytes, format_count
from memkit.widgets.explorer import Choice, Explorer, Number, View

LONGEST = 8192
MODELS = {config.name: config for config in (TINY_GPT2, TINY_LLAMA, *PUBLISHED_MODELS.values())}


class MemoryExplorer(Explorer, status=(230,), more=(210, 60)):
    """Model, recipe, optimizer and its implementation, batch, sequence, attention, dropout, recomputation,
    accumulation and card → the step's bytes.

    It opens on chapter 01's question.
    """

    make_setup, models, optimizers = TrainingSetup, MODELS, OPTIMIZERS
    asked_later = ("optimizer", "implementation", "grad_accum_steps", "attention", "dropout")

    def view(
        self,
        model=Choice("Model", MODELS, "Llama-2-7B"),
        card=Choice("Card", [NO_CARD, *CARDS], "H100 SXM"),
        precision=Choice("Recipe", PRECISIONS, "pure bf16"),
        optimizer=Choice(
            "Optimizer", [n for n, record in OPTIMIZERS.items() if record.estimated], "AdamW"
        ),
        implementation=Choice("Implementation", IMPLEMENTATIONS, "foreach"),
        micro_batch_size=Number("Micro-batch", 1, low=1, high=64),
        seq_len=Number("Sequence", 2048, low=128, high=LONGEST, step=128),
        grad_accum_steps=Number("Accumulation", 1, low=1, high=32),
        attention=Choice("Attention", ATTENTIONS, "flash"),
        dropout=Choice("Dropout", [0.0, 0.1], 0.0),
        recomputation=Choice("Recomputation", RECOMPUTATIONS, "none"),
    ) -> View:
        """The step's timeline as bars, with the card as a line."""
        setup = self.make_setup(
            model=self.models[model],
            precision=PRECISIONS[precision],
            micro_batch_size=micro_batch_size,
            seq_len=seq_len,
            grad_accum_steps=grad_accum_steps,
            attention=attention,
            dropout=dropout,
            recomputation=recomputation,
            optimizer=OptimizerConfig(
                record=self.optimizers[optimizer], implementation=implementation
            ),
        )
        timeline = second_step(setup)
        on = None if card == NO_CARD else CARDS[card]
        fit = on and fit_on(on, timeline.peak_bytes)
        count = format_count(count_parameters(setup.model))
        title = f"{setup.model.name}, {count} parameters: one training step"
        chart = timeline_figure(timeline, on and on.memory_bytes, card, title)
        chart.alt += f" The forward ends at {format_bytes(timeline.at('forward').total_bytes)}."
        return View(
            chart=chart,
            words=(peak_in_words(timeline.peak, card),),
            headline=fit.headline if fit else "",
            verdict=fit.verdict if fit else "",
            more=lambda: self.advice(setup),
            table=replace(timeline, instants=tuple(drawn_instants(timeline))).rows(),
            ends={"seq_len": self.longest(setup.model.name)},
        )

    def advice(self, setup: TrainingSetup) -> tuple[str, ...]:
        """What takes longer to find: what one sequence more would add to the peak."""
        larger = replace(setup, micro_batch_size=setup.micro_batch_size + 1)
        added = second_step(larger).peak_bytes - second_step(setup).peak_bytes
        return (f"One more sequence in the micro-batch would add {format_bytes(added)}.",)

    def longest(self, model: str) -> int:
        """Tokens that the sequence's slider offers for a model: learned positions end."""
        config = self.models[model]
        return min(LONGEST, config.max_seq_len) if config.position == "learned" else LONGEST

    def followed(self, changes: dict) -> dict:
        """A model with fewer positions takes the sequence with it, and an optimizer its step, unless one is given."""
        found, state = dict(changes), self.state
        if "model" in changes:
            found.setdefault("seq_len", min(state["seq_len"], self.longest(changes["model"])))
        record = self.optimizers.get(changes.get("optimizer"))
        if record and state["implementation"] not in record.estimated:
            found.setdefault("implementation", record.estimated[0])
        return found
