"""Chapter 00's title figure: one training step of a tiny GPT-2 as formula, traced and measured on this machine."""

from pathlib import Path

from memkit.formula.estimate import estimate_memory
from memkit.measure import measure_memory
from memkit.models import TINY_GPT2
from memkit.pictures.timeline import compare_figure
from memkit.program.transformer import training_build
from memkit.setup import TrainingSetup
from memkit.tracing.trace import trace_memory

setup = TrainingSetup(model=TINY_GPT2, micro_batch_size=2, seq_len=128, device="cpu")
build = training_build(setup)
timelines = (
    estimate_memory(setup, steps=1),
    trace_memory(build, device="cpu", steps=1),
    measure_memory(build, steps=1),
)
title = "One training step of a tiny GPT-2, three ways"
compare_figure(*timelines, title=title).write_files(Path(__file__).with_suffix(""))
