"""``memkit.formats.rounding`` against ml_dtypes, numpy, torch and gfloat, bit for bit.

Each format of up to 16 bits is encoded from 10^8 float32 inputs: every upper half (all signs and exponents,
infinity and NaN) with 1,526 lower halves, among them 0, the ties and their neighbours; ``make test`` takes one in
twelve of them, ``make exhaustive`` all. dev/sweep_float32.py does all 2^32.
"""

from collections.abc import Iterator

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from narrow_formats import NARROW, ml_dtypes_overflow, overflow_of_torch

from book.recordings import load_runs
from memkit.formats.records import FORMATS
from memkit.formats.rounding import all_values, decode, encode, round_to

IN_TORCH = [name for name in NARROW if hasattr(torch, name)]


def lower_halves() -> np.ndarray:
    """1,526 lower halves: multiples of 2^8 and their neighbours (ties of 8 to 15 lost bits), then a
    spread."""
    edges = (np.arange(0, 1 << 16, 1 << 8)[:, None] + [-1, 0, 1]).ravel() & 0xFFFF
    spread = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(1 << 16), edges))
    return np.concatenate([edges, spread])[:1526].astype(np.uint32)


CORNERS = (0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
"""Lower halves of exact values, of ties and beside ties."""


def float32_inputs(one_in: int = 1, halves_per_step: int = 218) -> Iterator[np.ndarray]:
    """Every upper half with the corners and with one in so many of the other lower halves."""
    lower, upper = lower_halves(), (np.arange(1 << 16, dtype=np.uint32) << 16)[:, None]
    lower = lower[np.isin(lower, CORNERS) | (np.arange(lower.size) % one_in == 0)]
    for some in np.split(lower, range(halves_per_step, lower.size, halves_per_step)):
        yield (upper | some).ravel().view(np.float32)


SOME_OR_ALL = pytest.mark.parametrize("one_in", [13, pytest.param(1, marks=pytest.mark.exhaustive)])


def ml_dtypes_codes(x: np.ndarray, name: str) -> np.ndarray:
    dtype = np.float16 if name == "float16" else getattr(ml_dtypes, name)
    with np.errstate(all="ignore"):
        return x.astype(dtype).view(np.uint16 if FORMATS[name].bits == 16 else np.uint8)


def torch_codes(x: np.ndarray, name: str) -> np.ndarray:
    storage = np.uint16 if FORMATS[name].bits == 16 else np.uint8
    integer = torch.int16 if storage is np.uint16 else torch.uint8
    return torch.from_numpy(x).to(getattr(torch, name)).view(integer).numpy().view(storage)


@SOME_OR_ALL
def test_the_inputs_are_what_they_are_said_to_be(one_in: int) -> None:
    count, patterns = 0, set()
    for x in float32_inputs(one_in):
        count += x.size
        bits = x.view(np.uint32)
        patterns |= set(np.unique(bits & 0xFFFF).tolist())
        # every sign, exponent and upper mantissa bit; infinities; NaNs
        assert np.unique(bits >> 16).size == 1 << 16
    least = {1: (10**8, 1526), 13: (8 * 10**6, 125)}[one_in]
    assert count >= least[0] and len(patterns) >= least[1] and patterns >= set(CORNERS)


@SOME_OR_ALL
@pytest.mark.parametrize("name", NARROW)
def test_millions_of_float32_encode_as_ml_dtypes_and_torch_do(name: str, one_in: int) -> None:
    """Eight million of each format here, a hundred million by make exhaustive."""
    fmt = FORMATS[name]
    for x in float32_inputs(one_in):
        is_nan = np.isnan(x)
        if not fmt.num_nans:  # ml_dtypes turns NaN into -0 here; memkit refuses (see below)
            x, is_nan = x[~is_nan], is_nan[~is_nan]
        ours = encode(x, name, overflow=ml_dtypes_overflow(name))
        theirs = ml_dtypes_codes(x, name)
        if name == "float16":  # numpy keeps a NaN's payload, memkit writes the quiet NaN
            np.testing.assert_array_equal(ours[is_nan] | 0x8000, np.full(is_nan.sum(), 0xFE00))
            np.testing.assert_array_equal(np.isnan(theirs.view(np.float16)), is_nan)
            theirs = np.where(is_nan, ours, theirs)
        np.testing.assert_array_equal(ours, theirs)

        if name not in IN_TORCH:
            continue
        overflow = overflow_of_torch(name)
        if overflow != ml_dtypes_overflow(name):
            ours = encode(x, name, overflow=overflow)
        theirs = torch_codes(x, name)
        if name == "float8_e8m0fnu":  # torch ignores the sign and takes 0 for the smallest value
            positive = (x > 0) | is_nan
            ours, theirs, is_nan = ours[positive], theirs[positive], is_nan[positive]
        assert np.isnan(decode(theirs, name))[is_nan].all()  # each library has its own NaN
        np.testing.assert_array_equal(ours[~is_nan], theirs[~is_nan])


# Where ml_dtypes and torch disagree: who says what.


def both(x: list[float], name: str) -> tuple[list[int], list[int]]:
    values = np.array(x, np.float32)
    return ml_dtypes_codes(values, name).tolist(), torch_codes(values, name).tolist()


def test_e4m3fn_overflow_ml_dtypes_says_nan_torch_depends_on_its_version() -> None:
    # 464 is the tie between 448 and the absent 480; it goes to 448
    x = [464.0, 464.1, 1e9, np.inf, -np.inf]
    in_ml_dtypes, in_torch = both(x, "float8_e4m3fn")
    assert in_ml_dtypes == [0x7E, 0x7F, 0x7F, 0x7F, 0xFF]
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert in_torch == ([0x7E, 0x7E, 0x7E, 0x7E, 0xFE] if release >= (2, 13) else in_ml_dtypes)
    assert encode(x, "float8_e4m3fn", overflow="nan").tolist() == in_ml_dtypes
    overflow = overflow_of_torch("float8_e4m3fn")
    assert encode(x, "float8_e4m3fn", overflow=overflow).tolist() == in_torch


def test_e8m0_zero_and_negatives_ml_dtypes_says_nan_torch_drops_the_sign() -> None:
    x = [0.0, -0.0, -1.0, -500.0, 500.0]
    assert both(x, "float8_e8m0fnu") == (
        [0xFF, 0xFF, 0xFF, 0xFF, 0x88],
        [0x00, 0x00, 0x7F, 0x88, 0x88],
    )
    assert encode(x, "float8_e8m0fnu", overflow="nan").tolist() == [0xFF, 0xFF, 0xFF, 0xFF, 0x88]


def test_e8m0_just_above_its_smallest_value_both_round_away_from_the_nearest() -> None:
    """The nearest value to 1.25 * 2^-127 is 2^-127, says gfloat; ml_dtypes and torch say 2^-126."""
    x = [2.0**-127, 1.25 * 2.0**-127, 1.5 * 2.0**-127]
    assert both(x, "float8_e8m0fnu") == ([0, 1, 1], [0, 1, 1])
    assert {gfloat.round_float(gfloat.formats.format_info_ocp_e8m0, v) for v in x[:2]} == {
        2.0**-127
    }
    assert encode(x, "float8_e8m0fnu", overflow="nan").tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("name", "in_ml_dtypes", "in_torch"),
    [
        ("bfloat16", [0x7FC0, 0xFFC0], {0x7FC0, 0xFFC0, 0xFFFF, 0x7FFF}),
        ("float8_e5m2", [0x7E, 0xFE], {0x7F, 0xFF}),
        ("float8_e4m3fn", [0x7F, 0xFF], {0x7F, 0xFF}),
        ("float8_e5m2fnuz", [0x80, 0x80], {0x80}),
    ],
)
def test_nan_each_library_writes_its_own_memkit_that_of_ml_dtypes(
    name, in_ml_dtypes, in_torch
) -> None:
    x = np.array([np.nan, -np.nan], np.float32)
    assert (
        ml_dtypes_codes(x, name).tolist()
        == in_ml_dtypes
        == encode(x, name, overflow="saturate").tolist()
    )
    assert set(torch_codes(x, name).tolist()) <= in_torch


