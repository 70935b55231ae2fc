"""Chapter 07: one training step of GPT-2 large, every allocation a band, and the card that it outgrows."""

from pathlib import Path

from memkit.hardware.cards import CARDS
from memkit.pictures.allocator import allocations_figure
from memkit.pictures.picture import OKABE_ITO
from memkit.program.transformer import training_build
from memkit.setup import models
from memkit.setup.recipes import AUTOCAST_BF16
from memkit.setup.training import TrainingSetup
from memkit.tracing.trace import trace_memory
from memkit.units import format_bytes

setup = TrainingSetup(
    model=models.GPT2_LARGE, precision=AUTOCAST_BF16, micro_batch_size=8, attention="stored", dropout=0.1
)
card = CARDS["A100 SXM 40 GB"]
picture = allocations_figure(
    trace_memory(training_build(setup), steps=1),
    max_bands=250,
    title="GPT-2 large, one step, batch 8, 1,024 tokens",
)
plot = picture.axes[0]
plot.axhline(card.memory_bytes, color=OKABE_ITO[1], linewidth=2, linestyle=(0, (3, 1.5)))
plot.text(
    plot.get_xlim()[1],
    card.memory_bytes * 1.01,
    f"{card.name}: {format_bytes(card.memory_bytes, 1)}",
    fontsize=9,
    ha="right",
    va="bottom",
)
picture.write_files(Path(__file__).with_suffix(""))
