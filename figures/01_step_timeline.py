"""Chapter 01's title figure: two training steps of GPT-2 small, instant by instant, as the formula has them."""

from pathlib import Path

from memkit.formula.estimate import estimate_memory
from memkit.models import GPT2_SMALL
from memkit.pictures.timeline import timeline_figure
from memkit.setup import TrainingSetup

setup = TrainingSetup(model=GPT2_SMALL, micro_batch_size=4, seq_len=1024)
title = "GPT-2 small, 4 × 1024 tokens, fp32, AdamW: two training steps"
timeline_figure(estimate_memory(setup, steps=2), title=title).write_files(
    Path(__file__).with_suffix("")
)
