"""Operations of a backward that write over their first argument if nobody else holds it."""

import torch
from torch import Tensor

from memkit.formula.kernels import merged

aten = torch.ops.aten
REUSES_FIRST_ARGUMENT = {
    aten.add.Tensor, aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.index_put.default,
    aten.masked_scatter.default, aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, aten.logical_and.default,
}  # fmt: skip


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their storage without gaps or overlaps."""
    walks = merged(list(zip(tensor.shape, tensor.stride(), strict=True)))
    return [stride for _, stride in walks] in ([], [1])
