"""Predicting a 0.42 B model's training on a card, from its code to the peaks, against the time promised."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from dev.bench import Row
from stepscope.allocator.replay import replay_trace
from stepscope.tracing.trace import trace_script

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from cs336_model import MEDIUM, training

SECONDS_LIMIT, SECONDS_FOR_EVENTS, EVENTS = 15.0, 1.0, 20_000
ROUNDS = 2


def run() -> list[Row]:
    """Two steps each: float32 at sequence 128, and bf16 autocast at sequence 512, batch 4."""
    torch.set_num_threads(2)
    rows = []
    for seq_len, is_autocast in ((128, False), (512, True)):
        program = training(replace(MEDIUM, seq_len=seq_len), is_autocast)
        spent = []
        for _ in range(ROUNDS):
            start = time.process_time()
            timeline = trace_script(program, steps=2)
            traced = time.process_time()
            result = replay_trace(timeline, compute_capability=(8, 0))
            spent.append((time.process_time() - start, time.process_time() - traced))
        total, replaying = min(spent)
        num_events = len(timeline.events)
        rows.append(
            Row(
                name=f"0.42 B, sequence {seq_len}: seconds / 15",
                ratio=total / SECONDS_LIMIT,
                at_most=1,
                detail=f"{total:.1f} s for {num_events:,} events, {replaying:.1f} s of it in the allocator; "
                f"peak {result.peak_allocated_bytes:,} B allocated, {result.peak_reserved_bytes:,} B reserved",
            )
        )
        rows.append(
            Row(
                name=f"0.42 B, sequence {seq_len}: seconds for 20,000 events",
                ratio=replaying * EVENTS / num_events / SECONDS_FOR_EVENTS,
                at_most=1,
                detail=f"{replaying:.2f} s for {num_events:,} events",
            )
        )
    return rows
