"""Chapter 05's title figure: one step's memory over time, with and without accumulation."""

from dataclasses import replace
from pathlib import Path

from memkit import OptimizerConfig, TrainingSetup, trace_memory, training_build
from memkit.pictures.over_time import over_time_figure
from memkit.program.small_gpt import SMALL_GPT

model = replace(SMALL_GPT, num_layers=4, hidden_size=256, num_heads=8, intermediate_size=1024)
fused = OptimizerConfig(implementation="fused")
one = TrainingSetup(model=model, optimizer=fused, micro_batch_size=4, seq_len=128, device="cpu")
setups = {
    "one micro-batch of 4": one,
    "four micro-batches of 4": replace(one, grad_accum_steps=4),
    "one batch of 16": replace(one, micro_batch_size=16),
}
traces = {name: trace_memory(training_build(setup), device="cpu") for name, setup in setups.items()}
title = "One step, three ways to see sequences"
over_time_figure(traces, title=title).write_files(Path(__file__).with_suffix(""))