@pytest.mark.parametrize("name", ["float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn"])
def test_nan_without_a_code_ml_dtypes_says_minus_zero_memkit_refuses(name: str) -> None:
    fmt = FORMATS[name]
    assert ml_dtypes_codes(np.array([np.nan], np.float32), name).tolist() == [fmt.sign_mask]
    with pytest.raises(ValueError, match=f"values holds NaN, and {name} has no code for it"):
        encode([1.0, np.nan], name, overflow="saturate")


@pytest.mark.parametrize("name", IN_TORCH)
def test_what_this_torch_does_beyond_a_format_s_range(name: str) -> None:
    beyond = decode(torch_codes(np.array([np.finfo(np.float32).max]), name), name)[0]
    results = {"saturate": FORMATS[name].max, "inf": np.inf, "nan": np.nan}
    np.testing.assert_equal(beyond, results[overflow_of_torch(name)])


def test_the_recorded_sweep_of_every_float32_found_no_difference_but_those_named_above() -> None:
    """dev/sweep_float32.py, run once; torch writes another NaN and, into E8M0, drops signs and takes 0."""
    counts = load_runs("formats_sweep_cpu")[1]
    pairs = {key.partition(":")[0] for key in counts}
    assert {pair.split(" and ")[0] for pair in pairs} == set(NARROW)
    num_nans = 2**24 - 2
    for pair in pairs:
        name, library = pair.split(" and ")
        what = ("inputs", "differ nan", "differ zero or negative", "differ otherwise")
        inputs, nans, signs, rest = (counts[f"{pair}: {each}"] for each in what)
        assert inputs == 2**32 - (0 if FORMATS[name].num_nans else num_nans)
        assert rest == 0
        assert nans == 0 or library == "torch" and nans <= num_nans
        assert (signs > 0) == (pair == "float8_e8m0fnu and torch")


