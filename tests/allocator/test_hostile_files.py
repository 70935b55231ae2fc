"""Snapshots broken, cut short or made to harm: each ends in one ``ValueError``, or in an answer near the true one.

The recordings that are broken here are real ones (``card_recordings.py``), once as they are and once with their
plain segments called expandable, and files that the model wrote.
"""

import contextlib
import copy
import gzip
import json
import math
import pickle
import random
import re
import sys
import tracemalloc
from itertools import pairwise

import pytest
from card_recordings import recording

from memkit.allocator.config import AllocatorConfig
from memkit.allocator.heap import Driver
from memkit.allocator.recorded import MAX_CARD_BYTES, recorded_run
from memkit.allocator.snapshot_files import MAX_RATIO, load_snapshot, look_over
from memkit.allocator.snapshot_replay import replay_snapshot
from memkit.units import MIB

ODD = (None, -1, 0, 1, 7, 513, 2**21, 2**40, 2**47, 2**55, 10**30, 1.5, math.nan, math.inf, "", "x", "alloc", "oom",
       "segment_unmap", [], {}, [[]], True, False)
NAME = "medium_128_inference"


def as_expandable(snapshot: dict) -> dict:
    """The same run as if every segment had been mapped page by page."""
    renamed = {"segment_alloc": "segment_map", "segment_free": "segment_unmap"}
    changed = copy.deepcopy(snapshot)
    for segment in changed["segments"]:
        segment["is_expandable"] = True
    for entry in changed["device_traces"][0]:
        entry["action"] = renamed.get(entry["action"], entry["action"])
    changed["allocator_settings"]["expandable_segments"] = True
    return changed


def places(snapshot: dict, rng: random.Random) -> tuple:
    """A random container of the snapshot and a key of it; every kind of field as likely as any other."""
    segment = rng.choice(snapshot["segments"])
    trace = snapshot["device_traces"][0]
    block = rng.choice(segment["blocks"])
    entry = rng.choice(trace)
    record = rng.choice((snapshot, snapshot["allocator_settings"], segment, segment, block, block, *[entry] * 4))
    lists = (snapshot["segments"], segment["blocks"], trace, snapshot["device_traces"])
    return (record, rng.choice(list(record))) if rng.random() < 0.85 else (rng.choice(lists), 0)


def mutated(snapshot: dict, rng: random.Random) -> dict:
    """One field odd, moved, gone or twice there."""
    snapshot = {**snapshot, "allocator_settings": dict(snapshot["allocator_settings"])}
    snapshot["segments"] = [{**s, "blocks": [dict(b) for b in s["blocks"]]} for s in snapshot["segments"]]
    snapshot["device_traces"] = [[dict(e) for e in trace] for trace in snapshot["device_traces"]]
    record, key = places(snapshot, rng)
    if isinstance(record, list):
        index = rng.randrange(len(record))
        change = rng.randrange(4)
        if change == 0:
            del record[index]
        elif change == 1:
            record.insert(index, copy.deepcopy(record[index]))
        elif change == 2:
            record[index] = rng.choice(ODD)
        else:
            other = rng.randrange(len(record))
            record[index], record[other] = record[other], record[index]
    elif rng.random() < 0.15:
        del record[key]
    elif type(record[key]) is int and rng.random() < 0.3:
        record[key] += rng.choice((-1, 1)) * 2 ** rng.randrange(50)
    else:
        record[key] = rng.choice(ODD)
    return snapshot


def check_answer(snapshot: dict, true_peak: int) -> bool:
    """Whether the snapshot is refused; an answer is one that a card can hold, and near the true one."""
    try:
        result = replay_snapshot(snapshot)
    except ValueError as error:
        assert str(error)
        return True
    assert 0.5 * true_peak <= result.peak_allocated_bytes <= result.peak_reserved_bytes <= 2 * true_peak
    assert len(str(result)) < 2_000
    return False


