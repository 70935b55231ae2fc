"""Seconds of a square matrix product in bf16 and in FP8 on a card, the FP8 one with its operands cast or not."""

from statistics import median

import torch
from torch import Tensor

from memkit.measuring.gpu import cuda_seconds
from memkit.units import as_whole_number

REPEATS = 20


def time_products(sizes: tuple[int, ...]) -> dict[int, dict[str, float]]:
    """For each size n: median seconds of an n x n product ("bf16", "fp8"), and of FP8 with both operands cast first.

    The cast is per tensor and compiled, as libraries do it: amax, factor, multiply, round.

    Raises: ValueError: a size that is no multiple of 16, no card of capability 8.9 or later.
    """
    for size in sizes:
        if as_whole_number("size", size, 16) % 16:
            raise ValueError(f"size={size} is not a multiple of 16, which FP8 products want")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        raise ValueError("FP8 products need a CUDA card of compute capability 8.9 or later; there is none")
    cast, seconds_of = torch.compile(to_fp8), lambda run: median(cuda_seconds(run, REPEATS))
    found = {}
    for size in sizes:
        a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        (a8, scale_a), (b8, scale_b) = cast(a), cast(b)
        found[size] = {
            "bf16": seconds_of(lambda a=a, b=b: a @ b.t()),
            "fp8": seconds_of(lambda q=(a8, scale_a), r=(b8, scale_b): multiplied(q, r)),
            "cast": seconds_of(lambda a=a, b=b: multiplied(cast(a), cast(b))),
        }
    return found


def to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 elements with one factor for the tensor, and the scale that undoes it."""
    multiplier = 448 / x.abs().amax().float()
    return (x * multiplier).clamp(-448, 448).to(torch.float8_e4m3fn), multiplier.reciprocal()


def multiplied(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
    """a b' in bf16 by torch's FP8 kernel."""
    return torch._scaled_mm(a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16)
