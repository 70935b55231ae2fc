"""The pictures of number formats: what is drawn is compared with ml_dtypes and torch, not with memkit."""

import math
import re

import ml_dtypes
import numpy as np
import pytest
import torch
from drawn import labels_of, marks_of, words_of

from memkit.formats.reading import nearest_in, read_code
from memkit.formats.records import FORMATS
from memkit.pictures.bits import COMPARED, bit_figure, explorer_figure, note_on
from memkit.pictures.colours import LOOKS
from memkit.pictures.lines import LINE_LOOKS
from memkit.pictures.number_line import number_line_figure
from memkit.widgets.rounding_lab import running_sum_figure, running_totals


def compared(number: float, saturates=True):
    rows = [nearest_in(number, name, saturates=saturates) for name in COMPARED]
    return explorer_figure(read_code(0, "float16"), rows)


# Bits.


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float8_e4m3fn", "bfloat16", "float32", "float64", "int8"])
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
    assert [box.data["field"] for box in marks_of(chart, "field")] == ["sign"] + ["exponent"] * 5 + ["mantissa"] * 2
    assert {"sign = 0", "exponent = 15", "mantissa = 0"} <= {label.text for label in labels_of(chart)}


def test_the_strip_is_drawn_to_scale() -> None:
    """Below a power of two values stand twice as close as above it."""
    places = {label.text: (label.box[0] + label.box[2]) / 2 for label in labels_of(bit_figure(0x38, "float8_e4m3fn"))}
    assert places["1.125"] - places["1"] == pytest.approx(2 * (places["1"] - places["0.9375"]))
    assert {"gap 0.0625", "gap 0.125"} <= set(places)


def test_nothing_beside_a_nan_and_one_neighbour_of_infinity() -> None:
    nan, infinity = words_of(bit_figure(0x7F, "float8_e4m3fn")), words_of(bit_figure(0x7C00, "float16"))
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
    assert len({dashes for _, dashes in LINE_LOOKS}) == len(LINE_LOOKS)


# Number lines.


def values_in_ml_dtypes(name: str) -> np.ndarray:
    codes = np.arange(2 ** FORMATS[name].bits, dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        values = codes.view(getattr(ml_dtypes, name)).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "float8_e3m4", "float6_e2m3fn", "float4_e2m1fn"]
)
@pytest.mark.parametrize("is_log", [True, False])
def test_a_tick_for_every_value(name: str, is_log: bool) -> None:
    smallest_normal = float(ml_dtypes.finfo(getattr(ml_dtypes, name)).smallest_normal)
    values = values_in_ml_dtypes(name)
    low, high = (values[values > 0][0], values[-1]) if is_log else (-smallest_normal * 4, smallest_normal * 4)
    values = values[(values >= low) & (values <= high) & (values != 0)]
    chart = number_line_figure(name, is_log=is_log, low=None if is_log else low, high=None if is_log else high)
    drawn = {float(mark.data["value"]): mark for mark in marks_of(chart, "value")}
    assert sorted(drawn) == values.tolist()
    place = np.log2 if is_log else np.asarray
    expected = 34 + 732 * (place(values) - place(low)) / (place(high) - place(low))
    lefts = [float(drawn[value].attributes["d"][1:].split()[0]) for value in values.tolist()]
    np.testing.assert_allclose(lefts, expected, atol=0.06)
    heights = {abs(value) < smallest_normal: drawn[value].attributes["d"] for value in values.tolist()}
    assert [abs(eval(heights[short].split()[1].replace("V", "-"))) for short in (True, False)] == [22, 44]
    assert sum(mark.tip == "0" for mark in marks_of(chart)) == (not is_log)
    assert f"{np.sum(np.abs(values) < smallest_normal)} subnormal" in words_of(chart)


