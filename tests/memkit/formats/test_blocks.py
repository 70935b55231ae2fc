"""``memkit.formats.blocks`` against torchao, a table worked by hand and published examples.

torchao is a test extra; without it its tests are skipped. Readers never need it.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch

from memkit.formats.blocks import SCALINGS, Scaling, scale_to
from memkit.formats.records import FORMATS
from memkit.formats.rounding import decode

E2M1 = "float4_e2m1fn"
NVFP4_ALONE = dataclasses.replace(SCALINGS["nvfp4"], has_tensor_scale=False)
MX = ["float6_e3m2fn", "float6_e2m3fn"]
RULES = {"mx_floor": "FLOOR", "mx": "RCEIL"}
"""Those of FP8 and FP4 are held in ``tests/memkit/formats/test_scaling.py``."""


def inputs() -> np.ndarray:
    """float32 rows of 256: random at scales from 2^-100 to 2^100, exact powers, the largest element's multiples."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((512, 256)) * np.exp2(rng.integers(-100, 100, (512, 1)))).astype(
        np.float32
    )
    per_block = np.repeat(2.0 ** rng.integers(-30, 30, 8), 32).astype(np.float32)
    for row, largest in enumerate((448, 57344, 28, 7.5, 6, 1, 1.5)):
        x[3 * row] = largest * per_block
        x[3 * row + 1] = np.nextafter(x[3 * row], np.float32(0))
        x[3 * row + 2] = -x[3 * row]
    return x


def in_torchao(x: np.ndarray, element: str, scaling: str) -> tuple[np.ndarray, np.ndarray]:
    """torchao's scale codes and element codes."""
    mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    from torchao.prototype.mx_formats import constants
    from torchao.prototype.mx_formats.config import ScaleCalculationMode

    dtypes = dict(zip(MX, (constants.DTYPE_FP6_E3M2, constants.DTYPE_FP6_E2M3), strict=True))
    dtype, mode = dtypes[element], ScaleCalculationMode[RULES[scaling]]
    scales, elements = mx_tensor.to_mx(torch.from_numpy(x), dtype, 32, mode)
    return scales.view(torch.uint8).numpy(), elements.view(torch.uint8).numpy().reshape(x.shape)


@pytest.mark.parametrize("scaling", RULES)
@pytest.mark.parametrize("element", MX)
def test_mx_scales_and_elements_equal_torchao(element: str, scaling: str) -> None:
    x = inputs()
    scales, elements = in_torchao(x, element, scaling)
    ours = scale_to(x, element, scaling)
    np.testing.assert_array_equal(ours.factors.scales, np.ldexp(1.0, scales.astype(int) - 127))
    np.testing.assert_array_equal(ours.codes, elements)


# By hand.

BLOCK = [7.0, -6.5, 3.4, 2.5, 1.24, 0.76, -0.26, 0.24] + [0.0] * 24
BY_HAND = {
    # floor(log2 7) = 2, e_max of E2M1 is 2: the scale is 2^0. 7 and -6.5 saturate; 2.5 is a tie, to the even 2.
    "mx_floor": (1, [6, -6, 3, 2, 1, 1, -0.5, 0]),
    # 7 / 6 rounds up to 2^1. Halved: 3.5 (tie, to the even 4), -3.25, 1.7, 1.25 (tie, to the even 1), 0.62, 0.38, ...
    "mx": (2, [8, -6, 3, 2, 1, 1, -0.0, 0]),
}


@pytest.mark.parametrize("scaling", BY_HAND)
def test_mxfp4_worked_by_hand(scaling: str) -> None:
    scale, values = BY_HAND[scaling]
    result = scale_to([BLOCK], E2M1, scaling)
    assert result.factors.scales.tolist() == [[scale]]
    assert result.dequantize()[0, :8].tolist() == values


# Published.


def test_nvfp4_example_of_four_over_six() -> None:
    """Cook et al. 2025, arXiv:2512.02010: [10, 20, 30, 40] by FP4's 6 has scale 6.5 and a mean square error of 4.33."""
    x = np.array([[10.0, 20.0, 30.0, 40.0] * 4])
    result = scale_to(x, E2M1, NVFP4_ALONE)
    assert result.factors.scales.tolist() == [[6.5]]  # 40 / 6 = 6.67 in E4M3
    assert decode(result.codes, E2M1)[0, :4].tolist() == [1.5, 3, 4, 6]
    assert result.dequantize()[0, :4].tolist() == [9.75, 19.5, 26, 39]
    assert round(float(((result.dequantize() - x) ** 2).mean()), 2) == 4.33


