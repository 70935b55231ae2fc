"""Chapter 10's title figure: the peak of Llama-2-7B, one change after the other, and a card of 24 GB."""

from pathlib import Path

from memkit.book.exercises.chapter_10 import STAIR
from memkit.fitting.batch_plan import peak_of
from memkit.hardware.cards import CARDS
from memkit.pictures.peaks import choices_figure

peaks = {name: peak_of(setup) for name, setup in STAIR.items()}
choices_figure(
    peaks, "Llama-2-7B, 8,192 tokens a step: one change after the other", "dashed: RTX 4090; peak by formula",
    CARDS["RTX 4090"].memory_bytes,
).write_files(Path(__file__).with_suffix(""))  # fmt: skip