def test_too_many_values_are_drawn_once_for_each_column() -> None:
    paths = [mark.attributes.get("d", "") for mark in marks_of(number_line_figure("bfloat16", "float16"))]
    places = [int(place) for place in re.findall(r"M(\d+)", max(paths, key=len))]
    assert 600 < len(places) <= 733 and places == sorted(set(places))


@pytest.mark.parametrize(
    ("names", "choices", "message"),
    [
        ((), {}, "allowed are one or two of up to 16 bits"),
        (("float16", "bfloat16", "int8"), {}, "allowed are one or two"),
        (("float32",), {}, "formats=\\['float32'\\]: allowed are one or two of up to 16 bits"),
        (("float16",), {"low": 2.0, "high": 1.0}, "low=2.0, high=1.0: low has to be below high"),
        (("float16",), {"low": 0.0}, "above 0 by power of two"),
        (("float17",), {}, "format='float17' is not one of"),
    ],
)
def test_bad_number_lines_are_refused(names: tuple, choices: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        number_line_figure(*names, **choices)


# Running sums.


def test_the_lines_of_a_running_sum_are_torchs() -> None:
    term = torch.tensor(0.01).bfloat16()
    nearest, accumulator, totals = torch.zeros((), dtype=torch.bfloat16), torch.zeros(()), []
    for _ in range(300):
        nearest, accumulator = nearest + term, accumulator + term.float()
        totals.append((term.item() * (len(totals) + 1), nearest.item(), accumulator.bfloat16().item()))
    drawn = running_totals(0.01, 300, "bfloat16")
    for column, name in enumerate(("exact", "nearest", "float32 accumulator")):
        np.testing.assert_allclose(drawn[name], [row[column] for row in totals], rtol=1e-12)


def test_only_a_sum_that_cannot_move_any_more_is_called_stuck() -> None:
    words = words_of(running_sum_figure(running_totals(1.0, 40, "float8_e4m3fn"), "float8_e4m3fn"))
    assert "nearest | 16, stuck after 16" in words and "exact | 40" in words and words.count("stuck") == 1
    assert "stuck" not in running_sum_figure(running_totals(1.0, 16, "float8_e4m3fn"), "float8_e4m3fn").alt


def test_the_seed_decides_the_stochastic_line_only() -> None:
    one, two = (running_totals(0.01, 300, "bfloat16", seed=seed) for seed in (1, 2))
    for name in one:
        assert (one[name] == two[name]).all() == (name != "stochastic")


# One number in many formats.


@pytest.mark.parametrize("number", [0.1, -3.3, 1 / 3, 448.0])
def test_the_bars_are_the_errors_of_ml_dtypes_and_torch(number: float) -> None:
    bars = marks_of(compared(number), "error")
    for name, bar in zip(COMPARED, bars, strict=True):
        if hasattr(torch, name) and name.startswith(("float32", "bfloat16", "float16", "float8")):
            held = torch.tensor(number, dtype=torch.float64).to(getattr(torch, name)).double().item()
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
    assert words["float16"] == words["int8"] == "underflow to 0" and words["bfloat16"].endswith(" %")


@pytest.mark.parametrize("number", [0.1, -3.3, 0.0, 448.0, -500.0, 1e6])
def test_nearest_in_is_what_numpy_and_ml_dtypes_hold(number: float) -> None:
    with np.errstate(over="ignore"):
        cast = {
            "float16": float(np.float16(number)),
            "float8_e4m3fn": float(ml_dtypes.float8_e4m3fn(number)),
            "int8": float(np.clip(np.rint(number), -128, 127)),
        }
    for name, value in cast.items():
        fmt = FORMATS[name]
        np.testing.assert_equal(nearest_in(number, name, saturates=False).value, value)
        saturated = nearest_in(number, name, saturates=True)
        np.testing.assert_equal(
            saturated.value, value if math.isfinite(value) else math.copysign(fmt.max, number)
        )
        assert saturated.is_beyond == (not fmt.min <= number <= fmt.max)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_are_none_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="is not finite"):
        compared(number)
