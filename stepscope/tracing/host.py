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

from memkit.program.doors import is_wrapper, tensors_in

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
        self.off_card: dict[int, Place] = {}
        self.watches: dict[int, weakref.ref] = {}
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
        return self.off_card.get(tensor.untyped_storage()._cdata, Place.CARD)

    def put(self, storage: torch.UntypedStorage, place: Place) -> None:
        """Note where a new storage is, for as long as it lives: the next one may get its address."""
        key = storage._cdata

        def freed(_) -> None:
            self.off_card.pop(key, None)
            self.watches.pop(key, None)

        self.off_card[key] = place
        self.watches[key] = weakref.ref(storage, freed)

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

    def together(self, values: object) -> object:
        """Arguments of an operation of the host, the real tensors among them as ``meta`` ones: torch wants one kind."""

        def without_values(tensor: Tensor) -> Tensor:
            if tensor.is_meta or tensor.dim() == 0:
                return tensor
            with self.makes(Place.HOST):
                return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)

        return tree_map_only(Tensor, without_values, values)


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
        if places.of(gradient) is place and gradient.dtype is dtype:
            return gradient, None, None, None
        with places.makes(place):
            return aten._to_copy.default(gradient, dtype=dtype, device=META), None, None, None
