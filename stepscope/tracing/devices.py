"""CUDA's and the CPU's rules for programs that nobody here wrote: a host, known values, more kernels, refusals."""

import functools
import math
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _device

from memkit.formula.kernels import Stages
from memkit.program.hooks import tensors_in
from memkit.tracing.cpu import fake_cpu
from memkit.tracing.cuda import FROM_DATA, Card, pretend_cuda
from memkit.tracing.shapes import deepcopied
from memkit.units import round_up
from stepscope.tracing.card import CARD, STAND_INS, CardGenerator
from stepscope.tracing.host import META, Place, Places, place_named
from stepscope.tracing.patched import as_a_script_needs, replaced
from stepscope.tracing.ranks import one_rank
from stepscope.tracing.refusals import not_followed, refusing
from stepscope.tracing.values import MAX_BYTES, UNKNOWN, ShapesOnly, has_values, refuse, storage_of


def grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias=None, out_dtype=None
) -> Tensor:
    """Products of the groups of a mixture of experts, in any dtype, rows aligned to 16 bytes."""
    if a.dim() == b.dim():
        sizes = (len(offs) if a.dim() == 2 else a.shape[0], a.shape[-2], b.shape[-1])
    else:
        sizes = (a.shape[-2], b.shape[-1])
    dtype = out_dtype or a.dtype
    row = round_up(sizes[-1], 16 // dtype.itemsize)
    strides = (row * sizes[-2], row, 1)[-len(sizes) :]
    return torch.empty_strided(sizes, strides, dtype=dtype, device=a.device)


def ctc_loss(
    scores: Tensor, targets: Tensor, lengths, target_lengths, *_, **__
) -> tuple[Tensor, Tensor]:
    """A loss for each text, and forward variables: two and a blank a letter of a text as long as padded rows."""
    if targets.dim() != 2:
        raise not_followed("ctc_loss with targets in one row", "pad them to a row for each text")
    longest = targets.shape[1]
    length, batch, _ = scores.shape
    return scores.new_empty(batch), scores.new_empty(batch, length, 2 * longest + 1)


def ctc_loss_backward(grad: Tensor, scores: Tensor, *_, **__) -> Tensor:
    """The scores' gradient."""
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


MAY_DIFFER = (
    (
        (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu),
        "is traced as small operations; CUDA runs one of cuDNN, with a reserve",
    ),
    (
        (torch.prod, Tensor.prod, torch.cumprod, Tensor.cumprod),
        "has a backward that is traced as for factors with zeros: without one it may take less",
    ),
    (
        (torch._VF.cdist, torch.ctc_loss, torch._C._nn.im2col, torch._C._nn.col2im),
        "has a kernel that takes copies of its inputs besides, which are not in the trace",
    ),
)
"""Functions that may take another amount than traced, and what is said of each."""


def with_warning(words: str, mode, func, args, kwargs):
    """A call as it is, with a warning."""
    name = func.__name__
    mode.warn_once(name, f"{name} {words}", in_torch=True, in_report=True)
    return func(*args, **kwargs)


def four_bit_product(
    x: Tensor, codes, shape: Sequence[int], *rest, absmax_8bit=None, **_
) -> Stages:
    """The weight in the input's dtype and, where the scales are in 8 bits, the scales in float32 with their mean."""
    absmax_8bit = rest[4] if len(rest) > 4 else absmax_8bit
    wide = math.prod(shape) * x.element_size()
    if absmax_8bit is None:
        return [[wide]]
    scales = 4 * absmax_8bit.numel()
    return [[scales, scales], [scales, wide]]


CONSTRUCTORS = _device._device_constructors()

COUNTED_ON_CARD = (
    "a tensor made without device= is copied to the card, where a trace counts it from its birth; for data "
    'that stays in the host\'s memory say device="cpu" where it is made'
)


class ScriptCard(ShapesOnly, Card):
    """The kit's card beside a host, with values that are known."""

    kernels: ClassVar = {
        **Card.kernels,
        "_grouped_mm": grouped_mm,
        "mish_backward": lambda grad, x: torch.empty_like(x),
        **dict.fromkeys(("_ctc_loss", "_ctc_loss.Tensor"), ctc_loss),
        **dict.fromkeys(("_ctc_loss_backward", "_ctc_loss_backward.Tensor"), ctc_loss_backward),
    }

    def __init__(self, *, starts_in_host: bool):
        super().__init__()
        self.starts_in_host = starts_in_host
        self.unplaced: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self.places = Places()
        self.before_write: Callable[[object], None] = lambda tensor: None
        self.rules |= (of_places := rules_of_places())
        takes_any = {Tensor.backward, Tensor.requires_grad_, torch.autograd.grad}
        self.of_places = of_places.keys() | takes_any

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if kwargs and isinstance(kwargs.get("generator"), CardGenerator):
            kwargs["generator"] = None
        if self.places.off_card and func not in self.of_places and torch.is_grad_enabled():
            args = self.places.of_one_kind(args)
        kwargs = kwargs or {}
        if _device.CURRENT_DEVICE and kwargs.get("device") is None and func in CONSTRUCTORS:
            kwargs["device"] = _device.CURRENT_DEVICE  # by torch.set_default_device
        place = place_named(kwargs.get("device"))
        if place is None or place is Place.HOST:
            return super().__torch_function__(func, types, args, kwargs)
        kwargs["device"] = META
        with self.places.makes(place):
            return super().__torch_function__(func, types, args, kwargs)

    def cast(self, value: object, dtype: torch.dtype, is_remembered: bool) -> object:
        """What is in the host's memory is not cast; nothing is remembered that no backward could use."""
        if isinstance(value, Tensor) and not value.is_meta:
            return value
        return super().cast(value, dtype, is_remembered and not torch.is_inference_mode_enabled())


def rules_of_places() -> dict:
    """Which handler answers which call of torch that has to do with a place."""
    rules = {
        torch.device: _device_of_number,
        Tensor.get_device: functools.partial(_property, lambda at: 0 if at is Place.CARD else -1),
        Tensor.pin_memory: lambda mode, func, args, kwargs: args[0],
        Tensor.cuda: functools.partial(_to_place, Place.CARD),
        Tensor.cpu: functools.partial(_to_place, Place.HOST),
        Tensor.to: _to,
        Tensor.data.__set__: _set_data,
        torch._C._nn._parse_to: _parse_to,
        Tensor.copy_: lambda mode, func, args, kwargs: (  # to the host's memory: moves no values, allocates nothing
            args[0] if has_values(args[0]) and not has_values(args[1]) else func(*args, **kwargs)
        ),
        Tensor.data_ptr: _data_ptr,
        torch.empty_like: _like,
        torch.zeros_like: _like,
    }
    for functions, words in MAY_DIFFER:
        rules |= dict.fromkeys(functions, functools.partial(with_warning, words))
    rules[Tensor.device.__get__] = functools.partial(_property, lambda place: place.value)
    for name, place in zip(("is_cuda", "is_cpu", "is_meta"), Place, strict=True):
        is_there = functools.partial(operator.is_, place)
        rules[getattr(Tensor, name).__get__] = functools.partial(_property, is_there)
    rules |= dict.fromkeys((Tensor.__bool__, Tensor.__int__, Tensor.__index__), _read)
    rules |= dict.fromkeys(CONSTRUCTORS - FROM_DATA, _factory)
    return rules | dict.fromkeys(FROM_DATA, _from_data)


def _device_of_number(mode, func, args, kwargs):
    """``torch.device(0)`` is that card; a torch without one refuses it."""
    is_number = not kwargs and len(args) == 1 and place_named(args[0]) is Place.CARD
    return Place.CARD.value if is_number and isinstance(args[0], int) else func(*args, **kwargs)


def _property(of_place, mode, func, args, kwargs):
    return of_place(mode.places.of(args[0])) if args[0].is_meta else func(*args)


def _factory(mode, func, args, kwargs):
    """A tensor made without naming a device is made on the card; a script's in the host's memory, as torch does."""
    is_unplaced = kwargs.get("device") is None and not kwargs.get("pin_memory")
    if mode.starts_in_host and kwargs.get("device") != META:
        return _made_in_host(mode, func, args, kwargs)
    if is_unplaced:
        kwargs["device"] = META
    for name in ("generator", "pin_memory"):  # there is neither on meta
        kwargs.pop(name, None)
    out = func(*args, **kwargs)
    if is_unplaced and (storage := storage_of(out)) is not None:
        mode.unplaced.add(storage)
    return out


def _made_in_host(mode, func, args, kwargs):
    """Small tensors and whole numbers (a shuffled order) are real: a program reads them; large floats are not."""
    choices = {name: kwargs[name] for name in kwargs.keys() - {"generator", "pin_memory"}}
    with mode.places.makes(Place.HOST):
        tensor = func(*args, **choices | {"device": META})
    if tensor.layout is not torch.strided:
        return func(*args, **kwargs)
    is_read = tensor.nbytes <= MAX_BYTES or not (tensor.is_floating_point() or tensor.is_complex())
    kwargs.pop("pin_memory", None)  # without a card there is none to pin
    return func(*args, **kwargs) if is_read else tensor


def _like(mode, func, args, kwargs):
    """Pinned memory is the host's; without a card there is none to pin."""
    kwargs.pop("pin_memory", None)
    is_large = args[0].is_meta and args[0].nbytes > MAX_BYTES
    if is_large and place_named(kwargs.get("device")) is Place.HOST:
        with mode.places.makes(Place.HOST):
            return func(*args, **kwargs | {"device": META})
    return func(*args, **kwargs)


def _from_data(mode, func, args, kwargs):
    """A number stays in the host's memory, where the optimizers keep their step counts.

    Data for the card are made in the host's memory and copied: made on ``meta``, they would pass every dispatch mode.
    """
    goes_to_card, needs_grad = kwargs.get("device") == META, kwargs.pop("requires_grad", False)
    if goes_to_card and next(tensors_in(list(args)), None) is None:
        kwargs.pop("device")
    tensor = func(*args, **kwargs)
    if goes_to_card or not (mode.starts_in_host or "device" in kwargs or tensor.dim() == 0):
        with mode.places.makes(mode.places.making or Place.CARD):
            tensor = tensor.to(META)
    return tensor.requires_grad_() if needs_grad else tensor


def _to_place(place, mode, func, args, kwargs):
    return _to(mode, Tensor.to, (args[0], place.value), {})


def _to(mode, func, args, kwargs):
    """``tensor.to``: to another place, another dtype, both or neither; what stays is the same tensor, as in torch."""
    tensor, *rest = args
    device = kwargs.pop("device", None)
    place = mode.places.making if device == META else place_named(device)
    if rest and isinstance(rest[0], Tensor):
        place = mode.places.of(rest[0])
        rest[0] = rest[0].dtype
    elif rest and not isinstance(rest[0], torch.dtype):
        place = place_named(rest.pop(0)) or place
    if rest and rest[0] is None:
        rest[0] = tensor.dtype
    source = mode.places.of(tensor)
    if place is Place.CARD and tensor.is_meta and storage_of(tensor) in mode.unplaced:
        mode.warn_once("unplaced", COUNTED_ON_CARD)
    if place is None or place is source:
        return func(tensor, *rest or [tensor.dtype] * ("dtype" not in kwargs), **kwargs)
    if source is Place.NOWHERE:
        # torch's words: Module.to reads them
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    if not tensor.is_meta:
        with mode.places.makes(place):
            return func(tensor, META, *rest, **kwargs)
    if place is Place.HOST:
        mode.tell_no_values("cpu")
    return mode.places.moved(tensor, place, rest[0] if rest else kwargs.get("dtype"))


def _parse_to(mode, func, args, kwargs):
    """What the arguments of ``Module.to`` mean: a number is that card, on a torch that has none."""
    if kwargs.get("device") == META:
        kwargs["device"] = mode.places.making.value
    if args and isinstance(args[0], Tensor):
        args = (mode.places.of(args[0]).value, args[0].dtype, *args[1:])
    return func(*(Place.CARD.value if place_named(a) is Place.CARD else a for a in args), **kwargs)


def _read(mode, func, args, kwargs):
    """A branch or an index on what came from the card by ``.cpu()``: taken as 0, as it is where it is printed."""
    if mode.places.of(args[0]) is not Place.HOST:
        return refuse(mode, func, args, kwargs)
    answer = mode.answered(func, args, kwargs)
    return func(mode.without_values(args[0], func.__name__)) if answer is UNKNOWN else answer


def _data_ptr(mode, func, args, kwargs):
    """An address of its own, by which programs tell tied tensors."""
    tensor = args[0]
    storage = storage_of(tensor) if tensor.is_meta else None
    if storage is None:
        return func(tensor)
    return storage._cdata + tensor.storage_offset() * tensor.element_size()


def _set_data(mode, func, args, kwargs):
    """``tensor.data = other``: torch takes data of the card for a tensor of the host, but none of ``meta``."""
    tensor, data = args
    if tensor.is_meta == data.is_meta:
        mode.before_write(tensor)
        return func(tensor, data)
    needs_grad = tensor.requires_grad
    # the object stays: ties and optimizers hold it
    torch._C._swap_tensor_impl(tensor, data.detach())
    return tensor.requires_grad_(needs_grad) if needs_grad else None


@contextmanager
def pretend_cuda_for_script(*, starts_in_host: bool = False):
    """Inside, a CPU-only torch behaves as if it had one CUDA card and a host, on meta tensors.

    ``starts_in_host``: a tensor made without ``device=`` is in the host's memory and not on the card.
    """
    write = torch._tensor_str._str

    def written(tensor, **kwargs):
        with torch._C.DisableTorchFunction():
            return write(tensor, **kwargs).replace("device='meta'", f"device='{CARD}'")

    with (
        one_rank(),
        pretend_cuda(functools.partial(ScriptCard, starts_in_host=starts_in_host)) as card,
        replaced(
            *STAND_INS,
            (torch._tensor_str, "_str", written),
            (torch, "_has_compatible_shallow_copy_type", lambda *_: True),  # see _set_data
        ),
        as_a_script_needs(card),
    ):
        yield card


def not_here(what: str) -> Callable:
    """The refusal of what reads memory in C++, where a fake tensor has none."""
    return refusing(f"{what} on the CPU's rules", 'trace it with device="cuda"')


@contextmanager
def fake_cpu_for_script(tracer) -> Iterator[ShapesOnly]:
    """Inside, every new tensor is fake."""
    with (
        fake_cpu(tracer, ShapesOnly()) as mode,
        as_a_script_needs(mode),
        replaced(
            (Tensor, "_make_subclass", staticmethod(make_subclass)),
            (torch.nn.parallel.DistributedDataParallel, "__init__", not_here("DDP's reducer")),
        ),
    ):
        mode.rules[Tensor.__deepcopy__] = deepcopied
        mode.rules[torch.asarray] = from_storage
        mode.rules[torch._VF._pad_packed_sequence] = not_here("pad_packed_sequence")
        mode.rules[torch.nn.functional.ctc_loss] = not_here("ctc_loss")
        yield mode


def from_storage(_, func, args, kwargs):
    """safetensors reads weights from a mapped file, which a CPU's step then shares and does not allocate."""
    if isinstance(args[0], torch.UntypedStorage):
        raise not_followed(
            "weights in a mapped file (from_pretrained) on the CPU's rules",
            "make them by from_config",
        )
    return func(*args, **kwargs)


MAKE_SUBCLASS = Tensor._make_subclass


def make_subclass(kind: type, data: Tensor, requires_grad: bool = False, **options) -> Tensor:
    """``Tensor._make_subclass``, which refuses fake data (bitsandbytes' ``Params4bit``): a view that is fake too."""
    if not isinstance(data, FakeTensor):
        return MAKE_SUBCLASS(kind, data, requires_grad, **options)
    view = data.detach().requires_grad_(requires_grad)
    view.__class__ = type(kind.__name__, (kind, FakeTensor), {})
    return view