# float64 and wide formats.

GFLOAT_FORMATS = {
    "float8_e4m3fn": gfloat.formats.format_info_ocp_e4m3,
    "float8_e5m2": gfloat.formats.format_info_ocp_e5m2,
    "float6_e3m2fn": gfloat.formats.format_info_ocp_e3m2,
    "float6_e2m3fn": gfloat.formats.format_info_ocp_e2m3,
    "float4_e2m1fn": gfloat.formats.format_info_ocp_e2m1,
    "float16": gfloat.formats.format_info_binary16,
    "bfloat16": gfloat.formats.format_info_bfloat16,
    "float32": gfloat.formats.format_info_binary32,
}


def float64_inputs(name: str) -> np.ndarray:
    """Values, ties and the places beside them, and random numbers far beyond both ends of the format."""
    fmt, rng = FORMATS[name], np.random.default_rng(0)
    codes = rng.integers(0, fmt.largest_code, 3000, endpoint=True)
    values = decode(codes, name)
    gaps = decode(codes + 1, name) - values
    ties = (values + gaps / 2)[np.isfinite(gaps)]
    scale = 2.0 ** rng.uniform(fmt.min_exponent - fmt.mantissa_bits - 3, fmt.max_exponent + 3, 5000)
    some = np.concatenate(
        [values, ties, ties * (1 + 2**-40), ties * (1 - 2**-40), scale, [fmt.max * 1.01, np.inf]]
    )
    return np.concatenate([some, -some])


@pytest.mark.parametrize(
    ("name", "saturates"),
    [(name, True) for name in GFLOAT_FORMATS]
    + [(name, False) for name in GFLOAT_FORMATS if FORMATS[name].num_nans],
)
def test_a_float64_rounds_as_gfloat_rounds_it(name: str, saturates: bool) -> None:
    """ml_dtypes converts by way of float32, which rounds twice."""
    x = float64_inputs(name)
    overflow = "saturate" if saturates else ml_dtypes_overflow(name)
    theirs = gfloat.round_ndarray(GFLOAT_FORMATS[name], x, sat=saturates)
    np.testing.assert_array_equal(round_to(x, name, overflow=overflow), theirs)


@pytest.mark.parametrize(("name", "storage"), [("float32", np.uint32), ("float64", np.uint64)])
def test_float64_encodes_into_wide_formats_as_numpy_does(name: str, storage: type) -> None:
    bits = np.random.default_rng(0).integers(0, 2**64 - 1, 300_000, dtype=np.uint64, endpoint=True)
    x = bits.view(np.float64)
    ends = [0.0, -0.0, np.inf, -np.inf, 5e-324, 2.0**-150, 2.0**-149, 1.5 * 2.0**-149]
    x = np.concatenate([x[~np.isnan(x)], ends])
    with np.errstate(over="ignore"):
        theirs = x.astype(name).view(storage)
    np.testing.assert_array_equal(encode(x, name, overflow="inf"), theirs)


def test_tf32_rounds_a_float32_to_ten_mantissa_bits() -> None:
    """The integer trick on float32's own bits: half of what is lost, a tie to even, then cut 13 bits."""
    bits = np.random.default_rng(0).integers(0, 2**32, 1_000_000, dtype=np.uint32)
    bits = bits[~np.isnan(bits.view(np.float32))]
    rounded = (bits.astype(np.uint64) + 0x0FFF + (bits >> 13 & 1)) >> 13
    np.testing.assert_array_equal(encode(bits.view(np.float32), "tf32", overflow="inf"), rounded)


