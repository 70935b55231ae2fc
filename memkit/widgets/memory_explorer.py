"""The memory explorer: a model, a recipe, the shape of a step; where the bytes are and what would help."""

from dataclasses import replace
from functools import lru_cache

from memkit.formula.estimate import estimate_memory
from memkit.formula.parameters import count_parameters
from memkit.hardware.cards import CARDS
from memkit.pictures.timeline import TimelinePicture, drawn_instants
from memkit.setup.models import PUBLISHED_MODELS, TINY_GPT2, TINY_LLAMA, ModelConfig
from memkit.setup.recipes import OPTIMIZERS, PRECISIONS, PURE_BF16, OptimizerConfig
from memkit.setup.training import ATTENTIONS, MAX_GRAD_ACCUM_STEPS, RECOMPUTATIONS, TrainingSetup
from memkit.timeline import PARTS, MemoryTimeline, where
from memkit.units import format_bytes, format_count
from memkit.widgets.panel import Number, Panel, View, choice

NO_CARD = "no card"
MODELS = {config.name: config for config in (TINY_GPT2, TINY_LLAMA, *PUBLISHED_MODELS.values())}


@lru_cache(maxsize=512)
def steady_step(setup: TrainingSetup) -> MemoryTimeline:
    """The second step's timeline: the optimizer states exist from then on, and each later step is like it."""
    return estimate_memory(setup, steps=2).for_step(2)


def what_ifs(setup: TrainingSetup) -> dict[str, TrainingSetup]:
    """Single changes that keep the batch and the model, each named by what one would do."""
    changes = {}
    if setup.attention == "stored":
        changes["flash attention"] = replace(setup, attention="flash")
    if setup.recomputation != "full":
        changes["full recomputation, which runs each forward twice"] = replace(setup, recomputation="full")
    if setup.recomputation == "none" and setup.attention == "stored":
        changes["selective recomputation"] = replace(setup, recomputation="selective")
    can_accumulate = 2 * setup.grad_accum_steps <= MAX_GRAD_ACCUM_STEPS
    if setup.micro_batch_size % 2 == 0 and can_accumulate:
        changes["half the micro-batch, accumulated twice"] = replace(
            setup, micro_batch_size=setup.micro_batch_size // 2, grad_accum_steps=2 * setup.grad_accum_steps
        )
    if setup.precision.name != PURE_BF16.name:
        changes["pure bf16, which rounds every update"] = replace(setup, precision=PURE_BF16)
    if setup.optimizer.name in ("Adam", "AdamW", "AdamW amsgrad"):
        changes["8-bit AdamW"] = replace(setup, optimizer=replace(setup.optimizer, name="8-bit AdamW"))
    if setup.optimizer.implementation == "foreach":
        changes["optimizer step for-loop, one tensor at a time"] = replace(
            setup, optimizer=replace(setup.optimizer, implementation="for-loop")
        )
    return changes


def what_helps(setup: TrainingSetup) -> list[tuple[str, int]]:
    """The what-ifs that lower the peak, with their peaks in bytes, the most helpful first."""
    peak_bytes = steady_step(setup).peak_bytes
    peaks = [(name, steady_step(changed).peak_bytes) for name, changed in what_ifs(setup).items()]
    return sorted([(name, peak) for name, peak in peaks if peak < peak_bytes], key=lambda pair: pair[1])


def verdict(setup: TrainingSetup, card: str = NO_CARD) -> str:
    """The peak, the part that wins there, and whether it fits on the card."""
    peak = steady_step(setup).peak
    part = max(PARTS, key=lambda name: getattr(peak, name) or 0)
    share = (getattr(peak, part) or 0) / peak.total_bytes
    size = format_bytes(peak.total_bytes)
    wins = f"Peak {size}, at the {where(peak)}; {part.replace('_', ' ')} win with {share:.0%} of it."
    if card == NO_CARD:
        return wins
    room = CARDS[card].memory_bytes - peak.total_bytes
    if room < 0:
        return f"{wins} It does not fit on one {card}: {format_bytes(-room)} too much."
    return f"{wins} It fits on one {card} with {format_bytes(room)} to spare."


def advice(setup: TrainingSetup) -> tuple[str, str]:
    """What would lower the peak most, and what one sequence more would add to it."""
    peak_bytes = steady_step(setup).peak_bytes
    helps = [
        f"{name} → {format_bytes(peak)} (−{1 - peak / peak_bytes:.0%})" for name, peak in what_helps(setup)
    ]
    larger = replace(setup, micro_batch_size=setup.micro_batch_size + 1)
    added = steady_step(larger).peak_bytes - peak_bytes
    return (
        f"What would help most: {'; '.join(helps[:3])}."
        if helps
        else "No change offered here lowers the peak.",
        f"One more sequence in the micro-batch would add {format_bytes(added)}.",
    )


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
            more=lambda: advice(setup),
            table=replace(timeline, instants=tuple(drawn_instants(timeline))).rows(),
        )
