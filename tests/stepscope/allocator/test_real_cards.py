"""The book's allocator against real cards: every address, every request to the driver, the peaks; and what is read.

This is the proof of the model that replays traces. The recordings are not part of the book; they are looked for in
``$MEMKIT_SNAPSHOTS`` or ``../shared/snapshots``.
"""

from itertools import accumulate

import pytest
from card_recordings import recording
from real_cards import replayed

from memkit.fit import workspace_bytes
from memkit.units import MIB
from stepscope.allocator.snapshots import read_snapshot

RECORDINGS = (
    "medium_128_training",
    "medium_128_inference",
    "medium_512_training",
    "medium_512_inference",
    "cold_memory_ctx128_fullstep",
    "cold_small_train_200",
    "cold_small_train_200_mixed",
)


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_decision_is_the_card_s(name):
    snapshot = recording(name)
    run = replayed(snapshot)
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    assert run.num_same_address == run.num_allocations == actions.count("alloc") > 1000
    assert (run.driver.num_alike, run.driver.num_other) == (actions.count("segment_alloc"), 0)
    assert not any(run.returned.values())
    runs = run.allocator.segments()  # at the end, block by block
    ours = [(block.address, block.size, block.state) for blocks in runs for block in blocks]
    theirs = [
        (b["address"], b["size"], b["state"]) for s in snapshot["segments"] for b in s["blocks"]
    ]
    assert ours == sorted(theirs)
    assert [sum(block.size for block in blocks) for blocks in runs] == [
        s["total_size"] for s in snapshot["segments"]
    ]


def test_the_comparison_can_fail():
    """Where 33 blocks of ``medium_512_training`` end, only later allocations tell.

    They stood before the recording and were freed during it, so their size was not recorded, and a hole lies behind
    each. Taken without rest, the model goes wrong at the 179th event and finds 6,690 of 7,591 addresses.
    """
    run = replayed(recording("medium_512_training"), looks_ahead=False)
    assert (run.num_unsettled, run.first_other_event) == (33, 179)
    assert (run.num_same_address, run.num_allocations) == (6690, 7591)
    assert replayed(recording("medium_512_training")).num_unsettled == 0


def test_the_peak_of_a_run_that_was_measured():
    assert replayed(recording("medium_128_training")).allocator.peak["allocated"] == 7_026_606_592


def test_allocated_exceeds_what_rounding_to_512_explains():
    """At sequence 128 the large run counts 263 MiB more than was asked for: blocks reused with an unsplit rest."""
    peak = replayed(recording("cold_memory_ctx128_fullstep")).allocator.peak
    assert 263 * MIB < peak["allocated"] - peak["requested"] < 264 * MIB


WORKSPACES = {
    "medium_128_training": (8, 2),
    "medium_128_inference": (8, 1),
    "cold_memory_ctx128_fullstep": (9, 2),
}


@pytest.mark.parametrize("name", WORKSPACES)
def test_a_training_step_holds_two_workspaces_and_inference_one(name):
    major, count = WORKSPACES[name]
    blocks = [
        b
        for s in recording(name)["segments"]
        for b in s["blocks"]
        if b["state"] == "active_allocated"
    ]
    assert [b["requested_size"] for b in blocks].count(workspace_bytes((major, 0))) == count


@pytest.mark.parametrize("name", RECORDINGS)
def test_what_is_read_of_a_recording_is_what_its_replay_finds(name):
    """Reading sums events; the replay counts blocks: the peaks and the ends must be the same."""
    snapshot = recording(name)
    timeline, allocator = read_snapshot(snapshot).timeline, replayed(snapshot).allocator
    assert timeline.peak_bytes == allocator.peak["requested"]
    assert timeline.reserved_peak_bytes == allocator.peak["reserved"]
    assert timeline.at("end").total_bytes == allocator.current["requested"]
    levels = list(accumulate(event.num_bytes for event in timeline.events))
    assert max(levels) == timeline.peak_bytes and levels[-1] == timeline.at("end").total_bytes
    num_recorded = sum(
        e["action"] in ("alloc", "free_requested") for e in snapshot["device_traces"][0]
    )
    num_before = sum(event.phase == "before" for event in timeline.events)
    assert len(timeline.events) == num_before + num_recorded
