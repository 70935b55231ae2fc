"""A bar for each choice: what is drawn is what the peaks say, in bytes and in words."""

import pytest
from drawn import labels_of, marks_of, overlap

from memkit.timeline import Instant
from memkit.units import GIB, MIB
from stepscope.pictures import choices_figure

PEAKS = {
    name: Instant(
        name="backward peak",
        weights=300 * MIB,
        gradients=gradients * MIB,
        optimizer_states=2 * gradients * MIB,
        activations=activations * MIB,
        temporary=40 * MIB,
    )
    for name, gradients, activations in (
        ("all\nweights", 300, 900),
        ("LoRA", 3, 700),
        ("QLoRA", 0, 650),
    )
}


def test_no_text_leaves_the_picture_and_none_touches_another():
    chart = choices_figure(PEAKS, "Three ways", "dashed: a card", GIB)
    labels = labels_of(chart)
    for number, label in enumerate(labels):
        left, top, right, bottom = label.box
        assert left >= 0 and top >= 0 and right <= chart.width and bottom <= chart.height, label
        assert not [other for other in labels[:number] if overlap(label, other)], label


@pytest.mark.parametrize("chosen", [-1, 1])
def test_peaks_tell_their_parts_and_which_is_chosen(chosen):
    chart = choices_figure(PEAKS, "Three", "of a kind", GIB, chosen, ["1.0 ×"] * 3, "a foot")
    for number, peak in enumerate(PEAKS.values()):
        told = {
            mark.data["part"]: int(mark.data["bytes"])
            for mark in marks_of(chart, "part", pick=number)
        }
        assert told == {part: size for part, size in peak.parts.items() if size}
    assert ("LoRA, chosen: " in chart.alt) == (chosen == 1) and "a foot: all weights" in chart.alt
    with pytest.raises(ValueError, match="at least one peak"):
        choices_figure({}, "nothing")
