"""Chapter 12's title figure: what 70 billion parameters keep for training and for answering, and one card of 80 GB."""

from pathlib import Path

from memkit.cards import CARDS
from memkit.formula.states import bytes_per_parameter
from memkit.pictures.timeline import choices_figure
from memkit.recipes import ADAMW, BF16_MASTER
from memkit.timeline import Instant

COUNT = 70 * 10**9
kept = {name: round(COUNT * size) for name, size in bytes_per_parameter(BF16_MASTER, ADAMW).items()}
weights, gradients = kept.pop("weight"), kept.pop("gradient")
nothing = {"activations": 0, "temporary": 0}
states = sum(kept.values())
training = Instant(
    name="training", weights=weights, gradients=gradients, optimizer_states=states, **nothing
)
answering = Instant(name="answering", weights=weights, gradients=0, optimizer_states=0, **nothing)
choices_figure(
    {"to train": training, "to answer": answering},
    "70 billion parameters: what is kept",
    "dashed: one H100 of 80 GB; activations and cache not counted",
    CARDS["H100 SXM"].memory_bytes,
).write_files(Path(__file__).with_suffix(""))
