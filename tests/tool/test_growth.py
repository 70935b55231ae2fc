"""What grew between two runs, held against programs whose tensors are counted by hand, and against recordings."""

from dataclasses import replace

import pytest
import torch
from card_recordings import recording
from real_cards import replayed

from memkit.allocator.snapshot_writer import predicted_snapshot
from memkit.allocator.trace_replay import replay_trace
from memkit.timeline import Event, MemoryTimeline
from memkit.tool.growth import compare_runs
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


def peaks_of(found) -> list[int]:
    return [run.peak_allocated_bytes for run in found.runs]


def test_a_tensor_that_is_kept_is_named_with_its_bytes():
    before, after = (trace_memory(program(24, keeps), steps=1) for keeps in (False, True))
    found = compare_runs(before, after)
    assert peaks_of(found) == [(8 + 24) * MIB, (8 + 24 + 24) * MIB]
    [(where, pair)] = found.changed.items()
    assert "test_growth.py" in where and pair == (0, 24 * MIB)
    assert "What changed most is test_growth.py" in found.words and "+24.00 MiB" in str(found)
    assert "Reserved, the peaks differ by +24.00 MiB." in found.words  # from 10 MiB on a block has its own segment
    back = compare_runs(after, before, names=("a", "b"))
    assert "−24.00 MiB" in back.words


def by_hand(*births: tuple[int, str]) -> MemoryTimeline:
    """Blocks of whole MiB that stay, each with its line."""
    events = [Event(i, size * MIB, where=where) for i, (size, where) in enumerate(births)]
    return replace(trace_memory(program(1, False)), events=tuple(events))


def test_as_many_bytes_by_another_line_are_a_change():
    kept = (8, "model.py:1 build")
    found = compare_runs(by_hand(kept, (16, "a.py:1 f")), by_hand(kept, (16, "b.py:2 g")))
    assert found.words.startswith("before peaks at 24.00 MiB and after peaks at 24.00 MiB, no change.")
    assert "all other lines 8.00 MiB 8.00 MiB no change" in " ".join(str(found).split())
    assert found.changed == {"a.py:1 f": (16 * MIB, 0), "b.py:2 g": (0, 16 * MIB)}


def test_a_line_that_moved_in_its_function_is_the_same_line():
    trace = trace_memory(program(24, True), steps=1)
    moved = replace(trace, events=tuple(replace(e, where=shifted(e)) for e in trace.events))
    assert not compare_runs(trace, moved).changed


def shifted(event: Event) -> str:
    file, colon, rest = event.where.partition(":")
    number, _, name = rest.partition(" ")
    return f"{file}:{int(number) + 100} {name}" if colon else file


def test_a_recording_equals_itself():
    found = compare_runs(recording("medium_128_training"), recording("medium_128_training"), names=("0", "3"))
    assert "Nothing at the peak differs." in found.words


def test_two_recordings_differ_by_their_peaks():
    first, second = recording("cold_small_train_200"), recording("cold_small_train_200_mixed")
    found = compare_runs(first, second, names=("fp32", "autocast"))
    assert peaks_of(found) == [replayed(each).allocator.peak["allocated"] for each in (first, second)]
    asked = [sum(pair[i] for pair in found.lines.values()) for i in (0, 1)]
    for total, run in zip(asked, found.runs, strict=True):
        assert 0.98 * run.peak_allocated_bytes < total <= run.peak_allocated_bytes


def test_predicted_against_recorded_by_line():
    """A snapshot keeps the lines: each holds the same bytes on both sides."""
    trace = trace_memory(program(24, True), steps=1)
    found = compare_runs(trace, predicted_snapshot(replay_trace(trace)), names=("predicted", "recorded"))
    assert not found.changed and len(set(peaks_of(found))) == 1


def test_a_run_without_events_is_refused():
    with pytest.raises(ValueError, match="no events"):
        empty = MemoryTimeline(instants=trace_memory(program(1, False)).instants, source="formula")
        compare_runs(empty, empty)
