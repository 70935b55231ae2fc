"""What grew between two runs, held against programs whose tensors are counted by hand, and against recordings."""

from dataclasses import replace

import pytest
import torch
from card_recordings import recording
from real_cards import replayed

from memkit.allocator.snapshot_writer import predicted_snapshot
from memkit.allocator.trace_replay import replay_trace
from memkit.fitting.growth import compare_runs
from memkit.timeline import Event, MemoryTimeline
from memkit.tracing.trace import trace_memory
from memkit.units import MIB


def program(num_mib: int, keeps: bool):
    """8 MiB of weights; a step makes ``num_mib`` and, if it keeps them, as much again."""

    def build():
        weight = torch.empty(2 * MIB)
        kept = []

        def step():
            made = weight.new_empty(num_mib * MIB // 4)
            if keeps:
                kept.append(torch.exp(made))

        return step

    return build


def test_a_tensor_that_is_kept_is_named_with_its_bytes():
    before, after = (trace_memory(program(24, keeps), steps=1) for keeps in (False, True))
    found = compare_runs(before, after)
    assert found.peaks == ((8 + 24) * MIB, (8 + 24 + 24) * MIB)
    assert found.grown_bytes == 24 * MIB
    (line,) = [line for line in found.lines if line.grown_bytes]
    assert "test_growth.py" in line.where and line.bytes == (0, 24 * MIB) and line.blocks == (0, 1)
    assert "What changed most is test_growth.py" in found.words and "+24.00 MiB" in str(found)
    assert "Reserved, the peaks differ by +24.00 MiB." in found.words  # from 10 MiB on a block has its own segment
    back = compare_runs(after, before, names=("a", "b"))
    assert back.grown_bytes == -24 * MIB and "−24.00 MiB" in back.words


def test_a_run_whose_parts_are_not_known_is_compared_by_line():
    """A recording that shows no step has no parts; its lines are still the same lines, and none counts as new."""
    trace = trace_memory(program(24, True), steps=1)
    bare = replace(trace, events=[replace(event, part=None, phase="") for event in trace.events])
    for pair in ((trace, bare), (bare, trace)):
        found = compare_runs(*pair)
        assert sum(line.bytes[0] for line in found.lines) == sum(line.bytes[1] for line in found.lines) == 56 * MIB
        assert all(line.grown_bytes == 0 and line.part is None for line in found.lines)
        assert "Nothing at the peak differs." in found.words


def by_hand(*births: tuple[int, str, str]) -> MemoryTimeline:
    """Blocks of whole MiB that stay, each with its line and phase."""
    events = [Event(i, size * MIB, where=where, phase=phase) for i, (size, where, phase) in enumerate(births)]
    return replace(trace_memory(program(1, False)), events=tuple(events))


@pytest.mark.parametrize(
    "first, second, moments",
    [
        ("backward", "backward", "Both in backward of step 1."),
        ("forward", "backward", "before in forward of step 1, after in backward of step 1."),
        ("", "backward", "before in a phase not named, after in backward of step 1."),
        ("", "", None),
    ],
)
def test_as_many_bytes_by_another_line_are_a_change_and_the_moments_are_named(first, second, moments):
    kept = (8, "model.py:1 build", "init")
    found = compare_runs(by_hand(kept, (16, "a.py:1 f", first)), by_hand(kept, (16, "b.py:2 g", second)))
    assert found.words.startswith("before peaks at 24.00 MiB and after peaks at 24.00 MiB, no change.")
    assert moments in found.words if moments else " in " not in found.words
    assert "all other lines – 8.00 MiB 8.00 MiB no change" in " ".join(str(found).split())
    assert {line.where: line.grown_bytes for line in found.lines if line.grown_bytes} == {
        "a.py:1 f": -16 * MIB, "b.py:2 g": 16 * MIB,
    }


def test_a_line_that_moved_in_its_function_is_the_same_line():
    trace = trace_memory(program(24, True), steps=1)
    moved = replace(trace, events=tuple(replace(e, where=shifted(e)) for e in trace.events))
    assert all(line.grown_bytes == 0 for line in compare_runs(trace, moved).lines)


def shifted(event: Event) -> str:
    file, colon, rest = event.where.partition(":")
    number, _, name = rest.partition(" ")
    return f"{file}:{int(number) + 100} {name}" if colon else file


def test_a_recording_equals_itself():
    found = compare_runs(recording("medium_128_training"), recording("medium_128_training"), names=("0", "3"))
    assert found.grown_bytes == 0 and "Nothing at the peak differs." in found.words


def test_two_recordings_differ_by_their_peaks():
    first, second = recording("cold_small_train_200"), recording("cold_small_train_200_mixed")
    found = compare_runs(first, second, names=("fp32", "autocast"))
    peaks = tuple(replayed(each).allocator.peak["allocated"] for each in (first, second))
    assert found.peaks == peaks and found.grown_bytes == peaks[1] - peaks[0]
    lines = sum(line.grown_bytes for line in found.lines)
    asked = [sum(line.bytes[i] for line in found.lines) for i in (0, 1)]
    assert lines == asked[1] - asked[0]
    for total, run in zip(asked, found.runs, strict=True):
        assert 0.98 * run.peak_allocated_bytes < total <= run.peak_allocated_bytes


def test_predicted_against_recorded_by_line():
    """A snapshot keeps the lines but not the parts: each line holds the same bytes on both sides."""
    trace = trace_memory(program(24, True), steps=1)
    found = compare_runs(trace, predicted_snapshot(replay_trace(trace)), names=("predicted", "recorded"))
    by_line: dict[str, int] = {}
    for line in found.lines:
        by_line[line.where] = by_line.get(line.where, 0) + line.grown_bytes
    assert found.grown_bytes == 0 and set(by_line.values()) == {0}


def test_a_run_without_events_is_refused():
    with pytest.raises(ValueError, match="no events"):
        empty = MemoryTimeline(instants=trace_memory(program(1, False)).instants, source="formula")
        compare_runs(empty, empty)
