"""Proofs of group D: number formats. The oracles are ml_dtypes, numpy and torch; memkit stands beside."""

import inspect
import math
from decimal import Decimal
from functools import cache

import ml_dtypes
import numpy as np
import torch
from claims.test_claims_a import ADAM_BF16, real_step, states_of

from memkit.cards import CARDS, MIN_CAPABILITY
from memkit.formats.records import FORMATS

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
LOST_IN_FP16 = float(np.finfo(np.float16).smallest_subnormal) / 2


def to_digits(value: float, digits: int) -> float:
    """``value`` with so many significant digits."""
    return float(f"{float(value):.{digits - 1}e}")


def decimal_digits(dtype: type) -> float:
    """The stored mantissa bits and the leading one, as decimal digits."""
    return (ml_dtypes.finfo(dtype).nmant + 1) * math.log10(2)


@cache
def percent_lost(dtype: type, digits: int) -> float:
    """Percent of the decimal numbers of so many digits, in three decades from one on, that change."""
    first, changed, total = 10 ** (digits - 1), 0, 0
    for decade in range(3):
        for whole in range(first, 10 * first):
            text = f"{whole}e{decade - digits + 1}"
            kept = float(np.asarray(float(text)).astype(dtype))
            changed += Decimal(f"{kept:.{digits - 1}e}") != Decimal(text)
            total += 1
    return 100 * changed / total


@cache
def adam_step(dtype: torch.dtype, gradient: float) -> tuple[float, float]:
    """Weight and second mean after one step of torch's Adam from a weight of 1."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=dtype))
    weight.grad = torch.full_like(weight, gradient)
    optimizer = torch.optim.Adam([weight])
    optimizer.step()
    return weight.item(), optimizer.state[weight]["exp_avg_sq"].item()


def gradient_through(dtype: torch.dtype, gradient: float, scale: float = 1.0) -> float:
    """The gradient of a weight in ``dtype``, scaled on the way and scaled back in float32."""
    weight = torch.ones(1, dtype=dtype, requires_grad=True)
    (weight.float() * gradient * scale).sum().backward()
    return (weight.grad.float() / scale).item()


def first_infinity(dtype: torch.dtype) -> int:
    """The smallest whole number that torch's cast turns into infinity."""
    whole = torch.arange(0, 70_000, dtype=torch.float32)
    return int(torch.isinf(whole.to(dtype).float()).nonzero()[0])


def as_capability(figure: float) -> tuple[int, ...]:
    return tuple(int(part) for part in str(figure).split("."))


def has_fields(dtype: type, name: str, *printed: int) -> bool:
    """Sign, exponent, mantissa, all bits and significant ones by ml_dtypes' own account, and memkit's record beside."""
    info, record = ml_dtypes.finfo(dtype), FORMATS[name]
    assert (record.exponent_bits, record.mantissa_bits, record.bits) == (
        info.nexp,
        info.nmant,
        info.bits,
    )
    return printed == (
        info.bits - info.nexp - info.nmant,
        info.nexp,
        info.nmant,
        info.bits,
        info.nmant + 1,
    )


def as_int(value: float, dtype: torch.dtype) -> int:
    """The bits of a value as torch stores it."""
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    return torch.tensor(value, dtype=dtype).view(whole).item()


def test_C104(figures):
    weight, second_mean = adam_step(torch.float16, figures["gradient"])
    assert second_mean == 0
    assert math.isinf(weight)
    eps = inspect.signature(torch.optim.Adam).parameters["eps"].default
    assert figures["times"] == round(figures["gradient"] / (math.sqrt(0) + eps))
    weight, second_mean = adam_step(torch.float32, figures["gradient"])
    assert second_mean > 0
    assert to_digits((1 - weight) / 1e-3, 2) == 1  # a step of one learning rate
    figures.settle(torchs_adam=math.isinf(adam_step(torch.float16, figures["gradient"])[0]))


def test_C120(figures):
    info = ml_dtypes.finfo(E4M3)
    assert figures["max"] == float(info.max) == torch.finfo(torch.float8_e4m3fn).max
    assert figures["least"] == to_digits(info.smallest_subnormal, 3)
    cast = torch.tensor(500.0).to(torch.float8_e4m3fn).item()
    release = tuple(map(int, torch.__version__.split(".")[:2]))
    if release >= (2, 13):  # pytorch/pytorch#178817
        assert cast == figures["max"]
    else:
        assert math.isnan(cast)
    assert np.isnan(np.float32(500).astype(E4M3))
    assert "float8_e4m3fnuz" in CARDS["MI300X"].dtypes
    assert figures["amd_max"] == torch.finfo(torch.float8_e4m3fnuz).max
    figures.settle(
        ml_dtypes=figures["max"] == float(info.max),
        torch=figures["max"] == torch.finfo(torch.float8_e4m3fn).max,
    )


def test_C121(figures):
    for name, dtype in (("e4m3", E4M3), ("e5m2", E5M2)):
        assert figures[f"{name}_digits"] == to_digits(decimal_digits(dtype), 2)
        # they lie evenly from 1 up to 2
        assert figures[f"{name}_values"] == 1 / float(ml_dtypes.finfo(dtype).eps)
    assert figures["e5m2_digits"] < figures["e4m3_digits"]
    figures.settle(lowest=figures["e4m3_digits"] < figures["e5m2_digits"])


# CUDA's conversions saturate: NVIDIA, CUDA Math API, FP8 structs ("relies on __NV_SATFINITE behavior"),
# https://docs.nvidia.com/cuda/archive/12.9.1/cuda-math-api/cuda_math_api/struct____nv__fp8x4__e5m2.html
def test_C123(figures):
    assert as_capability(figures["capability"]) == MIN_CAPABILITY["float8_e4m3fn"]
    assert MIN_CAPABILITY["float8_e4m3fn"] == CARDS["RTX 4090"].compute_capability
    assert any(dtype.startswith("float8") for dtype in CARDS["MI300X"].dtypes)
    assert not any(dtype.startswith("float8") for dtype in CARDS["A100 SXM 80 GB"].dtypes)
    assert set(states_of(real_step(*ADAM_BF16)).values()) == {figures["state_bytes"]}
    figures.settle(
        states_in_fp32=figures["state_bytes"] == torch.float32.itemsize,
        fp8_on_hopper=MIN_CAPABILITY["float8_e4m3fn"] <= CARDS["H100 SXM"].compute_capability,
    )
