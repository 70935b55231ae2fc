"""The plane of bytes and time: a mark stands where its two numbers are on the axes, and the front is a stair."""

import re
from statistics import fmean
from types import SimpleNamespace

import pytest
from drawn import labels_of, marks_of

from memkit.pictures.planes import frontier_figure
from memkit.recomputation import Point
from memkit.units import GIB

FOUND = [
    Point(strategy=SimpleNamespace(name=name), overhead=overhead, peak_bytes=round(gib * GIB))
    for name, overhead, gib in (
        ("none", 0.0, 8),
        ("a little", 0.0625, 6.5),
        ("half", 0.255, 7),
        ("all", 1 / 3, 2.3),
    )
]


def centre(mark) -> tuple[float, float]:
    """The mean of an outline's corners; H and V of a path name the one number that changes."""
    corners, x, y = [], 0.0, 0.0
    for verb, told in re.findall(r"([MLHV])([\d. ]+)", mark.attributes["d"]):
        numbers = [float(number) for number in told.split()]
        x, y = {"H": (*numbers, y), "V": (x, *numbers)}.get(verb, numbers)
        corners.append((x, y))
    return fmean(x for x, _ in corners), fmean(y for _, y in corners)


def test_a_mark_stands_at_its_two_numbers_and_is_hollow_beside_the_front():
    front = [FOUND[0], FOUND[1], FOUND[3]]
    chart = frontier_figure("four", FOUND, front, [""] * 4, ("room", 5 * GIB))
    marks = marks_of(chart, "pick", "bytes")
    assert [int(mark.data["bytes"]) for mark in marks] == [each.peak_bytes for each in FOUND]
    ticks = {
        float(label.text): fmean(label.box[::2])
        for label in labels_of(chart)
        if re.fullmatch(r"\d+", label.text)
    }
    step = (ticks[40] - ticks[0]) / 40
    wanted = [ticks[0] + step * 100 * each.overhead for each in FOUND]
    assert [centre(mark)[0] for mark in marks] == pytest.approx(wanted, abs=0.3)
    heights = {
        float(label.text.split()[0]): label.box[3]
        for label in labels_of(chart)
        if re.fullmatch(r"[\d.]+ GiB", label.text)
    }
    low, *_, high = sorted(heights)
    per_byte = (heights[high] - heights[low]) / ((high - low) * GIB)
    top = centre(marks[0])[1]
    wanted = [top + per_byte * (each.peak_bytes - FOUND[0].peak_bytes) for each in FOUND]
    assert [centre(mark)[1] for mark in marks] == pytest.approx(wanted, abs=0.3)
    for limit in (5 * GIB, None):
        drawn = frontier_figure("four", FOUND, front, [""] * 4, limit and ("room", limit))
        lines = [mark for mark in marks_of(drawn, "bytes") if "pick" not in mark.data]
        assert [int(line.data["bytes"]) for line in lines] == [limit] * bool(limit)
    hollow = [mark.attributes["fill"] == "none" for mark in marks]
    assert hollow == [each not in front for each in FOUND]
