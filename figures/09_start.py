"""Lesson 09's first figure: where its recipe starts, three moments of a step of Llama-2-7B, and a card of 24 GB."""

from pathlib import Path

from memkit.cards import CARDS
from memkit.formula.estimate import estimate_memory
from memkit.models import LLAMA_2_7B
from stepscope.pictures import choices_figure
from stepscope.setup import Job

step = estimate_memory(Job(model=LLAMA_2_7B, seq_len=2048, micro_batch_size=4)).for_step(2)
peaks = {name: step.at(name) for name in ("forward peak", "backward peak", "optimizer peak")}
choices_figure(
    peaks,
    "Llama-2-7B in float32, 8,192 tokens: one step",
    "dashed: RTX 4090; by formula",
    CARDS["RTX 4090"].memory_bytes,
).write_files(Path(__file__).with_suffix(""))
