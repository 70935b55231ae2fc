"""The pictures of number formats: what is drawn is compared with ml_dtypes and torch, not with memkit."""

import math
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from drawn import labels_of, marks_of, words_of

from memkit.formats.records import FORMATS
from memkit.formats.single import nearest_in, read_code
from memkit.pictures.bits import COMPARED, bit_figure, explorer_figure, note_on
from memkit.pictures.colours import LOOKS

FIGURE = Path(__file__).parents[3] / "figures/02_two_faces_of_fp8.svg"


def compared(number: float, saturates=True):
    rows = [nearest_in(number, name, saturates=saturates) for name in COMPARED]
    return explorer_figure(read_code(0, "float16"), rows)


# Bits.


@pytest.mark.parametrize(
    "name", ["float4_e2m1fn", "float8_e4m3fn", "bfloat16", "float32", "float64", "int8"]
)
def test_the_boxes_hold_the_bits_in_order(name: str) -> None:
    bits = FORMATS[name].bits
    code = 0x5A5A5A5A5A5A5A5A % 2**bits
    boxes = marks_of(bit_figure(code, name), "field")
    assert "".join(box.tip[-1] for box in boxes) == f"{code:0{bits}b}"
    assert [int(box.data["pick"]) for box in boxes] == list(range(bits))
    lefts = [box.at("x") for box in boxes]
    np.testing.assert_allclose(np.diff(lefts), boxes[0].at("width"), atol=0.11)
    assert lefts[0] >= 0 and lefts[-1] + boxes[-1].at("width") <= 800


def test_the_fields_are_as_wide_as_their_bits_and_named() -> None:
    chart = bit_figure(0x3C, "float8_e5m2")
    assert [box.data["field"] for box in marks_of(chart, "field")] == ["sign"] + [
        "exponent"
    ] * 5 + ["mantissa"] * 2
    assert {"sign = 0", "exponent = 15", "mantissa = 0"} <= {
        label.text for label in labels_of(chart)
    }


def test_the_strip_is_drawn_to_scale() -> None:
    """Below a power of two values stand twice as close as above it."""
    places = {
        label.text: (label.box[0] + label.box[2]) / 2
        for label in labels_of(bit_figure(0x38, "float8_e4m3fn"))
    }
    assert places["1.125"] - places["1"] == pytest.approx(2 * (places["1"] - places["0.9375"]))
    assert {"gap 0.0625", "gap 0.125"} <= set(places)


@pytest.mark.parametrize("code", [0x3C00, 0x3C01, 0x0400, 0xB801, 0x7BFE])
def test_values_words_and_gaps_stand_at_their_places(code: int) -> None:
    """numpy has the neighbours; a value's words stand below it, and a gap's above the middle between its two."""
    value = np.array(code, dtype=np.uint16).view(np.float16)
    below, above = (float(np.nextafter(value, np.float16(end))) for end in (-np.inf, np.inf))
    wide = max(above - float(value), float(value) - below)
    xs = [400 + 240 * (each - float(value)) / wide for each in (below, float(value), above)]
    chart = bit_figure(code, "float16")
    placed = [
        (label.text, (label.box[0] + label.box[2]) / 2, label.box[3]) for label in labels_of(chart)
    ]
    labels = {text: (x, y) for text, x, y in placed}
    for side, x in zip(("next below", "this value", "next above"), xs, strict=True):
        assert labels[side][0] == pytest.approx(x, abs=0.1)
    gaps = [x for text, x, y in placed if text.startswith("gap ") and y < 198]  # above the line
    assert gaps == pytest.approx([(xs[0] + xs[1]) / 2, (xs[1] + xs[2]) / 2], abs=0.1)
    for mark, x in zip(
        (*marks_of(chart, pick="below"), *marks_of(chart, pick="above")),
        (xs[0], xs[2]),
        strict=True,
    ):
        assert mark.at("x") + mark.at("width") / 2 == pytest.approx(x, abs=0.1)


def test_nothing_beside_a_nan_and_one_neighbour_of_infinity() -> None:
    nan = words_of(bit_figure(0x7F, "float8_e4m3fn"))
    infinity = words_of(bit_figure(0x7C00, "float16"))
    assert nan.split(" | ").count("none") == 2 and "NaN" in nan and "gap" not in nan
    assert infinity.split(" | ").count("none") == 1 and "65504" in infinity and "∞" in infinity


