"""Parts inferred from a recording's pattern, against what is known of the run: its parameters, or its trace."""

from collections import Counter

import pytest
import torch
from card_recordings import recording

from memkit.allocator.snapshot_replay import replay_snapshot, replay_trace
from memkit.allocator.snapshot_writer import predicted_snapshot
from memkit.fitting.diagnosis import diagnose_memory
from memkit.fitting.edits import live_at
from memkit.fitting.recorded_parts import with_inferred_parts
from memkit.program.transformer import training_build
from memkit.setup.models import TINY_LLAMA
from memkit.setup.recipes import OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.tracing.trace import trace_memory

MEDIUM = 423_183_360
"""Parameters of the model in the files ``medium``: 24 layers, d 1,024, ff 4,096 SwiGLU, vocabulary 10,000 untied."""
LARGE = 3_406_809_600  # 32 layers, d 2,560, ff 10,240
SMALL = 2 * 10_000 * 512 + 4 * (4 * 512**2 + 3 * 512 * 1344 + 2 * 512) + 512


@pytest.mark.parametrize("name, num_parameters", [
    ("medium_128_training", MEDIUM), ("medium_512_training", MEDIUM), ("cold_memory_ctx128_fullstep", LARGE),
    ("cold_small_train_200", SMALL),
])  # fmt: skip
def test_weights_gradients_and_two_moments_of_recorded_runs(name, num_parameters):
    """After the last step one copy of weights and of gradients stands there, and two of Adam's moments."""
    events = with_inferred_parts(replay_snapshot(recording(name)).timeline.events)
    standing = Counter()
    for event in live_at(events, len(events) - 1):
        standing[event.part] += event.num_bytes
    copy = 4 * num_parameters
    for part, copies in (("weights", 1), ("gradients", 1), ("optimizer_states", 2)):
        assert abs(standing[part] - copies * copy) <= 0.025 * copy, part  # held logits may have a weight's size


@pytest.mark.parametrize("name", ["medium_128_inference", "medium_512_inference", "cold_small_train_200_mixed"])
def test_what_has_no_clear_wave_is_not_told_apart(name):
    """Inference has no gradients; the mixed run keeps autocast's copies of the weights through its optimizer."""
    page = diagnose_memory(recording(name))
    assert page.parts_from == "" and set(page.parts) == {None}
    assert "cannot be told apart" in str(page)


@pytest.mark.parametrize("implementation", ["foreach", "fused", "for-loop"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_trace_written_as_a_recording_gets_its_parts_back(implementation, steps):
    optimizer = OptimizerConfig(implementation=implementation)
    setup = TrainingSetup(model=TINY_LLAMA, seq_len=256, micro_batch_size=4, optimizer=optimizer)
    trace = trace_memory(training_build(setup), steps=steps)
    told = with_inferred_parts(replay_snapshot(predicted_snapshot(replay_trace(trace))).timeline.events)
    known = [event for event in trace.events if event.num_bytes]
    assert [event.num_bytes for event in known] == [event.num_bytes for event in told]
    sizes = Counter()
    for event, other in zip(known, told, strict=True):
        if event.num_bytes > 0:
            sizes[event.part] += event.num_bytes
            sizes[event.part, other.part] += event.num_bytes
    for part in ("weights", "gradients", "optimizer_states"):
        assert sizes[part, part] >= 0.99 * sizes[part]
    assert sizes["activations", "activations"] >= 0.65 * sizes["activations"]  # not the logits'


def test_a_recording_without_a_pattern_says_so():
    events = replay_trace(trace_memory(lambda: lambda: torch.ones(1000, device="cuda").sum())).timeline.events
    assert with_inferred_parts(events) is None
