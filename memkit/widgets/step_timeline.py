"""The step timeline: walk through the instants of a training step and see which bytes come and which go."""

from typing import ClassVar

from memkit.formula.estimate import estimate_memory
from memkit.pictures.timeline import drawn_instants, timeline_figure
from memkit.setup.models import GPT2_SMALL
from memkit.setup.training import TrainingSetup
from memkit.timeline import PARTS, Instant, MemoryTimeline, where
from memkit.units import as_kind, format_bytes
from memkit.widgets.explorer import Explorer, Number, View

MEANING = {
    "init": "The model and the optimizer exist. There are weights, and nothing else yet.",
    "forward peak": "The forward runs: each layer keeps what its backward will need.",
    "forward": "The loss is known. Every activation is alive, and the backward has not begun.",
    "backward peak": "The backward runs from the last layer to the first: activations are freed, gradients appear.",
    "backward": "The backward is over. Every gradient is in memory, and no activation is.",
    "optimizer peak": "The optimizer computes the update; what it holds only for that is temporary.",
    "optimizer": "The weights are updated. The optimizer keeps its states for the next step.",
    "zero_grad": "The gradients are gone. Weights and optimizer states stay for the next step.",
}
"""What each instant of ``INSTANTS`` is, one sentence or two."""


def changes(before: Instant, after: Instant) -> str:
    """Which parts grew and which shrank between two instants, in words; the larger changes first."""
    moved = []
    for part in PARTS:
        old, new = getattr(before, part), getattr(after, part)
        if old is not None and new is not None and old != new:
            sign = "+" if new > old else "−"
            moved.append((abs(new - old), f"{part.replace('_', ' ')} {sign}{format_bytes(abs(new - old))}"))
    told = ", ".join(words for _, words in sorted(moved, reverse=True))
    return f"Since the instant before: {told}." if told else "Since the instant before no part has changed."


class StepTimeline(Explorer):
    """Walk through a timeline: one you give, or the formula's for a ``TrainingSetup`` (GPT-2 small, if none).

    It opens on the peak.

    Raises: ValueError: ``what`` is neither a ``MemoryTimeline`` nor a ``TrainingSetup``.
    """

    plays: ClassVar = {"instant": 1200}

    def __init__(self, what: MemoryTimeline | TrainingSetup | None = None, title: str = "", **values):
        if what is None:
            what = TrainingSetup(model=GPT2_SMALL, micro_batch_size=4)
        if isinstance(what, TrainingSetup):
            batch = f"{what.micro_batch_size} × {what.seq_len} tokens"
            title = title or f"{what.model.name}, {batch}, {what.precision.name}"
            what = estimate_memory(what, steps=2)
        self.timeline = as_kind("what", what, MemoryTimeline, TrainingSetup)
        self.title = title or "A training step"
        self.instants = drawn_instants(what)
        last = len(self.instants) - 1
        peak = max(range(last + 1), key=lambda number: self.instants[number].total_bytes)
        self.controls = {"instant": Number("Instant", peak, low=0, high=last)}
        super().__init__(**values)

    def view(self, instant: int) -> View:
        """The bars up to this instant in full colour, the later ones pale."""
        number = instant
        if number >= len(self.instants):
            raise ValueError(f"instant={number} is past the last instant, {len(self.instants) - 1}")
        now = self.instants[number]
        chart = timeline_figure(self.timeline, selected=now, title=self.title, fades_later=True)
        steps = "" if now.name == "init" else f", step {now.step}"
        first = f"Instant {number}, {where(now)}{steps}: {format_bytes(now.total_bytes)}."
        if now == self.timeline.peak:
            first += " This is the peak."
        words = [first, *([MEANING[now.name]] if now.name in MEANING else [])]
        if number:
            words.append(changes(self.instants[number - 1], now))
        return View(chart=chart, words=words, table=self.timeline.rows(), picks={"instant": range(len(self.instants))})
