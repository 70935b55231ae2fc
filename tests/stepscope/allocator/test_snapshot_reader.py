"""Snapshots as they are read: their lines, their devices, and what was broken, cut short or made to harm.

What is read of real recordings is held against their replay in ``test_real_cards.py``.
"""

import contextlib
import gzip
import json
import os
import pickle
import random
from collections import OrderedDict
from pathlib import Path

import pytest
from card_recordings import recording
from mutations import mutated

from memkit.timeline import Instant, MemoryTimeline
from memkit.units import MIB
from stepscope.allocator.film import step_story
from stepscope.allocator.replay import replay_trace
from stepscope.allocator.snapshots import line_of, load_snapshot, predicted_snapshot, read_snapshot

NAME = "cold_small_train_200"

RECORD = {
    "segments": [
        {
            "device": 0,
            "address": 0,
            "total_size": 2 * MIB,
            "stream": 0,
            "segment_type": "small",
            "is_expandable": False,
            "blocks": [
                {"address": 0, "size": 512, "requested_size": 512, "state": "active_allocated"},
                {"address": 512, "size": 2 * MIB - 512, "requested_size": 0, "state": "inactive"},
            ],
        }
    ],
    "device_traces": [
        [
            {
                "action": "alloc",
                "addr": 0,
                "size": 512,
                "frames": [{"filename": "a.py", "name": "f", "line": 1}],
            }
        ]
    ],
    "allocator_settings": {"expandable_segments": False},
}
"""One block that is born: each field stands in it once."""


def without_actions(*actions: str) -> dict:
    """What ``_record_memory_history(skip_actions=...)`` leaves of a recording."""
    snapshot = dict(recording(NAME))
    snapshot["device_traces"] = [
        [e for e in snapshot["device_traces"][0] if e["action"] not in actions]
    ]
    return snapshot


@pytest.mark.parametrize("actions", [("alloc",), ("free_requested",), ("segment_alloc",)])
def test_a_recording_without_births_frees_or_segments_is_refused(actions):
    snapshot = without_actions(*actions)
    # what is there at the end stands, and the cache went back before
    if actions == ("segment_alloc",):
        snapshot["segments"] = [s for s in snapshot["segments"] if s["allocated_size"]]
    with pytest.raises(ValueError, match="cannot be known; record without skip_actions"):
        read_snapshot(snapshot)


def test_each_device_is_read_as_if_alone():
    names = (NAME, "medium_128_inference")
    first, second = map(recording, names)
    segments = [
        {**s, "device": device}
        for device, one in enumerate((first, second))
        for s in one["segments"]
    ]
    traces = [first["device_traces"][0], second["device_traces"][0], []]
    both = {**first, "segments": segments, "device_traces": traces}
    for device, alone in enumerate((first, second)):
        run = read_snapshot(both, device)
        assert run.timeline == read_snapshot(alone).timeline
        assert (run.device, run.other_devices) == (device, (1 - device,))
    assert read_snapshot(both).device == 0  # the busiest
    traces[1] = [*traces[1], {"action": "oom", "device_free": 5, "size": 512 * MIB}]
    failed = read_snapshot(both)
    assert (failed.device, failed.failed) == (1, "512.00 MiB asked by a line not recorded")
    with pytest.raises(ValueError, match="device=2 has no events; there are some of 0, 1"):
        read_snapshot(both, device=2)


def frame(filename: str, line: int, name: str) -> dict:
    return {"filename": filename, "line": line, "name": name}


@pytest.mark.parametrize(
    "frames, line",
    [
        (
            [
                frame("??", 0, "torch::unwind::unwind()"),
                frame("??", 0, "torch::CapturedTraceback::gather(bool, bool, bool)"),
                frame(
                    "??",
                    0,
                    "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
                ),
            ],
            "backward, in autograd's own thread",
        ),
        (
            [
                frame(
                    "/env/lib/python3.12/site-packages/torch/nn/modules/linear.py", 125, "forward"
                ),
                frame("/env/lib/python3.12/site-packages/einops/einops.py", 523, "rearrange"),
                frame("/home/me/course/model.py", 41, "forward"),
                frame("/home/me/course/train.py", 9, "<module>"),
            ],
            "model.py:41 forward",
        ),
        (
            [
                frame("/usr/lib/python3.11/contextlib.py", 81, "inner"),
                frame("C:\\work\\train.py", 3, "step"),
            ],
            "train.py:3 step",
        ),
        (
            [
                frame(
                    "/e/lib/python3.12/site-packages/transformers/models/llama/modeling_llama.py",
                    180,
                    "forward",
                )
            ],
            "modeling_llama.py:180 forward",
        ),
        ([frame("??", 0, "at::empty")], "at::empty"),
        ([], ""),
    ],
)
def test_a_line_is_the_programs_own(frames, line):
    assert line_of(frames) == line


