"""Chapter 05's title figure: memory over time of a step on 4 sequences and of one on 16; accumulation is left out."""

from dataclasses import replace
from pathlib import Path

from book.small_gpt import SMALL_GPT
from memkit import OptimizerConfig, TrainingSetup, trace_memory, training_build
from memkit.pictures.timeline import over_time_figure

model = replace(
    SMALL_GPT, num_layers=4, hidden_size=256, num_heads=8, num_kv_heads=8, intermediate_size=1024
)
fused = OptimizerConfig(implementation="fused")
one = TrainingSetup(model=model, optimizer=fused, micro_batch_size=4, seq_len=128, device="cpu")
setups = {
    "one batch of 4 sequences": one,
    "one batch of 16 sequences": replace(one, micro_batch_size=16),
}
traces = {name: trace_memory(training_build(setup), device="cpu") for name, setup in setups.items()}
title = "One training step on 4 sequences, and one on 16"
over_time_figure(traces, title=title).write_files(Path(__file__).with_suffix(""))
