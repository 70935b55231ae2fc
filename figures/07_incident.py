"""Chapter 07: one training step of GPT-2 large, its parts event by event, and the card that it outgrows."""

from pathlib import Path

from memkit import models
from memkit.cards import CARDS
from memkit.pictures.timeline import over_time_figure
from memkit.program.transformer import training_build
from memkit.recipes import BF16_MASTER
from memkit.setup import TrainingSetup
from memkit.tracing.trace import trace_memory

setup = TrainingSetup(
    model=models.GPT2_LARGE,
    precision=BF16_MASTER,
    micro_batch_size=8,
    attention="stored",
    dropout=0.1,
)
card = CARDS["A100 SXM 40 GB"]
over_time_figure(
    {"batch 8, 1,024 tokens": trace_memory(training_build(setup), steps=1)},
    step=1,
    title="GPT-2 large, one step",
    limit=(card.name, card.memory_bytes),
).write_files(Path(__file__).with_suffix(""))
