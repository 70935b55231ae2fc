"""Checkpoints of tensors without values: what a traced program saves it can load again, with shapes and places.

A file has of each storage its size and its place, so that a model of any size is saved in a few kilobytes; tensors
that share a storage share it again. A checkpoint of a real run is loaded as it is: what ``map_location`` sends to the
card is on the trace's card.
"""

import json
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from memkit.program.hooks import PLAIN
from stepscope.tracing.host import META, Place, place_named

MODES: list = []
"""The card, or the CPU, of the trace that runs."""


class Held:
    """A storage as it is pickled: without bytes."""

    def __init__(self, storage: torch.UntypedStorage, place: Place):
        self.storage, self.place = storage, place

    def __reduce__(self):
        return held_again, (self.storage.nbytes(), self.place.name)


def held_again(num_bytes: int, place_name: str) -> Held:
    """A new storage of this size, at its place or where ``torch.load(map_location=...)`` sends it."""
    place, wanted = Place[place_name], torch.serialization._serialization_tls.map_location
    if isinstance(wanted, dict):
        wanted = wanted.get(str(place.value), place.value)
    if callable(wanted) and not isinstance(wanted, type):
        stand_in = wanted(torch.UntypedStorage(0), str(place.value))
        place = Place.HOST if stand_in is None or stand_in.device.type == "cpu" else Place.CARD
    else:
        place = place_named(wanted) or place
    places = getattr(MODES[-1], "places", None) if MODES else None
    if places is None:
        whole = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
        return Held(whole.untyped_storage(), Place.HOST)
    with places.makes(place), torch._C.DisableTorchFunction():
        return Held(torch.empty(num_bytes, dtype=torch.uint8, device=META).untyped_storage(), place)


def tensor_again(
    held: Held, dtype: torch.dtype, shape, stride, offset: int, requires_grad: bool
) -> Tensor:
    """A tensor in a storage."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        device = held.storage.device
        if device == META:
            empty = torch.empty(0, dtype=dtype, device=META)
            tensor = empty.set_(held.storage, offset, shape, stride)
        else:
            tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    return tensor.requires_grad_() if requires_grad else tensor


def reduced(reduce: Callable, mode) -> Callable:
    """``Tensor.__reduce_ex__``, for pickle, of tensors without values."""
    # a pickler keeps what it has written
    held: weakref.WeakValueDictionary[int, Held] = weakref.WeakValueDictionary()

    def reduce_tensor(tensor: Tensor, protocol: int):
        with torch._C.DisableTorchFunction():
            is_plain = type(tensor) in PLAIN and tensor.layout is torch.strided
            if is_plain and (tensor.is_meta or isinstance(tensor, FakeTensor)):
                storage = tensor.untyped_storage()
                at = mode.places.of(tensor) if hasattr(mode, "places") else Place.HOST
                one = held.setdefault(storage._cdata, Held(storage, at))
                place = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
                return tensor_again, (one, tensor.dtype, *place, tensor.requires_grad)
        return reduce(tensor, protocol)

    return reduce_tensor


def on_card(storage: torch.UntypedStorage, *_, **__) -> torch.UntypedStorage:
    """A real storage, copied to the trace's card."""
    if storage.device == META:
        return storage
    whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
    return whole.to("cuda").untyped_storage()


def restored(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
    """What is loaded to the card is on the trace's; None for any other place, as ``register_package`` has it."""
    return on_card(storage) if place_named(location) is Place.CARD else None


DATA_PTR = torch.UntypedStorage.data_ptr


def address(storage: torch.UntypedStorage) -> int:
    """``data_ptr`` of a storage without bytes: one of its own, by which tied tensors are told and read once."""
    return storage._cdata if storage.device == META else DATA_PTR(storage)


def unflattened(tensors: Mapping[str, Tensor], *_) -> Mapping[str, Tensor]:
    """In place of safetensors' views of values: the tensors themselves."""
    return tensors


def write_safetensors(
    tensors: Mapping[str, Tensor], filename, metadata: Mapping | None = None
) -> None:
    """The file that safetensors would write: its header, and a hole of the size of the values."""
    names = {dtype: name for name, dtype in sys.modules["safetensors.torch"]._TYPES.items()}
    end, header = 0, {"__metadata__": dict(metadata)} if metadata else {}
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(filename, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


@contextmanager
def saved_without_values(mode) -> Iterator[None]:
    """Inside, ``torch.save`` and pickle write shapes, and ``torch.load`` knows the trace's card."""
    with (
        torch.serialization.safe_globals([held_again, tensor_again]),
        patch.object(Tensor, "__reduce_ex__", reduced(Tensor.__reduce_ex__, mode)),
    ):
        MODES.append(mode)
        try:
            if not hasattr(mode, "places"):  # the CPU's rules have no card
                yield
                return
            packages = [(0, lambda storage: None, restored), *torch.serialization._package_registry]
            with (
                patch.object(torch.serialization, "_package_registry", packages),
                patch.object(torch.UntypedStorage, "data_ptr", address),
                patch.object(torch.UntypedStorage, "cuda", on_card),
            ):
                yield
        finally:
            MODES.pop()