@pytest.mark.parametrize(
    ("name", "is_by_chance"),
    [*((name, by_chance) for name in NARROW for by_chance in (False, True))]
    + [(name, False) for name in ("int8", "int4", "nf4")],
)
def test_every_code_survives_decoding_and_encoding(name: str, is_by_chance: bool) -> None:
    codes = np.arange(2 ** FORMATS[name].bits)
    values = decode(codes, name)
    finite = np.isfinite(values)
    rng = np.random.default_rng(0) if is_by_chance else None
    again = encode(values[finite], name, overflow="saturate", rng=rng)
    np.testing.assert_array_equal(again, codes[finite])


@pytest.mark.parametrize("name", ["float16", "float8_e5m2", "float8_e4m3"])
def test_three_ways_to_overflow(name: str) -> None:
    fmt = FORMATS[name]
    for x, sign in ((fmt.max * 2, 1), (np.inf, 1), (-np.inf, -1)):
        assert round_to(x, name, overflow="saturate") == sign * fmt.max
        assert round_to(x, name, overflow="inf") == sign * np.inf
        assert np.isnan(round_to(x, name, overflow="nan"))


# Integers and tables.


def test_int8_rounds_and_saturates_as_numpy_rint_and_clip() -> None:
    x = np.concatenate(
        [
            np.arange(-300, 300) / 2,
            np.random.default_rng(0).normal(0, 60, 10_000),
            [np.inf, -np.inf],
        ]
    )
    np.testing.assert_array_equal(
        encode(x, "int8", overflow="saturate").view(np.int8), np.clip(np.rint(x), -128, 127)
    )


def test_nf4_takes_the_nearest_of_its_sixteen_values() -> None:
    x = np.random.default_rng(0).uniform(-1.2, 1.2, 50_000)
    nearest = np.abs(x[:, None] - np.array(FORMATS["nf4"].table)).argmin(axis=1)
    np.testing.assert_array_equal(encode(x, "nf4", overflow="saturate"), nearest)


# Stochastic rounding.


def test_stochastic_rounding_is_right_on_average_and_hits_only_the_neighbours() -> None:
    rng = np.random.default_rng(0)
    values = {"bfloat16": 1 + 0.3 * 2**-7, "float8_e4m3fn": -3.1, "float4_e2m1fn": 0.1}
    for name, x in values.items():
        values = all_values(name)
        below, above = values[values <= x][-1], values[values >= x][0]
        drawn = round_to(np.full(100_000, x), name, overflow="saturate", rng=rng)
        assert set(np.unique(drawn)) == {below, above}
        sigma = np.sqrt((x - below) * (above - x) / drawn.size)
        assert abs(drawn.mean() - x) < 5 * sigma
        alternatives = 5 * sigma / (above - below)
        # the bound would notice a probability that is off by one percent
        assert alternatives < 0.01


# Properties.


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2), st.sampled_from(NARROW))
def test_rounding_keeps_order_and_a_second_rounding_changes_nothing(x: list, name: str) -> None:
    x = np.sort(np.float32(x))
    if name == "float8_e8m0fnu":
        x = x[x > 0]
    once = round_to(x, name, overflow="saturate")
    assert once.dtype == np.float32 and (np.diff(once) >= 0).all()
    np.testing.assert_array_equal(round_to(once, name, overflow="saturate"), once)


# What goes in.


REFUSED = (
    (-(2**53) - 1, "float16", {}, "whole number beyond 2\\^53"),
    (1.0, "float16", {"overflow": "wrap"}, "overflow='wrap' is not one of saturate, inf, nan"),
    (
        1.0,
        "float8_e4m3fn",
        {"overflow": "inf"},
        "overflow='inf': float8_e4m3fn has no code for infinity",
    ),
    (
        1.0,
        "int8",
        {"overflow": "saturate", "rng": np.random.default_rng(0)},
        "int8 is a table of values",
    ),
    (np.nan, "int8", {"overflow": "saturate"}, "values holds NaN, and int8 has no code for it"),
)


@pytest.mark.parametrize("function", [encode, round_to])
def test_bad_input_is_refused(function) -> None:
    for values, name, choices, message in REFUSED:
        with pytest.raises(ValueError, match=message):
            function(values, name, **{"overflow": "inf"} | choices)
