"""Casts and products on a device: the CPU's against the rules by version and against rounding in numpy."""

import numpy as np
import pytest
import torch
from narrow_formats import overflow_of_torch

from book.card_formats import CASTS, cast_overflows, product_errors
from memkit.formats.rounding import round_to


def test_casts_on_the_cpu_are_those_of_this_torch():
    assert cast_overflows("cpu") == {name: overflow_of_torch(name) for name in CASTS}


def test_the_errors_of_16_bit_products_are_those_of_their_inputs_and_outputs():
    size = 96
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).numpy() for _ in range(2))
    exact = a.astype(float) @ b.astype(float)
    measured = product_errors("cpu", size)
    for name in ("float16", "bfloat16"):
        low, high = (round_to(x, name, overflow="inf").astype(float) for x in (a, b))
        rounded = round_to(low @ high, name, overflow="inf")
        error = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
        assert measured[name] == pytest.approx(error, rel=0.02)
    assert measured["float32"] < 1e-6


def test_the_precision_setting_is_put_back():
    before = torch.get_float32_matmul_precision()
    product_errors("cpu", 8)
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.gpu
def test_a_card_with_tf32_loses_13_bits_of_the_inputs():
    errors = product_errors("cuda")
    if torch.cuda.get_device_capability() >= (8, 0):
        assert errors["tf32"] > 100 * errors["float32"]
    assert set(cast_overflows("cuda").values()) <= {"inf", "nan", "saturate"}
