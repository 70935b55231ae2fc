"""What a device's own casts and products do: beyond a format's range, and to the precision of the inputs.

A format says which numbers exist. What becomes of a number that is too large, and how many bits of a float32
enter a matrix unit, is decided by the library and the card. So both are measured here, on the device one has.
"""

import math
from dataclasses import dataclass

import torch

from memkit.units import aligned_table

CASTS = ("float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz")
SIZE = 512


@dataclass(frozen=True)
class ProductErrors:
    """Relative error of a matrix product by how its inputs enter the unit; ``errors`` in the order measured."""

    device: str
    errors: dict[str, float]

    def table(self) -> str:
        """The errors as aligned text."""
        rows = [[name, f"{error:.2e}"] for name, error in self.errors.items()]
        return aligned_table([[f"product on {self.device}", "relative error"], *rows])

    __str__ = __repr__ = table


def cast_overflows(device: str) -> dict[str, str]:
    """What ``tensor.to(dtype)`` makes of four times the largest value: ``saturate``, ``inf`` or ``nan``, by format."""
    found = {}
    for name in CASTS:
        dtype = getattr(torch, name)
        largest = torch.finfo(dtype).max
        cast = (
            torch.tensor([4.0 * largest], dtype=torch.float64, device=device)
            .float()
            .to(dtype)
            .double()
            .item()
        )
        if name == "bfloat16":  # four times its largest value is float32's infinity
            cast = torch.tensor([3.4e38], device=device).to(dtype).double().item()
        found[name] = "nan" if math.isnan(cast) else "inf" if math.isinf(cast) else "saturate"
    return found


def product_errors(device: str, size: int = SIZE) -> ProductErrors:
    """Errors of a ``size`` x ``size`` product of normal numbers against float64, relative to its size.

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
    errors = {name: float((c.double() - exact).norm() / exact.norm()) for name, c in products.items()}
    return ProductErrors(device=device, errors=errors)
