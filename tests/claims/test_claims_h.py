"""Proofs of group H, FP8 training. The oracles are ml_dtypes, torchao's recipes and published tables."""

import ml_dtypes
import numpy as np
import torch
from claims.test_claims_d import as_capability  # noqa: F401  the ledger names it
from torchao.float8 import Float8LinearConfig

from book.claims import rounds_to
from memkit.cards import CARDS, MIN_CAPABILITY
from memkit.formats.blocks import SCALINGS
from memkit.low_precision.fp8 import FP8_RECIPES, DelayedScale

E4M3 = "float8_e4m3fn"


def normal(deviation: float) -> np.ndarray:
    return (deviation * np.random.default_rng(0).normal(size=(1024, 1024))).astype(np.float32)


def percent_zero(x: np.ndarray) -> float:
    return 100 * float(np.mean(x == 0))


def test_C239(figures):
    rowwise, tensorwise = (
        Float8LinearConfig.from_recipe_name(name) for name in ("rowwise", "tensorwise")
    )
    assert rowwise.cast_config_grad_output.target_dtype == torch.float8_e4m3fn
    assert tensorwise.cast_config_grad_output.target_dtype == torch.float8_e5m2
    assert all(FP8_RECIPES[name].gradient_element == E4M3 for name in ("row", "block", "mxfp8"))
    assert 1 / float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).eps) == figures["steps"]
    assert 1 / float(ml_dtypes.finfo(ml_dtypes.float8_e5m2).eps) == figures["coarse"]
    figures.settle(
        **{
            config: recipe.cast_config_grad_output.target_dtype == torch.float8_e5m2
            for config, recipe in (("tensorwise", tensorwise), ("rowwise", rowwise))
        }
    )


def test_C242(figures):
    card = CARDS["H100 SXM"]
    tensor_cores, multiply_adds, clock_hz = 528, 1024, 1_830_000_000
    """FP8 multiply-adds of a tensor core in a clock, and the clock of tensor core operations.

    Source: NVIDIA H100 Tensor Core GPU Architecture whitepaper v1.04, tables 2 and 3, H100 SXM5, dense.
    """
    assert rounds_to(2 * tensor_cores * multiply_adds * clock_hz / 1e12, figures["tflops"])
    assert (
        card.compute_capability >= MIN_CAPABILITY[E4M3]
        and card.peak_tflops[E4M3] == figures["tflops"]
    )
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        assert ml_dtypes.finfo(dtype).bits == figures["bits"]
    figures.settle(multiplies=figures["tflops"] > 1.9 * card.peak_tflops["bfloat16"])


def test_C244(figures):
    for name, size in (("block", "tile"), ("mxfp8", "mx"), ("nvfp4", "nv")):
        assert SCALINGS[FP8_RECIPES[name].scaling].block_shape == (1, figures[size])
    assert SCALINGS[FP8_RECIPES["block"].weight_scaling].block_shape == (figures["tile"],) * 2
    assert SCALINGS[FP8_RECIPES["delayed"].scaling].block_shape == (0, 0)
    figures.settle(
        **{
            name: SCALINGS[FP8_RECIPES[name].scaling].block_shape == (0, 0)
            for name in ("delayed", "tensor", "block", "mxfp8", "nvfp4")
        }
    )


def test_C247(figures):
    scale = DelayedScale()
    assert (scale.margin, len(scale.history)) == (figures["margin"], figures["history"])
    assert (FP8_RECIPES["delayed"].element, FP8_RECIPES["delayed"].gradient_element) == (
        E4M3,
        "float8_e5m2",
    )
    scale = scale.after(56.0)
    for _ in range(figures["history"] - 1):
        scale = scale.after(3.5)
    assert scale.multiplier == 8.0 and scale.after(3.5).multiplier == 128.0
    figures.settle(
        margin=DelayedScale().margin == figures["margin"] == 0,
        history=len(DelayedScale().history) == figures["history"],
        forgets_afterwards=scale.after(3.5).multiplier == 448 / 3.5,
    )