def test_a_snapshot_without_events_says_how_to_record_them():
    with pytest.raises(ValueError, match="_record_memory_history"):
        read_snapshot({"segments": [], "device_traces": [[]]})


# ---------------------------------------------------------------- files that are broken, or made to harm


class Boom:
    """Runs code when it is unpickled by an ordinary reader."""

    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path):
    trap, path = tmp_path / "trap", tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps({**RECORD, "allocator_settings": Boom(trap)}))
    with pytest.raises(
        ValueError, match=r"evil.pickle is not read as a snapshot: it names posix.mkdir"
    ):
        read_snapshot(path)
    assert not trap.exists()
    pickle.loads(path.read_bytes())  # the trap works: an ordinary reader falls into it
    assert trap.exists()


@pytest.mark.parametrize("value", [OrderedDict(a=1), {1}, frozenset({1}), 1j])
def test_what_is_no_plain_data_is_refused(tmp_path, value):
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps({**RECORD, "more": [value]}, protocol=2))
    with pytest.raises(ValueError, match=r"a\.pickle is not read as a snapshot: it names "):
        load_snapshot(path)


BOMBS = {
    "2**40 bytes": b"\x80\x05\x8e" + (2**40).to_bytes(8, "little") + b"x.",
    "2**40 letters": b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b"x.",
    "a frame of 2**50": b"\x80\x04\x95" + (2**50).to_bytes(8, "little") + b"].",
    "deep JSON": b"[" * 200_000,
    "a number of 10,000 digits": b'{"segments": [], "device_traces": [[' + b"9" * 10_000 + b"]]}",
    "nothing": b"",
    "half of JSON": b"{",
    "half of a pickle": b"\x80\x04garbage",
    "a text": b"nonsense",
    "JSON of another shape": b'{"a": 1}',
    "a list": b"[]",
    "half of a gzip": b"\x1f\x8bno",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_is_no_snapshot_is_refused_with_its_name(name, tmp_path):
    path = tmp_path / "odd.bin"
    path.write_bytes(BOMBS[name])
    with pytest.raises(ValueError, match=r"odd\.bin"):
        read_snapshot(path)


def test_json_gzip_and_pickle_hold_the_same_snapshot(tmp_path):
    snapshot = recording(NAME)
    text = json.dumps(snapshot).encode()
    for name, content in (
        ("a.json", text),
        ("a.json.gz", gzip.compress(text)),
        ("a.pickle", pickle.dumps(snapshot)),
    ):
        (tmp_path / name).write_bytes(content)
        assert load_snapshot(tmp_path / name) == snapshot
    with pytest.raises(FileNotFoundError):
        read_snapshot(tmp_path / "none.pickle")


def test_one_odd_field_is_refused_or_leaves_an_answer_that_a_card_can_hold():
    story = MemoryTimeline(
        instants=(Instant(name="end", total_bytes=0),), source="traced", events=step_story()
    )
    small, refused = predicted_snapshot(replay_trace(story)), 0
    whole = read_snapshot(small).timeline
    for seed in range(500):
        try:
            timeline = read_snapshot(mutated(small, seed)).timeline
        except ValueError as error:
            refused += 1
            assert 0 < len(str(error)) < 300
        else:
            assert (
                0
                <= timeline.peak_bytes
                <= timeline.reserved_peak_bytes
                <= 2 * whole.reserved_peak_bytes
            )
    assert 100 < refused < 400


@pytest.mark.parametrize("ending", [".pickle", ".json", ".json.gz"])
def test_broken_bytes_of_a_file(tmp_path, ending):
    content = (
        pickle.dumps(RECORD, protocol=4) if ending == ".pickle" else json.dumps(RECORD).encode()
    )
    content = gzip.compress(content) if ending == ".json.gz" else content
    path = tmp_path / f"broken{ending}"
    for seed in range(200):
        rng = random.Random(seed)
        broken = bytearray(content)
        for _ in range(rng.choice((1, 1, 4))):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        path.write_bytes(broken[: rng.randrange(len(broken))] if rng.random() < 0.2 else broken)
        with contextlib.suppress(ValueError):
            read_snapshot(path)
