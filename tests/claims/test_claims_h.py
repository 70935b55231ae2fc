"""Proofs of group H, FP8 training. The oracles are ml_dtypes, torchao's recipes and published tables."""

from collections import deque

import ml_dtypes
import numpy as np
import torch
from claims.test_claims_d import as_capability  # noqa: F401  the ledger names it
from torchao.float8 import Float8LinearConfig
from train_fp8 import HISTORY, RECIPES

from book.claims import rounds_to
from memkit.cards import CARDS, MIN_CAPABILITY
from memkit.formats.blocks import SCALINGS

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
    assert all(RECIPES[name].gradient_element == E4M3 for name in ("row", "block", "mxfp8"))
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
    scalings = {name: recipe.scaling for name, recipe in RECIPES.items()} | {"nvfp4": "nvfp4"}
    for name, size in (("block", "tile"), ("mxfp8", "mx"), ("nvfp4", "nv")):
        assert SCALINGS[scalings[name]].block_shape == (1, figures[size])
    assert SCALINGS[RECIPES["block"].weight_scaling].block_shape == (figures["tile"],) * 2
    figures.settle(
        **{
            name: SCALINGS[scalings[name]].block_shape == (0, 0)
            for name in ("delayed", "tensor", "block", "mxfp8", "nvfp4")
        }
    )


def test_C247(figures):
    """Transformer Engine's rule, quantization.py: the largest of the last steps, 448 divided by it."""
    recipe = RECIPES["delayed"]
    assert (recipe.element, recipe.gradient_element) == (E4M3, "float8_e5m2")
    history = deque([56.0], maxlen=HISTORY)
    history += [3.5] * (figures["history"] - 1)
    assert 448 / max(history) / 2 ** figures["margin"] == 8.0
    history.append(3.5)
    assert 448 / max(history) == 128.0
    figures.settle(
        margin=figures["margin"] == 0,
        history=figures["history"] == HISTORY,
        forgets_afterwards=448 / max(history) == 448 / 3.5,
    )