def test_nvfp4_keeps_every_e2m1_value_as_in_nvidias_own_test() -> None:
    """TensorRT-Model-Optimizer, test_qtensor_cuda.py::test_nvfp4_quantize: the sixteen values of E2M1 in one block."""
    x = np.array([[0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]])
    result = scale_to(x, E2M1, "nvfp4")
    assert result.factors.tensor_scale == pytest.approx(6 / (448 * 6), rel=1e-7)
    assert result.factors.block_scales == [448]
    assert result.codes.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11, 12, 13, 14, 15]]
    np.testing.assert_allclose(result.dequantize(), x, rtol=1e-7)


NF4 = Scaling("64", (1, 64), "nearest")
EXACT = Scaling("1x128", (1, 128), "nearest")
INT4 = Scaling("128 in float16", (1, 128), "nearest", FORMATS["float16"])


@pytest.mark.parametrize(
    ("element", "scaling", "bits"),
    [
        # OCP Microscaling Formats 1.0, table 1: 32 values and one 8-bit scale
        ("float8_e4m3fn", SCALINGS["mx"], 8.25),
        ("float8_e5m2", SCALINGS["mx_floor"], 8.25),
        ("float6_e3m2fn", SCALINGS["mx"], 6.25),
        ("float6_e2m3fn", SCALINGS["mx"], 6.25),
        (E2M1, SCALINGS["mx"], 4.25),
        (
            E2M1,
            SCALINGS["nvfp4"],
            4.5,
        ),  # NVIDIA 2025, arXiv:2509.25149: one 8-bit scale for 16 values
        # Dettmers et al. 2023, section 3: 32 / 64 = 0.5 bits of constants per value
        ("nf4", NF4, 4.5),
        ("float8_e4m3fn", EXACT, 8.25),
        ("float8_e4m3fn", SCALINGS["128x128"], 8 + 32 / 128**2),
        ("int4", INT4, 4.125),
    ],
)
def test_published_bits_per_value(element: str, scaling: Scaling, bits: float) -> None:
    assert scaling.bits_per_value(element) == bits
    shape, tensor_scale_bytes = (256, 512), 4 * (scaling.name == "nvfp4")
    assert scaling.stored_bytes(shape, element) == math.prod(shape) * bits / 8 + tensor_scale_bytes


# Identities.


@pytest.mark.parametrize(("element", "scaling"), [("nf4", NF4), ("int4", INT4), ("int8", EXACT)])
def test_a_power_of_two_in_front_changes_scales_only(element: str, scaling: Scaling) -> None:
    """Those of ``SCALINGS`` are held in ``tests/memkit/formats/test_scaling.py``."""
    x = np.random.default_rng(0).standard_normal((128, 256))
    one, eight = scale_to(x, element, scaling), scale_to(8 * x, element, scaling)
    np.testing.assert_array_equal(one.codes, eight.codes)
    np.testing.assert_array_equal(8 * one.dequantize(), eight.dequantize())


def test_tiles_are_square_blocks() -> None:
    x = np.random.default_rng(0).standard_normal((2, 256, 128))
    result = scale_to(x, "float8_e4m3fn", Scaling("exact", (128, 128), "nearest"))
    assert result.factors.scales.shape == (2, 2, 1)
    amax = np.abs(x[1, 128:, :]).max()
    np.testing.assert_allclose(result.factors.scales[1, 1, 0], amax / 448, rtol=2**-22)


@pytest.mark.parametrize(
    ("values", "scaling", "message"),
    [
        (np.ones((1, 33)), "mx", "shape=\\(1, 33\\) is not tiled by mx's blocks of \\(1, 32\\)"),
        (np.float64(1), "mx", "shape=\\(\\) is not tiled"),
        (np.ones(128), "128x128", "shape=\\(128,\\) is not tiled by 128x128"),
        (np.ones((1, 32)), "mx5", "scaling='mx5' is not one of none"),
    ],
)
def test_bad_input_is_refused(values: object, scaling: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scale_to(values, E2M1, scaling)


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        ("mx", {"scale": FORMATS["float16"]}, "with float16: powers of two, and only they"),
        ("mx", {"scale_rule": "ceil"}, "scale_rule='ceil' is not one of ocp_floor"),
        ("mx", {"scale_rule": "nearest"}, "nearest' with float8_e8m0fnu: powers of two"),
        ("nvfp4", {"scale_rule": "ocp_floor"}, "ocp_floor' with float8_e4m3fn: powers of"),
    ],
)
def test_impossible_scalings_are_refused(name: str, other: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SCALINGS[name], **other)
