"""Operations of a backward that write over their first argument if nobody else holds it, or allocate nothing."""

import torch
from torch import Tensor

from memkit.formula.kernels import merged

aten = torch.ops.aten
REUSES_FIRST_ARGUMENT = {
    aten.add.Tensor, aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.index_put.default,
    aten.masked_scatter.default, aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, aten.logical_and.default,
}


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their storage without gaps or overlaps."""
    walks = merged(list(zip(tensor.shape, tensor.stride(), strict=True)))
    return [stride for _, stride in walks] in ([], [1])


def is_engines_sum(maker: int | None) -> bool:
    """Whether the node that runs adds up gradients for the next one, and is no formula that adds two terms.

    ``maker`` is the number of the node that made the first summand. The engine adds to what an earlier node made; to
    what this one made only if two of its gradients go to the same place.
    """
    node = torch._C._current_autograd_node()
    goals = [edge for edge in node.next_functions if edge[0] is not None]
    return maker != node._sequence_nr() or len(set(goals)) < len(goals)


def holds_bytes(func, args: tuple) -> bool:
    """Whether torch allocates what comes out: zeros of forward mode have no memory, numpy's arrays have their own."""
    if func is aten.lift_fresh.default:
        return args[0].untyped_storage().resizable()
    return func is not aten._efficientzerotensor.default
