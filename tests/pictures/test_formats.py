"""The pictures of number formats: what stands in the artists is compared with ml_dtypes and torch, not with memkit."""

import math
import struct

import ml_dtypes
import numpy as np
import pytest
import torch

from memkit.formats.reading import nearest_in, read_code
from memkit.formats.records import FORMATS
from memkit.pictures.bits import BITS_SHARE, BOTTOM, FIELD_LOOK, MAX_BITS, BitPicture
from memkit.pictures.formats import (
    COMPARED,
    SMALLEST_ERROR,
    ComparisonPicture,
    bit_figure,
    number_line_figure,
    running_sum_figure,
)
from memkit.pictures.number_line import NumberLinePicture
from memkit.pictures.sums import LINE_LOOK, RunningSumPicture


def size_of(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


def shown(texts: list) -> list[str]:
    return [text.get_text() for text in texts if text.get_visible()]


# Every picture.

STATES = {
    BitPicture: [
        (read_code(0x3C, "float8_e4m3fn"),),
        (read_code(200, "int8"),),
        (read_code(0x7C00, "float16"),),
    ],
    NumberLinePicture: [("float8_e4m3fn", "float8_e5m2"), ("float4_e2m1fn",), ("nf4", "int4")],
    RunningSumPicture: [(0.001, 500, "bfloat16"), (-1.0, 40, "float8_e4m3fn"), (0.0, 1, "float16")],
    ComparisonPicture: [(0.1,), (-70000.0,), (0,)],
}
CHOICES = {NumberLinePicture: [{}, {}, {"is_log": False}], ComparisonPicture: [{}, {"saturates": False}, {}]}


@pytest.mark.parametrize("kind", STATES)
def test_a_redrawn_picture_is_the_same_as_a_new_one(kind: type) -> None:
    """A widget redraws one picture for ever, a page draws a new one: they must not differ, whatever came before."""
    choices = CHOICES.get(kind, [{}] * 3)
    fresh = [kind().redraw(*state, **choice) for state, choice in zip(STATES[kind], choices, strict=True)]
    images = [picture.png() for picture in fresh]
    assert len(set(images)) == 3 and len({picture.alt for picture in fresh}) == 3
    used = kind()
    for index in (0, 1, 2, 1, 0, 2):
        used.redraw(*STATES[kind][index], **choices[index])
        assert used.png() == images[index] and used.alt == fresh[index].alt


@pytest.mark.parametrize("kind", STATES)
def test_a_redraw_makes_no_artists(kind: type) -> None:
    choices = CHOICES.get(kind, [{}] * 3)
    picture = kind().redraw(*STATES[kind][0], **choices[0])
    before = len(picture.moving), [len(axes.get_children()) for axes in picture.axes]
    picture.redraw(*STATES[kind][1], **choices[1])
    assert (len(picture.moving), [len(axes.get_children()) for axes in picture.axes]) == before


def test_a_notebook_gets_a_png_with_words() -> None:
    bundle, metadata = bit_figure(0x3C, "float8_e4m3fn")._repr_mimebundle_()
    assert bundle["text/plain"] == metadata["image/png"]["alt"]
    assert "00111100" in bundle["text/plain"] and "= 1.5" in bundle["text/plain"]
    assert size_of(bit_figure(0, "float16").png()) == (800, 260)


# Bits.


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float8_e4m3fn", "bfloat16", "float32", "float64", "int8"])
def test_the_boxes_hold_the_bits_in_order(name: str) -> None:
    bits = FORMATS[name].bits
    code = 0x5A5A5A5A5A5A5A5A % 2**bits
    picture = bit_figure(code, name)
    assert shown(picture.digits) == list(f"{code:0{bits}b}")
    edges = np.unique(picture.frames.get_path().vertices[:, 0].round(9))
    assert 0 <= edges[0] and edges[-1] <= 1 and edges.size == bits + 1
    places = [digit.get_position()[0] for digit in picture.digits if digit.get_visible()]
    np.testing.assert_allclose(places, (edges[1:] + edges[:-1]) / 2)


def test_the_fields_are_as_wide_as_their_bits_and_side_by_side() -> None:
    picture = bit_figure(0x3C, "float8_e5m2")
    edges = np.unique(picture.frames.get_path().vertices[:, 0].round(9))
    extents = [picture.boxes[field].get_path().get_extents() for field in ("sign", "exponent", "mantissa")]
    np.testing.assert_allclose([box.x0 for box in extents], edges[[0, 1, 6]])
    np.testing.assert_allclose([box.x1 for box in extents], edges[[1, 6, 8]])
    assert all(box.y0 == BOTTOM > 1 - BITS_SHARE for box in extents), "cut where the panel has buttons"
    assert not picture.boxes["table index"].get_visible()
    assert shown(list(picture.names.values())) == ["sign", "exponent = 15", "mantissa"]


def test_the_strip_is_drawn_to_scale() -> None:
    """Below a power of two values stand twice as close as above it."""
    below, here, above = bit_figure(0x38, "float8_e4m3fn").ticks.get_xdata()
    assert math.isclose(above - here, 2 * (here - below))
    picture = bit_figure(0x38, "float8_e4m3fn")
    assert shown(picture.values) == ["0.9375", "1", "1.125"] and shown(picture.gaps) == [
        "gap 0.0625",
        "gap 0.125",
    ]


def test_nothing_beside_a_nan_and_one_neighbour_of_infinity() -> None:
    nan = bit_figure(0x7F, "float8_e4m3fn")
    assert shown(nan.values) == ["none", "NaN", "none"] and len(nan.ticks.get_xdata()) == 1
    infinity = bit_figure(0x7C00, "float16")
    assert shown(infinity.values) == ["65504", "∞", "none"] and len(infinity.ticks.get_xdata()) == 2


def test_every_short_code_can_be_drawn() -> None:
    picture = BitPicture()
    for name, fmt in FORMATS.items():
        assert fmt.bits <= MAX_BITS
        for code in {0, 1, 2 ** (fmt.bits - 1), 2**fmt.bits - 1}:
            assert size_of(picture.redraw(read_code(code, name)).png()) == (800, 260)


def test_no_field_is_told_by_colour_alone() -> None:
    assert len({hatch for _, hatch in FIELD_LOOK.values()}) == len(FIELD_LOOK)
    assert len({(dashes, marker) for _, dashes, marker in LINE_LOOK.values()}) == len(LINE_LOOK)


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
    picture = number_line_figure(
        name, is_log=is_log, low=None if is_log else low, high=None if is_log else high
    )
    _, normal, subnormal, zero, words = picture.rows[0]
    place = np.log2 if is_log else np.asarray
    np.testing.assert_allclose(normal.get_xdata(), place(values[np.abs(values) >= smallest_normal]))
    np.testing.assert_allclose(subnormal.get_xdata(), place(values[np.abs(values) < smallest_normal]))
    assert len(zero.get_xdata()) == (not is_log)
    assert f"{np.sum(np.abs(values) < smallest_normal)} subnormal" in words.get_text()
    assert normal.get_markersize() > subnormal.get_markersize()  # not by colour alone
    assert not picture.rows[1][0].get_visible()


def test_too_many_values_are_drawn_once_for_each_column() -> None:
    ticks = number_line_figure("bfloat16", "float16").rows[0][1].get_xdata()
    assert 1000 < len(ticks) <= 3000 and (np.diff(ticks) > 0).all()


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
    picture = running_sum_figure(0.01, 300, "bfloat16")
    for column, name in enumerate(("exact", "nearest", "float32 accumulator")):
        np.testing.assert_allclose(
            picture.curves[name].get_ydata(), [row[column] for row in totals], rtol=1e-12
        )
        np.testing.assert_array_equal(picture.curves[name].get_xdata(), np.arange(1, 301))


def test_only_a_sum_that_cannot_move_any_more_is_called_stuck() -> None:
    picture = running_sum_figure(1.0, 40, "float8_e4m3fn")
    assert picture.ends["nearest"].get_text() == "16, stuck after 16"
    assert picture.ends["exact"].get_text() == "40"
    assert not any("stuck" in picture.ends[name].get_text() for name in LINE_LOOK if name != "nearest")
    assert "stuck" not in running_sum_figure(1.0, 16, "float8_e4m3fn").alt


def test_the_seed_decides_the_stochastic_line_only() -> None:
    one, two = (
        running_sum_figure(0.01, 300, "bfloat16", seed=1),
        running_sum_figure(0.01, 300, "bfloat16", seed=2),
    )
    for name in LINE_LOOK:
        same = (one.curves[name].get_ydata() == two.curves[name].get_ydata()).all()
        assert same == (name != "stochastic")


def test_no_terms_are_refused() -> None:
    with pytest.raises(ValueError, match="num_terms=0 leaves nothing to draw"):
        running_sum_figure(1.0, 0, "bfloat16")


# One number in many formats.


@pytest.mark.parametrize("number", [0.1, -3.3, 1 / 3, 448.0])
def test_the_bars_are_the_errors_of_ml_dtypes_and_torch(number: float) -> None:
    picture = ComparisonPicture().redraw(number)
    right_ends = [path.max() for path in picture.bars.get_path().vertices[:, 0].reshape(len(COMPARED), 5)]
    for name, right in zip(COMPARED, right_ends, strict=True):
        if hasattr(torch, name) and name.startswith(("float32", "bfloat16", "float16", "float8")):
            held = torch.tensor(number, dtype=torch.float64).to(getattr(torch, name)).double().item()
        elif name.startswith(("float6", "float4")):
            held = float(np.float64(number).astype(getattr(ml_dtypes, name)))
        else:
            continue
        error = abs(held - number) / abs(number)
        left = math.log10(SMALLEST_ERROR)
        expected = left if error == 0 else min(max(math.log10(error), left + 0.05), 0.0)
        assert math.isclose(right, expected, abs_tol=1e-12), name


def test_what_is_beyond_a_format_says_so() -> None:
    words = dict(zip(COMPARED, shown(ComparisonPicture().redraw(70000, saturates=False).notes), strict=True))
    assert words["float32"] == "exact" and words["float4_e2m1fn"] == "saturated"
    assert words["float16"] == words["float8_e5m2"] == words["float8_e4m3fn"] == "overflow"
    words = dict(zip(COMPARED, shown(ComparisonPicture().redraw(1e-9).notes), strict=True))
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
        ComparisonPicture().redraw(number)