def check_mutations(snapshot: dict, seeds: range) -> None:
    true_peak = replay_snapshot(snapshot).peak_reserved_bytes
    refused = sum(check_answer(mutated(snapshot, random.Random(seed)), true_peak) for seed in seeds)
    assert 0.3 * len(seeds) < refused < len(seeds)


@pytest.mark.parametrize("change", [lambda snapshot: snapshot, as_expandable], ids=["plain", "expandable"])
def test_mutations_of_a_real_recording(change):
    check_mutations(change(recording(NAME)), range(60))


RECORDINGS = ("cold_memory_ctx128_fullstep", "cold_small_train_200", "medium_128_inference", "medium_128_training",
              "medium_512_training")


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("config", [None, AllocatorConfig()], ids=["as recorded", "expandable no more"])
def test_pools_whose_addresses_lie_between_each_other_are_kept_apart(name, config):
    """What is reserved is what is mapped, and never less than what is allocated: no address is counted twice."""
    result = replay_snapshot(as_expandable(recording(name)), config)
    assert all(own <= whole for own, whole in zip(result.allocated, result.reserved, strict=True))
    runs = result.allocator.segments()
    assert sum(block.size for run in runs for block in run) == result.reserved[-1]
    ends = [(run[0].address, run[-1].address + run[-1].size) for run in runs]
    assert all(before[1] <= after[0] for before, after in pairwise(ends))


@pytest.mark.exhaustive
@pytest.mark.parametrize("change", [lambda snapshot: snapshot, as_expandable], ids=["plain", "expandable"])
@pytest.mark.parametrize("name", [NAME, "cold_small_train_200"])
def test_five_hundred_mutations_of_a_real_recording(name, change):
    check_mutations(change(recording(name)), range(1_000, 1_500))


@pytest.mark.parametrize("ending", [".pickle", ".json", ".json.gz"])
def test_broken_bytes_of_a_file(tmp_path, ending):
    small = json.loads(json.dumps(recording(NAME)))
    small["device_traces"][0] = small["device_traces"][0][:300]
    content = pickle.dumps(small, protocol=4) if ending == ".pickle" else json.dumps(small).encode()
    content = gzip.compress(content) if ending == ".json.gz" else content
    path = tmp_path / f"broken{ending}"
    for seed in range(100):
        rng = random.Random(seed)
        broken = bytearray(content)
        for _ in range(rng.choice((1, 1, 4))):
            broken[rng.randrange(len(broken)) if rng.random() < 0.7 else rng.randrange(40)] = rng.randrange(256)
        path.write_bytes(broken[: rng.randrange(len(broken))] if rng.random() < 0.2 else broken)
        try:
            replay_snapshot(path)
        except ValueError as error:
            assert str(error)


def nested_tuples(depth: int) -> tuple:
    value: tuple = ()
    for _ in range(depth):
        value = (value, value)
    return value


