"""Parts inferred from a recording's pattern, against what is known of the run: its parameters, or its trace."""

from collections import Counter

import pytest
import torch
from card_recordings import recording

from memkit.allocator.snapshot_replay import replay_snapshot, replay_trace
from memkit.allocator.snapshot_writer import predicted_snapshot
from memkit.events import Events
from memkit.fitting.diagnosis import diagnose_memory
from memkit.fitting.recorded_parts import with_inferred_parts
from memkit.program.transformer import Transformer, random_batches, training_build
from memkit.setup.models import TINY_LLAMA, llama_config
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
])
def test_weights_gradients_and_two_moments_of_recorded_runs(name, num_parameters):
    """After the last step one copy of weights and of gradients stands there, and two of Adam's moments."""
    events = with_inferred_parts(replay_snapshot(recording(name)).timeline.events)
    standing = Counter()
    for event in Events(events).live_at(len(events) - 1):
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
    pairs = [(event.step, other.step) for event, other in zip(known, told, strict=True) if event.phase == "backward"]
    assert pairs and all(step == found for step, found in pairs)
    sizes = Counter()
    for event, other in zip(known, told, strict=True):
        if event.num_bytes > 0:
            sizes[event.part] += event.num_bytes
            sizes[event.part, other.part] += event.num_bytes
    for part in ("weights", "gradients", "optimizer_states"):
        assert sizes[part, part] >= 0.99 * sizes[part]
    assert sizes["activations", "activations"] >= 0.65 * sizes["activations"]  # not the logits'


@pytest.mark.parametrize("seq_len", [64, 256])
def test_logits_that_the_program_holds_may_be_as_large_as_the_head(seq_len):
    """4 × 256 tokens in a model of width 1,024: the logits that the loop's variable holds have the head's size."""
    model = llama_config("medium", 6, 1024, 16, 16, 4096, 10000, 1024)
    setup = TrainingSetup(model=model, seq_len=seq_len, micro_batch_size=4, attention="stored", uses_fused_norm=False)

    def build():
        built, variables, batches = Transformer(setup), {}, random_batches(model, setup)
        built.head.register_forward_hook(lambda module, inputs, logits: variables.update(logits=logits))
        optimizer = torch.optim.AdamW(built.parameters(), foreach=False)

        def step():
            optimizer.zero_grad()
            built(*batches()).backward()
            optimizer.step()

        return step

    replay = replay_trace(trace_memory(build, steps=3))
    snapshot, events = predicted_snapshot(replay), replay.timeline.events
    causes = [events[cause] for cause in replay.causes]
    recorded = zip(snapshot["device_traces"][0], causes, strict=True)
    later = [(entry, event) for entry, event in recorded if event.step > 1]  # started warm
    told = with_inferred_parts(replay_snapshot(snapshot | {"device_traces": [[e for e, _ in later]]}).timeline.events)
    known = [event for entry, event in later if entry["action"] == "alloc"]
    told = [event for event in told if event.num_bytes > 0][-len(known) :]
    sizes = Counter()
    for event, other in zip(known, told, strict=True):
        sizes[event.part] += event.num_bytes
        sizes[event.part, other.part] += event.num_bytes
    for part in ("gradients", "activations"):
        assert sizes[part, part] >= 0.9 * sizes[part]


def test_a_recording_without_a_pattern_says_so():
    events = replay_trace(trace_memory(lambda: lambda: torch.ones(1000, device="cuda").sum())).timeline.events
    assert with_inferred_parts(events) is None


def test_a_peak_that_lies_in_no_step_that_was_found_is_not_told_apart():
    """Backwards through four pieces of a text, each with an update, look like one step and much that follows it."""

    def build():
        cell, head = torch.nn.LSTMCell(64, 256, device="cuda"), torch.nn.Linear(256, 80, device="cuda")
        optimizer = torch.optim.Adagrad([*cell.parameters(), *head.parameters()])

        def step():
            h = c = torch.zeros(16, 256, device="cuda")
            for _ in range(4):
                h, c, loss = h.detach(), c.detach(), 0
                for _ in range(10):
                    h, c = cell(torch.randn(16, 64, device="cuda"), (h, c))
                    loss = loss + head(h).logsumexp(1).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        return step

    trace = trace_memory(build, steps=4)
    told = with_inferred_parts(replay_snapshot(predicted_snapshot(replay_trace(trace))).timeline.events)
    assert trace.peak.name != "zero_grad"
    assert told is None or told[Events(told).peak()].phase == trace.events[trace.events.peak()].phase
