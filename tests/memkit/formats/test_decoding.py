"""``memkit.formats.rounding`` against ml_dtypes, numpy and torch: every code of every format of up to 16 bits."""

import ml_dtypes
import numpy as np
import pytest
import torch

from memkit.formats.records import FORMATS, FloatFormat
from memkit.formats.rounding import all_values, decode

NARROW = [name for name, fmt in FORMATS.items() if fmt.bits <= 16]
ML_DTYPES = {"int4": ml_dtypes.int4, "int8": np.int8, "float16": np.float16} | {
    name: getattr(ml_dtypes, name)
    for name in NARROW
    if name.startswith(("float", "bfloat")) and name != "float16"
}
IN_TORCH = [name for name in NARROW if hasattr(torch, name) and name != "int4"]


def all_codes(name: str) -> np.ndarray:
    return np.arange(
        2 ** FORMATS[name].bits, dtype=np.uint16 if FORMATS[name].bits == 16 else np.uint8
    )


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Equal to the last bit, -0 told from +0; where one is NaN, so is the other."""
    assert ours.dtype == theirs.dtype == np.float64
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    numbers = ~np.isnan(theirs)
    np.testing.assert_array_equal(ours[numbers].view(np.int64), theirs[numbers].view(np.int64))


@pytest.mark.parametrize("name", [name for name in NARROW if name != "nf4"])
def test_every_code_decodes_as_ml_dtypes_and_numpy_do(name: str) -> None:
    codes = all_codes(name)
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        theirs = codes.view(ML_DTYPES[name]).astype(np.float64)
    assert_same_bits(decode(codes, name), theirs)


@pytest.mark.parametrize("name", IN_TORCH)
def test_every_code_decodes_as_torch_does(name: str) -> None:
    codes = all_codes(name)
    signed = torch.from_numpy(codes.view(np.int16 if codes.itemsize == 2 else np.int8))
    assert_same_bits(decode(codes, name), signed.view(getattr(torch, name)).double().numpy())


@pytest.mark.parametrize(("name", "storage"), [("float32", np.uint32), ("float64", np.uint64)])
def test_wide_codes_decode_as_numpy_does(name: str, storage: type) -> None:
    rng = np.random.default_rng(0)
    top = np.iinfo(storage).max
    edges = np.array([0, 1, 2, top, top - 1, top // 2, top // 2 + 1, top // 2 + 2], dtype=storage)
    codes = np.concatenate([edges, rng.integers(0, top, 200_000, dtype=storage, endpoint=True)])
    with np.errstate(invalid="ignore"):
        theirs = codes.view(name).astype(np.float64)
    assert_same_bits(decode(codes, name), theirs)


def test_every_tf32_code_is_a_float32_with_13_zero_bits() -> None:
    codes = np.arange(2**19, dtype=np.uint32)
    with np.errstate(invalid="ignore"):
        theirs = (codes << 13).view(np.float32).astype(np.float64)
    assert_same_bits(decode(codes, "tf32"), theirs)


def test_decode_to_float32_is_exact() -> None:
    for name in NARROW:
        ours = decode(all_codes(name), name, dtype=np.float32)
        assert ours.dtype == np.float32
        np.testing.assert_array_equal(ours.astype(np.float64), decode(all_codes(name), name))


@pytest.mark.parametrize("name", [*NARROW, "tf32"])
def test_all_values_are_the_finite_ones_ascending_and_once(name: str) -> None:
    fmt, values = FORMATS[name], all_values(name)
    assert values.size == fmt.num_values
    assert (np.diff(values) > 0).all()
    assert (values[0], values[-1]) == (fmt.min, fmt.max)
    assert not np.signbit(values[values == 0]).any()
    if isinstance(fmt, FloatFormat):
        assert values[values > 0][0] == fmt.smallest_subnormal


def test_shapes_are_kept() -> None:
    assert decode(3, "int4").shape == () and decode([[1, 2]], "int4").shape == (1, 2)
    assert decode(np.empty((0, 3), np.uint8), "float16").shape == (0, 3)


@pytest.mark.parametrize(
    ("codes", "name", "error", "message"),
    [
        (
            256,
            "float8_e4m3fn",
            ValueError,
            "code=256 is not a code of float8_e4m3fn; allowed 0..255",
        ),
        ([1, -1], "float8_e4m3fn", ValueError, "code=-1 is not a code"),
        (16, "float4_e2m1fn", ValueError, "code=16 is not a code of float4_e2m1fn; allowed 0..15"),
        (2**32, "float32", ValueError, "allowed 0..4294967295"),
        (1.0, "float16", TypeError, "codes of dtype float64 are not whole numbers"),
        (0, "fp8", ValueError, "format='fp8' is not one of"),
    ],
)
def test_bad_codes_are_refused(codes: object, name: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        decode(codes, name)