BOMBS = {
    "memo of 2 GiB": (b"\x80\x04]r\x00\x00\x00\x08.", "points to 134217728"),
    "memo by text": (b"]p134217728\n.", "points to"),
    "a memo of 2 GiB after a state of None": (b"\x80\x04]Nbr\x00\x00\x00\x08.", "opcode b'b'"),
    "2**40 bytes": (b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"x.", "opcode"),
    "a set": (pickle.dumps({"segments": {1}}, protocol=4), "opcode"),
    "a frozen set": (pickle.dumps({"segments": frozenset({1})}, protocol=4), "opcode"),
    "bytes": (pickle.dumps({"segments": b"1"}, protocol=4), "opcode b'C'"),
    "2**40 letters": (b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b"x.", "announces 1099511627776 B"),
    "a frame of 2**50": (b"\x80\x04\x95" + (2**50).to_bytes(8, "little") + b"].", "points to"),
    "keys that take forever to hash": (pickle.dumps({"a": nested_tuples(64)}, protocol=4), "a tuple of more than"),
    "deep JSON": (b"[" * 200_000, "nested too deeply"),
    "deep pickle": (b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b".", "no events"),
    "much in little": (gzip.compress(b" " * (300 * MIB)), "unpacked it has more than"),
    "a number of 10,000 digits": (b'{"segments": [], "device_traces": [[' + b"9" * 10_000 + b"]]}", "digit"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_made_to_harm_is_refused(name, tmp_path):
    content, words = BOMBS[name]
    path = tmp_path / "bomb"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        replay_snapshot(path)


def nested_lists(depth: int, width: int) -> list:
    """Lists in lists; of ``width`` 2 both are the same list, so that the text doubles with each level."""
    value: list = []
    for _ in range(depth):
        value = [value] * width
    return value


RECORD = {"segments": [{"device": 0, "address": 0, "total_size": 2 * MIB, "stream": 0, "segment_type": "small",
                        "is_expandable": False, "blocks": [
    {"address": 0, "size": 512, "requested_size": 512, "state": "active_allocated"},
    {"address": 512, "size": 2 * MIB - 512, "requested_size": 0, "state": "inactive"}]}],
    "device_traces": [[{"action": "alloc", "addr": 0, "size": 512, "stream": 0, "frames": [
        {"filename": "a.py", "name": "f", "line": 1}]}]], "source": "a test",
    "allocator_settings": {"max_split_size": -1, "expandable_segments": False, "garbage_collection_threshold": 0.0,
                           "roundup_power2_divisions": {"1": 0}}}
"""One block that is born: each field stands in it once."""


def paths_in(value: object, path: tuple = ()) -> list[tuple]:
    """The way to every field, list and dict inside a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in inside for place in ((*path, key), *paths_in(item, (*path, key)))]


@pytest.mark.parametrize("path", paths_in(RECORD), ids=lambda path: ".".join(map(str, path)))
@pytest.mark.parametrize("value", [nested_lists(20_000, 1), nested_lists(18, 2)], ids=["deep", "shared"])
def test_a_field_whose_text_never_ends_costs_nothing(path, value):
    """A 424 B pickle of shared lists once hung the reader, and a deep one ended in a RecursionError."""
    record = copy.deepcopy(RECORD)
    assert replay_snapshot(record).peak_allocated_bytes == 512
    *way, last = path
    place = record
    for key in way:
        place = place[key]
    place[last] = value
    tracemalloc.start()
    with contextlib.suppress(ValueError):
        replay_snapshot(record)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < MIB // 4, f"{most_bytes} B to refuse {sys.getsizeof(value)} B"


def test_real_files_are_far_from_the_bounds():
    content = json.dumps(recording(NAME)).encode()
    assert len(content) < MAX_RATIO * len(gzip.compress(content)) / 2
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        look_over(pickle.dumps(recording(NAME), protocol=protocol))


def test_the_field_is_named():
    snapshot = copy.deepcopy(recording(NAME))
    snapshot["device_traces"][0][5]["size"] = "many"
    with pytest.raises(ValueError, match=r"device_traces\[0\]\[5\]\.size='many' is a str, not a int"):
        replay_snapshot(snapshot)
    snapshot["device_traces"][0][5]["size"] = 2 * MAX_CARD_BYTES
    with pytest.raises(ValueError, match=r"device_traces\[0\]\[5\]\.size=4398046511104 is outside 0 to"):
        replay_snapshot(snapshot)


# ---------------------------------------------------------------- actions that were not recorded


def without_actions(*actions: str) -> dict:
    """What ``_record_memory_history(skip_actions=...)`` leaves of a recording."""
    snapshot = dict(recording("cold_small_train_200"))
    snapshot["device_traces"] = [[e for e in snapshot["device_traces"][0] if e["action"] not in actions]]
    return snapshot


@pytest.mark.parametrize("action", ["free_requested", "free_completed"])
def test_half_of_each_free_suffices(action):
    """On one stream a free is complete when it is requested, so the other half says as much."""
    whole, half = replay_snapshot(without_actions()), replay_snapshot(without_actions(action))
    assert (half.allocator.peak, half.lacks) == (whole.allocator.peak, (action,))
    assert re.search(f"not recorded +{action}", str(half))
    assert whole.lacks == ()


@pytest.mark.parametrize("actions", [("alloc",), ("free_requested", "free_completed")])
def test_a_recording_without_births_or_frees_is_refused(actions):
    with pytest.raises(ValueError, match="cannot be known; record without skip_actions"):
        replay_snapshot(without_actions(*actions))


# ---------------------------------------------------------------- several devices


def two_devices() -> dict:
    """Two runs in one file, the smaller on device 1."""
    first, second = recording("cold_small_train_200"), recording(NAME)
    segments = [{**s, "device": 0} for s in first["segments"]] + [{**s, "device": 1} for s in second["segments"]]
    traces = [first["device_traces"][0], second["device_traces"][0], []]
    return {**first, "segments": segments, "device_traces": traces}


def test_each_device_is_replayed_as_if_alone():
    for device, name in ((0, "cold_small_train_200"), (1, NAME)):
        result, alone = replay_snapshot(two_devices(), device=device), replay_snapshot(recording(name))
        assert result.agreement == alone.agreement and result.allocator.peak == alone.allocator.peak
        assert (result.device, result.other_devices) == (device, (1 - device,))
        assert f"{device}; also recorded: {1 - device}" in str(result)


def test_the_device_that_ran_out_of_memory_comes_first():
    snapshot = two_devices()
    busiest = max((0, 1), key=lambda device: len(snapshot["device_traces"][device]))
    assert recorded_run(snapshot).device == busiest
    other = 1 - busiest
    oom = {"action": "oom", "device_free": 5, "size": 512 * MIB, "stream": 0}
    snapshot["device_traces"][other] = [*snapshot["device_traces"][other], oom]
    assert recorded_run(snapshot).device == other
    with pytest.raises(ValueError, match="device=2 has no events; there are some of 0, 1"):
        replay_snapshot(snapshot, device=2)


# ---------------------------------------------------------------- layouts


def test_layouts_of_older_versions_say_the_same():
    """torch 2.0: a list of segments, blocks without address or requested size; 2.13: pool ids, annotations."""
    snapshot = recording(NAME)
    keys = ("size", "state")
    old = copy.deepcopy(snapshot)
    for segment in old["segments"]:
        del segment["is_expandable"]
        segment["blocks"] = [{key: block[key] for key in keys} for block in segment["blocks"]]
    new = copy.deepcopy(snapshot)
    for segment in new["segments"]:
        segment |= {"segment_pool_id": (0, 0), "frames": []}
    new["device_traces"][0].append({"action": "snapshot", "addr": 0, "size": 0, "time_us": 1, "frames": []})
    new |= {"external_annotations": [], "user_metadata": ""}
    peaks = [replay_snapshot(each).peak_reserved_bytes for each in (snapshot, old, new)]
    assert peaks[0] == peaks[1] == peaks[2]


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    "options",
    [
        {"max_split_bytes": math.nan}, {"max_split_bytes": 32.0 * MIB},
        {"expandable_segments": "False"}, {"roundup_power2_divisions": [0] * 16},
        {"roundup_power2_divisions": (1.5,) * 16}, {"per_process_memory_fraction": math.nan},
        {"per_process_memory_fraction": None},
    ],
)
def test_an_odd_option_is_refused_with_its_name(options):
    with pytest.raises(ValueError, match=next(iter(options)).removesuffix("_bytes")):
        AllocatorConfig(**options)


@pytest.mark.parametrize("value", [math.nan, 1.5, "8", -1, True, [1]])
def test_a_card_of_an_odd_size_is_refused(value):
    for name in ("capacity_bytes", "outside_bytes"):
        with pytest.raises(ValueError, match=name):
            Driver(**{name: value})


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_snapshot(tmp_path / "none.pickle")
