"""Lying bars: a piece is as long as its number, and the words have the sums."""

import pytest
from drawn import marks_of

from memkit.formula.states import bytes_per_parameter
from memkit.pictures.bars import rows_figure
from memkit.pictures.colours import COLOUR, LOOKS, OKABE_ITO, looks_of
from memkit.recipes import ADAMW, PRECISIONS
from memkit.timeline import PARTS


def test_a_piece_is_as_long_as_its_number():
    rows = {name: bytes_per_parameter(precision, ADAMW) for name, precision in PRECISIONS.items()}
    picture = rows_figure(rows, "AdamW", "bytes")
    marks, wanted = marks_of(picture, "size"), [size for row in rows.values() for size in row.values()]
    assert [float(mark.data["size"]) for mark in marks] == pytest.approx(wanted)
    scale = marks[0].at("width") / wanted[0]
    assert [mark.at("width") for mark in marks] == pytest.approx([scale * size for size in wanted], abs=0.1)
    assert "fp32 16 bytes" in picture.alt
    with pytest.raises(ValueError, match="at least one bar"):
        rows_figure({}, "nothing")


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
