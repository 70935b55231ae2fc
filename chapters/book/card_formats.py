"""What a device's own casts and products do: beyond a format's range, to the precision of the inputs, and how fast.

A format says which numbers exist. What becomes of a number that is too large, how many bits of a float32 enter a
matrix unit, and what FP8 saves of its time, is decided by the library and the card. So it is measured here, on the
device one has.
"""

import math

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from memkit.units import as_whole_number

CASTS = ("float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz")
SIZE = 512


def cast_overflows(device: str) -> dict[str, str]:
    """What ``tensor.to(dtype)`` makes of four times the largest value: ``saturate``, ``inf`` or ``nan``, by format."""
    outcomes = {}
    for name in CASTS:
        dtype = getattr(torch, name)
        largest = torch.finfo(dtype).max
        # beyond bfloat16's largest, too
        beyond = min(4 * largest, torch.finfo(torch.float32).max)
        cast = torch.tensor([beyond], device=device).to(dtype).double().item()
        outcomes[name] = "nan" if math.isnan(cast) else "inf" if math.isinf(cast) else "saturate"
    return outcomes


def product_errors(device: str, size: int = SIZE) -> dict[str, float]:
    """Errors of a ``size`` x ``size`` product of normal numbers against float64, relative to its size, by inputs.

    ``tf32`` is a float32 product with ``set_float32_matmul_precision("high")``: on a card with TF32, and only
    there, its inputs lose 13 mantissa bits. The 16-bit products read 16-bit inputs and write float32 or their
    own format.
    """
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).to(device) for _ in range(2))
    exact = a.double() @ b.double()
    before, products = torch.get_float32_matmul_precision(), {}
    try:
        torch.set_float32_matmul_precision("highest")
        products["float32"] = a @ b
        torch.set_float32_matmul_precision("high")
        products["tf32"] = a @ b
    finally:
        torch.set_float32_matmul_precision(before)
    for dtype in (torch.float16, torch.bfloat16):
        products[str(dtype).removeprefix("torch.")] = a.to(dtype) @ b.to(dtype)
    return {name: float((c.double() - exact).norm() / exact.norm()) for name, c in products.items()}


def time_products(sizes: tuple[int, ...]) -> dict[int, dict[str, float]]:
    """For each size n: median seconds of an n x n product ("bf16", "fp8"), and of FP8 with both operands cast first.

    The cast is per tensor and compiled, as libraries do it: amax, factor, multiply, round.

    Raises: ValueError: a size that is no multiple of 16, no card of capability 8.9 or later.
    """
    for size in sizes:
        if as_whole_number("size", size, 16) % 16:
            raise ValueError(f"size={size} is not a multiple of 16, which FP8 products want")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        raise ValueError(
            "FP8 products need a CUDA card of compute capability 8.9 or later; there is none"
        )
    cast = torch.compile(to_fp8)

    def median_of(run):
        return Timer("run()", globals={"run": run}).blocked_autorange().median

    seconds = {}
    for size in sizes:
        a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        (a8, scale_a), (b8, scale_b) = cast(a), cast(b)
        seconds[size] = {
            "bf16": median_of(lambda a=a, b=b: a @ b.t()),
            "fp8": median_of(lambda q=(a8, scale_a), r=(b8, scale_b): multiplied(q, r)),
            "cast": median_of(lambda a=a, b=b: multiplied(cast(a), cast(b))),
        }
    return seconds


def to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 elements with one factor for the tensor, and the scale that undoes it."""
    multiplier = 448 / x.abs().amax().float()
    return (x * multiplier).clamp(-448, 448).to(torch.float8_e4m3fn), multiplier.reciprocal()


def multiplied(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
    """a b' in bf16 by torch's FP8 kernel."""
    return torch._scaled_mm(a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16)
