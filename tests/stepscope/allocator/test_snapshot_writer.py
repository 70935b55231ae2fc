"""A predicted snapshot is read by PyTorch's own viewer and replayed by our own reader to the same state."""

import base64
import json
import pickle
import pickletools
import re

import pytest
import torch
from torch.cuda import _memory_viz
from training_loop import training

from memkit.timeline import Event, MemoryTimeline
from memkit.units import MIB, format_bytes
from stepscope.allocator.caching import AllocatorConfig
from stepscope.allocator.replay import replay_trace
from stepscope.allocator.snapshots import (
    frames_of,
    load_snapshot,
    predicted_snapshot,
    read_snapshot,
    write_snapshot,
)
from stepscope.tracing.trace import trace_script

CONFIGS = ("", "expandable_segments:True")


def small_step(width: int = 512):
    """A training step of two layers; the blocks of a width of 1,000 meet the large pool."""

    def build():
        layers = [
            torch.nn.Linear(width, 4 * width),
            torch.nn.GELU(),
            torch.nn.Linear(4 * width, width),
        ]
        model, x = torch.nn.Sequential(*layers).to("cuda"), torch.randn(64, width, device="cuda")
        return training(model, lambda: model(x).square().mean())

    return build


@pytest.fixture(scope="module")
def trace() -> MemoryTimeline:
    return trace_script(small_step(1000))


def test_a_trace_of_small_blocks_replays_to_its_own_bytes_at_every_instant():
    """The small pool hands out exactly what rounding to 512 gives, so replay and trace must agree."""
    tiny = trace_script(small_step(64))
    result = replay_trace(tiny)
    assert len(tiny.instants) > 10
    assert result.timeline.instants == tiny.instants


def test_a_trace_of_large_blocks_counts_at_least_as_much(trace):
    result = replay_trace(trace)
    pairs = list(zip(result.timeline.instants, trace.instants, strict=True))
    assert all(ours.total_bytes >= theirs.total_bytes for ours, theirs in pairs)
    assert any(ours.total_bytes > theirs.total_bytes for ours, theirs in pairs)
    assert all((a.name, a.step, a.micro_batch) == (b.name, b.step, b.micro_batch) for a, b in pairs)


@pytest.mark.parametrize("conf", CONFIGS)
def test_our_own_reader_reads_it_back(trace, conf):
    predicted = replay_trace(
        trace, AllocatorConfig(expandable_segments=bool(conf)), compute_capability=(9, 0)
    )
    run = read_snapshot(predicted_snapshot(predicted))
    peak = predicted.allocator.peak
    assert (run.timeline.peak_bytes, run.timeline.reserved_peak_bytes) == (
        peak["requested"],
        peak["reserved"],
    )
    again = replay_trace(run.timeline, run.config)  # the workspaces are among its events
    assert run.config == predicted.allocator.config and again.allocator.peak == peak
    ours = [[(b.address, b.size, b.state) for b in run] for run in predicted.allocator.segments()]
    assert ours == [
        [(b.address, b.size, b.state) for b in run] for run in again.allocator.segments()
    ]


@pytest.mark.parametrize("conf", CONFIGS)
def test_pytorchs_viewer_reads_it(trace, conf):
    predicted = replay_trace(
        trace, AllocatorConfig(expandable_segments=bool(conf)), compute_capability=(8, 0)
    )
    snapshot = predicted_snapshot(predicted)
    # segsum checks by itself that allocated and free sum to reserved
    summary = _memory_viz.segsum(snapshot)
    assert f"segments: {len(snapshot['segments'])}" in summary
    assert f"total_reserved: {_memory_viz.Bytes(predicted.allocator.reserved_bytes)}" in summary
    text = _memory_viz.trace(snapshot)
    assert text.count(" = ") >= sum(
        entry["action"] == "alloc" for entry in snapshot["device_traces"][0]
    )
    flames = _memory_viz.memory(snapshot, format_flamegraph=lambda lines: lines)
    assert "cuBLAS workspace" in flames and "aten.addmm" in flames
    for page in (_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot)):
        inside = json.loads(re.search(r"local_files = (\[.*\])", page)[1])[0]["base64"]
        assert pickle.loads(base64.b64decode(inside)) == snapshot


def test_it_has_the_keys_that_torch_writes(trace):
    snapshot = predicted_snapshot(replay_trace(trace))
    segment = snapshot["segments"][0]
    keys = {"device", "address", "total_size", "stream", "segment_type", "is_expandable", "blocks"}
    assert keys <= segment.keys()
    assert {"address", "size", "requested_size", "state", "frames"} <= segment["blocks"][0].keys()
    entry = snapshot["device_traces"][0][0]
    assert {"action", "addr", "size", "stream", "time_us", "frames"} <= entry.keys()
    categories = {e.get("category") for e in snapshot["device_traces"][0]}
    assert {"parameter", "gradient", "optimizer_state", "activation", "temporary"} <= categories


def test_an_out_of_memory_is_part_of_it(trace):
    predicted = replay_trace(trace, capacity_bytes=100 * MIB)
    last = predicted_snapshot(predicted)["device_traces"][0][-1]
    assert last["action"] == "oom" and 0 <= last["device_free"] < 100 * MIB
    failed = read_snapshot(predicted_snapshot(predicted)).failed
    assert failed.startswith(f"{format_bytes(last['size'])} asked by training_loop.py:")


def test_a_line_of_the_model_becomes_a_frame():
    event = Event(0, 1, phase="forward", op="aten.mm.default", where="model.py:12 mlp")
    assert frames_of(event) == [
        {"filename": "??", "line": 0, "name": "aten.mm.default"},
        {"filename": "model.py", "line": 12, "name": "mlp"},
        {"filename": "??", "line": 0, "name": "forward"},
    ]
    (frame, _) = frames_of(Event(0, 1, where="backward of model.py:12 mlp"))
    assert frame == {"filename": "model.py", "line": 12, "name": "backward of mlp"}
    unnamed = frames_of(Event(0, 1, where="layers.0.mlp"))
    assert [frame["name"] for frame in unnamed] == ["layers.0.mlp", "unknown phase"]


def test_the_pickle_has_the_protocol_that_the_public_viewer_reads(trace, tmp_path):
    path = write_snapshot(predicted_snapshot(replay_trace(trace)), tmp_path / "a.pickle")
    operation, protocol, _ = next(pickletools.genops(path.read_bytes()))
    assert (operation.name, protocol) == ("PROTO", 4)
    assert json.dumps(load_snapshot(path)) == json.dumps(predicted_snapshot(replay_trace(trace)))
