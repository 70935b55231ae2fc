"""Where a tensor without values is: on the card, in the host's memory, or nowhere.

For every trace by CUDA's rules. A tensor of the card is one of torch's ``meta`` tensors, which have a shape and no
bytes. So is a large tensor of the host (the weights before ``model.to("cuda")``, the states of an optimizer that works
there), and one that a program makes on ``meta`` itself. What tells them apart is a note beside the storage. To torch
they are of one kind, so that moving a module is what it always is, ``parameter.data = moved``: the parameter stays the
same object, whoever else holds it (a tied layer, a view, a deep copy, an optimizer).
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from memkit.program.hooks import PLAIN, is_wrapper, tensors_in

aten = torch.ops.aten
META = torch.device("meta")


class Place(Enum):
    """Where a tensor is, by the device that a program is told."""

    CARD = torch.device("cuda", 0)
    HOST = torch.device("cpu")
    NOWHERE = META


def place_named(device: object) -> Place | None:
    """The place that a program means by ``device=``; None where it names none."""
    if device is None:
        return None
    if isinstance(device, int) and not isinstance(device, bool):
        return Place.CARD
    kind = device.partition(":")[0] if isinstance(device, str) else getattr(device, "type", "")
    return {"cuda": Place.CARD, "cpu": Place.HOST, "meta": Place.NOWHERE}.get(kind)


class Places:
    """Remembers which storages are not on the card."""

    def __init__(self):
        self.off_card = weakref.WeakKeyDictionary()  # the place of a storage, as long as it lives
        self.making: Place | None = None

    def of(self, tensor: Tensor) -> Place:
        """Where a tensor is; a real one is in the host's memory, a DTensor where its local tensor is."""
        if is_wrapper(tensor):
            tensor = next(tensors_in(tensor))
        if not tensor.is_meta:
            return Place.HOST
        if not self.off_card or tensor.layout is not torch.strided:
            return Place.CARD
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return Place.CARD
        return self.off_card.get(tensor.untyped_storage(), Place.CARD)

    @contextmanager
    def makes(self, place: Place) -> Iterator[None]:
        """Inside, whatever an operation makes is at this place."""
        before, self.making = self.making, place
        try:
            yield
        finally:
            self.making = before

    def of_result(self, args: tuple, kwargs: dict | None) -> Place:
        """Where an operation puts its result: on the card, if it is given anything that is there."""
        if self.making is not None:
            return self.making
        if not self.off_card:
            return Place.CARD
        places = {self.of(tensor) for tensor in tensors_in([args, kwargs]) if tensor.is_meta}
        if not places or Place.CARD in places:
            return Place.CARD
        return Place.HOST if Place.HOST in places else Place.NOWHERE

    def moved(self, tensor: Tensor, place: Place, dtype: torch.dtype | None = None) -> Tensor:
        """A copy at another place, and in another dtype. Its gradient comes back the same road."""
        return Moved.apply(tensor, self, place, dtype or tensor.dtype)

    def together(self, values: object, with_numbers: bool = False) -> object:
        """Arguments of an operation of the host, the real tensors among them as ``meta`` ones: torch wants one kind.

        A number may be of another, but ``with_numbers``: where it is stacked with others.
        """

        def without_values(tensor: Tensor) -> Tensor:
            if tensor.is_meta or (tensor.dim() == 0 and not with_numbers):
                return tensor
            with self.makes(Place.HOST):
                return torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META
                )

        return tree_map_only(Tensor, without_values, values)

    def of_one_kind(self, args: tuple) -> tuple:
        """Arguments of the host, those that want a gradient without values too where a large one has none."""
        if not any(t.is_meta and self.of(t) is Place.HOST for t in tensors_in(args)):
            return args

        def without_values(item: object) -> object:
            if isinstance(item, (list, tuple)) and type(item) in (list, tuple):
                return type(item)(map(without_values, item))
            is_real = type(item) in PLAIN and not item.is_meta
            return OfOneKind.apply(item, self) if is_real and item.requires_grad else item

        return tuple(map(without_values, args))


class OfOneKind(torch.autograd.Function):
    """A small tensor of the host without its values, for an operation with a large one; its gradient is a real one."""

    @staticmethod
    def forward(ctx, tensor: Tensor, places: Places) -> Tensor:
        ctx.shape, ctx.dtype = tensor.shape, tensor.dtype
        return places.together(tensor, with_numbers=True)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple:
        return torch.ones(ctx.shape, dtype=ctx.dtype, device="cpu"), None


class Moved(torch.autograd.Function):
    """A copy between card and host, which autograd follows in both directions."""

    @staticmethod
    def forward(ctx, tensor: Tensor, places: Places, place: Place, dtype: torch.dtype) -> Tensor:
        ctx.back = places, places.of(tensor), tensor.dtype
        with places.makes(place):
            return aten._to_copy.default(tensor, dtype=dtype, device=META)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple:
        places, place, dtype = ctx.back
        # without this the card would be asked where the gradient is
        with torch._C.DisableTorchFunction(), places.makes(place):
            if places.of(gradient) is place and gradient.dtype is dtype:
                return gradient, None, None, None
            return aten._to_copy.default(gradient, dtype=dtype, device=META), None, None, None
