"""The host's memory beside a card that is traced: large tensors there have a shape and no values either.

What a program moves to the host (FSDP's shards, an optimizer's states) it also computes with, and a trace would really
do so, in four times the model's bytes. So they are torch's own fake tensors of the CPU, which cost nothing. Where one
meets a tensor of the card, the operation is the card's.
"""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from memkit.program.doors import tensors_in
from memkit.tracing.constants import MAX_BYTES
from memkit.tracing.without_values import no_value

aten = torch.ops.aten


class HostMemory(FakeTensorMode):
    """Makes the host's tensors without values, and runs what is done with them."""

    def __init__(self):
        super().__init__(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        on_card = any(tensor.is_meta for tensor in tensors_in([args, kwargs]))
        if not on_card and getattr((kwargs or {}).get("device"), "type", "") != "meta":
            return super().__torch_dispatch__(func, types, args, kwargs)
        if func is aten.copy_.default and not args[0].is_meta:
            return args[0]  # from the card: no values move
        args, kwargs = tree_map_only(FakeTensor, as_on_card, (args, kwargs or {}))
        return func(*args, **kwargs)

    def made_by(self, factory, args, kwargs) -> Tensor:
        """What a call such as ``torch.empty`` makes; a small tensor is real."""
        with self:
            tensor = factory(*args, **kwargs)
        return factory(*args, **kwargs) if tensor.nbytes <= MAX_BYTES else tensor

    def copy_of(self, tensor: Tensor) -> Tensor:
        """What the host gets of a tensor of the card; a small one is real, NaN (0 for whole numbers) everywhere."""
        with _disable_current_modes():
            copy = torch.empty_like(as_on_card(tensor))
            if copy.nbytes <= MAX_BYTES:
                return torch.full_like(copy, no_value(copy), device="cpu")
            with self:
                return torch.empty_strided(copy.shape, copy.stride(), dtype=copy.dtype, device="cpu")


def as_on_card(tensor: Tensor) -> Tensor:
    """What an operation of the card reads of a tensor of the host: its shape and dtype."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