@pytest.mark.parametrize("name", FORMATS)
def test_every_short_code_can_be_drawn_within_the_picture(name: str) -> None:
    bits = FORMATS[name].bits
    for code in {0, 1, 2 ** (bits - 1), 2**bits - 1}:
        for label in labels_of(bit_figure(code, name)):
            assert label.box[0] >= -2 and label.box[2] <= 802, (code, label)


def test_no_field_is_told_by_colour_alone() -> None:
    fields = ("sign", "exponent", "mantissa", "table index")
    assert len({LOOKS[field][1] for field in fields}) == 4


# Number lines.


def values_in_ml_dtypes(name: str) -> np.ndarray:
    codes = np.arange(2 ** FORMATS[name].bits, dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        values = codes.view(getattr(ml_dtypes, name)).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


@pytest.mark.parametrize(("name", "top"), [("float8_e4m3fn", 74), ("float8_e5m2", 184)])
def test_the_title_of_chapter_02_has_a_tick_for_every_value(name: str, top: int) -> None:
    """The figure is stored; ``tests/book/test_figures.py`` draws it again."""
    drawn = FIGURE.read_text()
    ticks = re.findall(r'd="M([\d.]+) ([\d.]+)V([\d.]+)"[^>]* data-value="([^"]+)"', drawn)
    values = values_in_ml_dtypes(name)
    values = values[values > 0]
    ends = {tick[1:3] for tick in ticks}
    own = {
        float(value): (float(x), float(y), float(end))
        for x, y, end, value in ticks
        if top <= float(y) <= top + 11
    }
    assert sorted(own) == values.tolist() and len(ends) == 4
    low, high = 2.0**-16, 57344.0  # the least of E5M2 and its largest
    expected = 34 + 732 * np.log2(values / low) / np.log2(high / low)
    np.testing.assert_allclose([own[value][0] for value in values.tolist()], expected, atol=0.06)
    smallest_normal = float(ml_dtypes.finfo(getattr(ml_dtypes, name)).smallest_normal)
    assert {value for value, (_, y, end) in own.items() if end - y == 22} == set(
        values[values < smallest_normal]
    )
    assert f"{np.sum(values < smallest_normal)} subnormal" in drawn


# One number in many formats.


@pytest.mark.parametrize("number", [0.1, -3.3, 1 / 3, 448.0])
def test_the_bars_are_the_errors_of_ml_dtypes_and_torch(number: float) -> None:
    bars = marks_of(compared(number), "error")
    for name, bar in zip(COMPARED, bars, strict=True):
        if hasattr(torch, name) and name.startswith(("float32", "bfloat16", "float16", "float8")):
            held = (
                torch.tensor(number, dtype=torch.float64).to(getattr(torch, name)).double().item()
            )
        elif name.startswith(("float6", "float4")):
            held = float(np.float64(number).astype(getattr(ml_dtypes, name)))
        else:
            continue
        error = abs(held - number) / abs(number)
        assert float(bar.data["error"]) == pytest.approx(error, rel=1e-12)
        long = 0 if error == 0 else 344 * (1 + math.log10(min(error, 1)) / 9)
        assert bar.at("width") == pytest.approx(max(long, 2 * (error > 0)), abs=0.06), name


def test_what_is_beyond_a_format_says_so() -> None:
    words = {name: note_on(nearest_in(70000, name, saturates=False)) for name in COMPARED}
    drawn = words_of(compared(70000, saturates=False))
    assert all(word in drawn for word in words.values())
    assert words["float32"] == "exact" and words["float4_e2m1fn"] == "saturated"
    assert words["float16"] == words["float8_e5m2"] == words["float8_e4m3fn"] == "overflow"
    words = {name: note_on(nearest_in(1e-9, name, saturates=True)) for name in COMPARED}
    assert all(word in words_of(compared(1e-9)) for word in words.values())
    assert words["float16"] == words["int8"] == "underflow to 0" and words["bfloat16"].endswith(
        " %"
    )
