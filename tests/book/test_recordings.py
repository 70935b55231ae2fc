"""A recording is read back equal, says where it comes from, and refuses to say less."""

import json
import re
from dataclasses import replace

import pytest

from book import recordings
from book.measurements import MEASUREMENTS
from book.recordings import (
    Recording,
    find_recording,
    load_recordings,
    recorded_or_words,
    save_recording,
)
from dev.notebooks import notebooks
from memkit.timeline import Event, Instant, MemoryTimeline
from memkit.units import GIB

H200 = {
    "card": "NVIDIA H200",
    "driver": "580.82.07",
    "torch": "2.11.0",
    "cuda": "13.0",
    "date": "2026-11-20",
    "command": "python -m book.gpu_run",
    "commit": "4891b1b",
}
STEP = MemoryTimeline(
    instants=(
        Instant(
            name="init", weights=512, gradients=0, optimizer_states=0, activations=0, temporary=0
        ),
        Instant(name="forward", weights=512, activations=None, total_bytes=2048),
    ),
    source="measured",
    events=(Event(1, 512, "weights"),),
    provenance=H200,
)


def make_recording(**changes) -> Recording:
    fields = {
        "chapter": "01",
        "name": "device_copy",
        "provenance": H200,
        "numbers": {
            "copied_bytes": GIB,
            "device_copy_bytes_per_s": 4_100_000_000_000,
            "kernel": "flash",
            "copy_seconds": 0.0005,
            "ratio": 0.854,
        },
        "timelines": {"tiny GPT-2": STEP},
    }
    return Recording(**(fields | changes))


def test_json_is_read_back_equal():
    recording = make_recording(timelines={"tiny GPT-2": replace(STEP, events=())})
    assert Recording.from_json(make_recording().to_json()) == recording


def test_a_file_holds_the_timeline_without_its_events(tmp_path):
    path = save_recording(make_recording(), tmp_path / "new" / "folder")
    (found,) = load_recordings("01", path.parent)
    assert found.timelines["tiny GPT-2"].instants == STEP.instants
    assert found.timelines["tiny GPT-2"].events == ()
    assert found.numbers == make_recording().numbers
    assert "null" in path.read_text()  # what could not be told apart is null in the file, never 0


def test_the_file_name_says_chapter_measurement_and_card():
    assert make_recording().file_name == "01_device_copy_nvidia-h200.json"


def test_a_second_run_on_the_same_card_replaces_the_first(tmp_path):
    save_recording(make_recording(), tmp_path)
    save_recording(make_recording(provenance=H200 | {"date": "2027-01-01"}), tmp_path)
    (found,) = load_recordings("01", tmp_path)
    assert found.provenance["date"] == "2027-01-01"


def test_the_newest_run_is_found_first(tmp_path):
    t4 = H200 | {"card": "Tesla T4", "date": "2026-12-24"}
    save_recording(make_recording(), tmp_path)
    save_recording(make_recording(provenance=t4), tmp_path)
    save_recording(make_recording(chapter="07"), tmp_path)
    cards = [found.provenance["card"] for found in load_recordings("01", tmp_path)]
    assert cards == ["Tesla T4", "NVIDIA H200"]
    assert find_recording("01", "device_copy", folder=tmp_path).provenance["card"] == "Tesla T4"
    assert find_recording("01", "autocast", folder=tmp_path) is None


def test_what_was_not_recorded_is_said_in_words(tmp_path):
    words = recorded_or_words("01", "device_copy", folder=tmp_path / "not there")
    assert words.startswith(
        "Not recorded yet: the device copy.\nOn a machine with a CUDA card `make record`"
    )
    assert not any(digit in words for digit in "0123456789")


def test_every_recording_that_a_chapter_prints_is_said_in_words():
    asked = set()
    for path in notebooks():
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            asked |= set(
                re.findall(r'recorded_or_words\("(\d\d)", "(\w+)"\)', "".join(cell["source"]))
            )
    assert asked == set(recordings.SHOWS) and asked <= set(MEASUREMENTS)


def test_what_was_recorded_names_card_torch_and_date(tmp_path):
    save_recording(make_recording(), tmp_path)
    text = recorded_or_words("01", "device_copy", folder=tmp_path)
    assert text.startswith("recorded: NVIDIA H200, driver 580.82.07, torch 2.11.0, 2026-11-20")
    for shown in (
        "1.00 GiB",
        "4,100.0 GB/s",
        "flash",
        "0.500 ms",
        "0.854",
        "peak 2.00 KiB at forward",
    ):
        assert shown in text


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {"provenance": {}},
            r"provenance\['card'\]=None is not a text; needed are card, driver, torch",
        ),
        ({"provenance": H200 | {"date": "yesterday"}}, "'yesterday'"),
        ({"numbers": {"x": float("nan")}}, r"numbers\['x'\]=nan is not finite"),
        ({"numbers": {"x_bytes": 1.5}}, r"numbers\['x_bytes'\]=1.5 is not a whole number of bytes"),
    ],
)
def test_a_recording_that_hides_something_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        make_recording(**changes)


def test_every_kept_recording_is_one():
    for path in recordings.FOLDER.glob("[0-9][0-9]_*.json"):
        recording = Recording.from_json(path.read_text(encoding="utf-8"))
        assert path.name == recording.file_name
        assert "/home" not in path.read_text() and "/root" not in path.read_text()
        assert json.loads(path.read_text())["provenance"]["commit"]
