"""Bars, standing and lying: a piece is as long as its number, a bar as wide as its place, and words have the sums."""

import pytest
from drawn import check_narrow, marks_of

from memkit.formula.states import bytes_per_parameter
from memkit.pictures.bars import Bar, bars_figure, rows_figure
from memkit.pictures.colours import COLOUR, LOOKS, OKABE_ITO, looks_of
from memkit.recipes import ADAMW, PRECISIONS
from memkit.timeline import PARTS


def test_a_piece_is_as_long_as_its_number():
    rows = {name: bytes_per_parameter(precision, ADAMW) for name, precision in PRECISIONS.items()}
    picture = rows_figure(rows, "AdamW", "bytes")
    marks = marks_of(picture, "size")
    wanted = [size for row in rows.values() for size in row.values()]
    assert [float(mark.data["size"]) for mark in marks] == pytest.approx(wanted)
    scale = marks[0].at("width") / wanted[0]
    assert [mark.at("width") for mark in marks] == pytest.approx(
        [scale * size for size in wanted], abs=0.1
    )
    assert "fp32 16 bytes" in picture.alt
    check_narrow(picture)
    with pytest.raises(ValueError, match="at least one bar"):
        rows_figure({}, "nothing")


def test_standing_bars_fill_their_places_and_are_as_high_as_their_bytes():
    """Seven eighths of the way to the next bar and a little more: neighbours of a group nearly touch."""
    sizes = [(3 * 2**20, 2**20), (2**20, 5 * 2**20), (2**19, 2**18)]
    bars = [
        Bar(name=f"bar {n}", pieces=dict(zip(PARTS, pair, strict=False)))
        for n, pair in enumerate(sizes)
    ]
    marks = marks_of(bars_figure("three", bars, beside=[(part, part) for part in PARTS]), "bytes")
    flat = [size for pair in sizes for size in pair]
    assert [int(mark.data["bytes"]) for mark in marks] == flat
    scale = marks[0].at("height") / flat[0]
    assert [mark.at("height") for mark in marks] == pytest.approx(
        [scale * size for size in flat], abs=0.1
    )
    for lower, upper in zip(marks[::2], marks[1::2], strict=True):
        assert lower.at("x") == upper.at("x")
        assert upper.at("y") + upper.at("height") == pytest.approx(lower.at("y"), abs=0.1)
    step = marks[2].at("x") - marks[0].at("x")
    assert marks[4].at("x") - marks[2].at("x") == pytest.approx(step, abs=0.1)
    assert [mark.at("width") for mark in marks] == pytest.approx([0.88 * step] * 6, abs=0.1)


def test_parts_differ_in_colour_and_in_hatch_and_states_are_shades_of_yellow():
    looks = [LOOKS[part] for part in (*PARTS, "not attributed")]
    assert len({colour for colour, _ in looks}) == len({hatch for _, hatch in looks}) == 6
    for state in ("optimizer_states", "exp_avg", "exp_avg_sq", "momentum_buffer"):
        red, green, blue = (int(COLOUR[state][place : place + 2], 16) for place in (1, 3, 5))
        assert red > green > blue, state
    assert COLOUR["gradient"] == COLOUR["gradients"] and COLOUR["weight"] == COLOUR["weights"]


def test_what_has_a_name_keeps_its_colour_whatever_stands_before_it():
    assert looks_of(["one", "two", "weight"])["weight"] == LOOKS["weight"]
    assert looks_of(["one", "two"])["two"] == (OKABE_ITO[1], "///")
