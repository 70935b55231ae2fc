"""The tensors that Python can see, the largest first; a walk through the garbage collector's list.

It is the quickest way to a name for what a program holds. It does not see what only C++ holds: tensors that
autograd saved for the backward, the workspaces of libraries, the allocator's cache.
"""

import gc
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LiveTensor:
    """A tensor that owns ``num_bytes`` of memory, or the first seen of several that share it."""

    storage: int
    num_bytes: int
    shape: tuple[int, ...]
    dtype: str
    kind: str  # parameter, gradient or tensor

    def __str__(self) -> str:
        return f"{self.kind} {list(self.shape)} {self.dtype}"


def live_tensors(device: str = "cuda", besides: Iterable[LiveTensor] = ()) -> tuple[LiveTensor, ...]:
    """Every tensor on ``device`` that Python can see, each storage once, the largest first.

    ``besides`` leaves out what an earlier walk found. A parameter's gradient is asked of the parameter:
    nobody may have looked at it in Python yet.
    """
    known = {tensor.storage for tensor in besides}
    owners: dict[int, LiveTensor] = {}
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    gradients = [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    kinds = ["parameter" if isinstance(tensor, torch.nn.Parameter) else "tensor" for tensor in tensors]
    for tensor, kind in [*zip(tensors, kinds, strict=True), *((gradient, "gradient") for gradient in gradients)]:
        if tensor.device.type != device:
            continue
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # a tensor inside torch.func or a subclass has none of its own
            continue
        key = storage._cdata
        if key not in known and storage.nbytes() and (key not in owners or kind != "tensor"):
            owners[key] = LiveTensor(
                storage=key,
                num_bytes=storage.nbytes(),
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                kind=kind,
            )
    return tuple(sorted(owners.values(), key=lambda tensor: (-tensor.num_bytes, tensor.kind, tensor.shape)))


