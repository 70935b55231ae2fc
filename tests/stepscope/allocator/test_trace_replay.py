"""A traced step played through the allocator: its instants, its failure and the workspaces of a card."""

import pytest
import torch

from memkit.timeline import Event, Instant, MemoryTimeline
from memkit.units import MIB
from stepscope.allocator.replay import replay_trace
from stepscope.tracing.trace import trace_script


def test_a_trace_replays_with_its_parts_and_instants():
    events = (
        Event(0, 3 * MIB, "weights", "init"),
        Event(1, 19 * MIB, "activations", "forward", op="aten.mm.default", where="model.py:3"),
        Event(2, 5 * MIB, "temporary", "forward"),
        Event(2, -5 * MIB, "temporary", "forward"),
        Event(3, 100, "gradients", "backward", op="aten.mm.default"),
        Event(1, -19 * MIB, "activations", "backward"),
    )
    names = ("init", "forward peak", "forward", "backward peak", "backward", "zero_grad")
    instants = tuple(Instant(name=name, total_bytes=0) for name in names)
    trace = MemoryTimeline(instants=instants, source="traced", events=events)
    result = replay_trace(trace)
    assert [instant.name for instant in result.timeline.instants] == list(names)
    forward_peak = result.timeline.at("forward peak")
    parts = {part: size // MIB for part, size in forward_peak.parts.items() if size}
    assert parts == {"weights": 3, "activations": 20, "temporary": 5}
    assert result.timeline.at("forward").total_bytes == 23 * MIB
    assert result.timeline.at("backward").parts["gradients"] == 512
    assert result.timeline.reserved_peak_bytes == (20 + 20 + 2) * MIB
    assert result.peak_event == 2
    assert result.fragmentation == 1 - 28 / 40

    on_a_card = replay_trace(trace, compute_capability=(9, 0))
    assert on_a_card.timeline.at("forward").parts["temporary"] == 32 * MIB
    assert on_a_card.timeline.at("backward").parts["temporary"] == 64 * MIB

    failed = replay_trace(trace, capacity_bytes=30 * MIB)
    assert failed.failure.event == 1 and failed.failure.where == "model.py:3"
    assert failed.timeline.instants[-1].name == "out of memory in forward"


def test_two_steps_of_inference_have_the_same_peak():
    """10 Mi numbers of weights and 8 Mi of output: 40 MiB and, while a step runs, 32 more, each step."""

    def build():
        weight = torch.empty(10 * MIB)

        def step():
            torch.mul(weight[: 8 * MIB], 2)

        return step

    replayed = replay_trace(trace_script(build, steps=2)).timeline
    for step in (1, 2):
        assert replayed.for_step(step).peak_bytes == (40 + 32) * MIB
        assert replayed.at("forward", step=step).total_bytes == 40 * MIB


def test_a_trace_without_events_is_refused():
    with pytest.raises(ValueError, match="this formula timeline carries no events"):
        replay_trace(
            MemoryTimeline(instants=(Instant(name="init", total_bytes=1),), source="formula")
        )
