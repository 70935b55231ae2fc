"""The pictures of memory: what is drawn is what the timeline says, in bytes, in height and in words."""

import pytest
from drawn import labels_of, marks_of, overlap, words_of

from memkit.pictures.svg import Chart
from memkit.pictures.timeline import drawn_instants, timeline_figure
from memkit.timeline import PARTS, Instant, MemoryTimeline
from memkit.units import GIB, MIB, format_bytes


def step(number: int, scale: int = 1, micro_batches: int = 1) -> list[Instant]:
    """A step of a small model; sizes are made up, each different, so that a mix-up shows."""
    states = 0 if number == 1 else 700 * MIB
    passes = [
        Instant(
            name=name,
            weights=300 * MIB,
            gradients=gradients,
            optimizer_states=states,
            activations=activations * scale,
            temporary=temporary,
            step=number,
            micro_batch=batch,
        )
        for batch in range(1, micro_batches + 1)
        for name, gradients, activations, temporary in (
            ("forward peak", 0, 900 * MIB, 40 * MIB),
            ("forward", 0, 880 * MIB, 0),
            ("backward peak", 100 * MIB, 800 * MIB, 120 * MIB),
            ("backward", 310 * MIB, 0, 0),
        )
    ]
    fixed = {"weights": 300 * MIB, "optimizer_states": 700 * MIB, "activations": 0, "step": number}
    return [
        *passes,
        Instant(name="optimizer peak", gradients=310 * MIB, temporary=250 * MIB, **fixed),
        Instant(name="optimizer", gradients=310 * MIB, temporary=0, **fixed),
        Instant(name="zero_grad", gradients=0, temporary=0, **fixed),
    ]


def timeline(steps: int = 2, source: str = "formula", **choices) -> MemoryTimeline:
    init = Instant(
        name="init", weights=300 * MIB, gradients=0, optimizer_states=0, activations=0, temporary=0
    )
    instants = [init, *(i for number in range(1, steps + 1) for i in step(number, **choices))]
    return MemoryTimeline(instants=tuple(instants), source=source)


def place_of(num_bytes: float, shown: MemoryTimeline) -> float:
    """Where a size stands above the floor of the bars, of which the tallest leaves 4 of 29 parts free."""
    return 345 - 273 * num_bytes / (1.16 * shown.peak_bytes)


def sizes(chart: Chart, part: str) -> list[int]:
    """Bytes of a part's pieces from left to right, as their marks tell them."""
    return [int(mark.data["bytes"]) for mark in marks_of(chart, part=part)]


@pytest.mark.parametrize("part", PARTS)
def test_the_bars_are_as_tall_as_the_parts(part):
    shown = timeline()
    chart = timeline_figure(shown)
    assert sizes(chart, part) == [getattr(i, part) for i in shown.instants if getattr(i, part)]
    for mark in marks_of(chart, part=part):
        assert mark.at("height") == pytest.approx(
            345 - place_of(int(mark.data["bytes"]), shown), abs=0.11
        )
        assert (
            format_bytes(int(mark.data["bytes"])) in mark.tip and part.replace("_", " ") in mark.tip
        )


def test_bars_stand_on_top_of_one_another():
    shown = timeline()
    chart = timeline_figure(shown)
    for number, instant in enumerate(shown.instants):
        pieces = marks_of(chart, "part", pick=number)
        lower_ends = [mark.at("y") + mark.at("height") for mark in pieces]
        assert lower_ends == pytest.approx([345, *(mark.at("y") for mark in pieces)][:-1], abs=0.21)
        assert sum(int(mark.data["bytes"]) for mark in pieces) == instant.total_bytes
        assert [mark.data["part"] for mark in pieces] == [
            p for p in PARTS if any(m.data["part"] == p for m in pieces)
        ]


def test_what_no_part_accounts_for_is_drawn_and_named():
    known = Instant(name="init", weights=300 * MIB, total_bytes=500 * MIB)
    chart = timeline_figure(MemoryTimeline(instants=(known,), source="measured"))
    assert sizes(chart, "not attributed") == [200 * MIB]
    assert "not attributed" in words_of(chart) and "unknown" in words_of(chart)
    assert "not attributed" not in words_of(timeline_figure(timeline()))


@pytest.mark.parametrize(
    "capacity, is_drawn", [(3 * GIB, True), (80 * GIB, False), (GIB, True), (None, False)]
)
def test_the_card_is_a_line_where_it_is_near_and_words_where_it_is_far(capacity, is_drawn):
    chart = timeline_figure(timeline(), capacity_bytes=capacity, card_name="my card")
    assert ("my card" in words_of(chart)) == (capacity is not None)
    lines = [mark for mark in marks_of(chart, bytes=capacity) if "part" not in mark.data]
    assert len(lines) == is_drawn
    if capacity == GIB:  # lower than the peak, so that the axis is the same
        y = float(lines[0].attributes["d"].split("H")[0].split(" ")[1])
        assert y == pytest.approx(place_of(GIB, timeline()), abs=0.06)


def test_crowded_timelines_keep_first_and_last_micro_batch_and_then_the_last_step():
    many = timeline(steps=2, micro_batches=8)
    kept = drawn_instants(many)
    assert {i.micro_batch for i in kept} == {1, 8}
    assert {i.step for i in kept} == {2}
    assert len(drawn_instants(timeline())) == len(timeline().instants)


@pytest.mark.parametrize(
    "chart",
    [
        timeline_figure(timeline(), capacity_bytes=3 * GIB, card_name="A100 SXM 80 GB"),
        timeline_figure(
            timeline(micro_batches=4).for_step(2), title="Llama-3.1-405B, 405.9 B parameters"
        ),
        timeline_figure(timeline(micro_batches=2), capacity_bytes=GIB, card_name="RTX 4090"),
    ],
)
def test_no_text_leaves_the_picture_and_none_touches_another(chart):
    labels = labels_of(chart)
    for number, label in enumerate(labels):
        left, top, right, bottom = label.box
        assert left >= 0 and top >= 0 and right <= chart.width and bottom <= chart.height, label
        assert not [other for other in labels[:number] if overlap(label, other)], label
