"""What CUDA does and a CPU-only torch does not: rules that turn a run on ``meta`` tensors into one on a GPU.

A meta tensor has a shape, a dtype and no bytes. torch runs a whole training step on them, at once and
anywhere, but it then asks "is this tensor on CUDA?" in some forty places and takes the other road: no
autocast, dropout with a float mask, attention and RMSNorm in many small operations, optimizers one tensor at
a time. ``CudaRules`` is a ``TorchFunctionMode``: it sees each call before torch does, answers "cuda" where
the device is asked for, and calls the operation that CUDA would have called.
"""

import functools
import weakref
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._device import _device_constructors

from memkit.low_precision.autocast import FLOAT32, FLOAT32_OUTPUT, LOWER_PRECISION, PROMOTE
from memkit.program.as_before import torch_as_before
from memkit.program.doors import tensors_in
from memkit.tracing.card import CARD, STAND_INS, CardGenerator
from memkit.tracing.cuda_kernels import TOLD, fused_attention, kernels_on_meta, told
from memkit.tracing.host import META, Place, Places, place_named
from memkit.tracing.known import MAX_BYTES
from memkit.tracing.patched import shapes_only
from memkit.tracing.ranks import one_rank
from memkit.tracing.without_values import ShapesOnly, has_values, refuse, storage_key

aten = torch.ops.aten

COUNTED_ON_CARD = (
    "a tensor made without device= is copied to the card, where a trace counts it from its birth; for data "
    'that stays in the host\'s memory say device="cpu" where it is made'
)


def autocast_cast(value: object, dtype: torch.dtype, cache: dict | None) -> object:
    """``value`` as autocast hands it on: floating tensors of the card in ``dtype``, all else unchanged.

    A float32 leaf that wants a gradient (a weight) is cast once and remembered in ``cache``, but not in
    inference mode, whose tensors no later backward could use (pytorch/pytorch#165068, from torch 2.11 on).
    """
    if isinstance(value, (list, tuple)):
        return type(value)(autocast_cast(item, dtype, cache) for item in value)
    if not isinstance(value, Tensor) or value.dtype is dtype or not value.is_floating_point():
        return value
    if value.dtype is torch.float64 or not value.is_meta:
        return value
    is_weight = (
        value.requires_grad and value.is_leaf and value.dtype is torch.float32 and not value._is_view()
    )
    if cache is None or not is_weight or torch.is_inference_mode_enabled():
        return value.to(dtype)
    if id(value) not in cache:
        cache[id(value)] = (value, value.to(dtype))
    return cache[id(value)][1]


class CudaRules(ShapesOnly):
    """Sees every call into torch; see the module's first paragraph."""

    def __init__(self, *, starts_in_host: bool):
        super().__init__()
        self.rules |= _rules()
        self.starts_in_host = starts_in_host
        self.weight_casts: dict[int, tuple[Tensor, Tensor]] = {}
        self.unplaced: dict[int, weakref.ref] = {}
        self.places = Places()
        self.before_write: Callable[[object], None] = lambda tensor: None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if kwargs and isinstance(kwargs.get("generator"), CardGenerator):
            kwargs["generator"] = None
        place = place_named(kwargs.get("device")) if kwargs else None
        if place is None or place is Place.HOST:
            return super().__torch_function__(func, types, args, kwargs)
        kwargs["device"] = META
        with self.places.makes(place):
            return super().__torch_function__(func, types, args, kwargs)

    def cast(self, policy: str, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments as CUDA's autocast hands them to an operation of ``policy``."""
        lower = torch.get_autocast_dtype("cuda")
        dtype, cache = torch.float32, None
        if policy == "lower":
            dtype = lower
            cache = self.weight_casts if torch.is_autocast_cache_enabled() else None
        elif policy == "promote":
            tensors = [
                t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.is_floating_point()
            ]
            dtype = torch.float32 if any(t.dtype is torch.float32 for t in tensors) else lower
        # C++ evaluates a call's casts from the last argument to the first; the backward reverses the order.
        casts = [
            autocast_cast(value, dtype, cache) for value in (*reversed(kwargs.values()), *reversed(args))
        ][::-1]
        return tuple(casts[: len(args)]), dict(zip(kwargs, casts[len(args) :], strict=True))


def _rules() -> dict:
    """Which handler answers which call of torch."""
    rules = {
        Tensor.get_device: lambda mode, func, args, kwargs: 0 if mode.places.of(args[0]) is Place.CARD else -1,
        Tensor.pin_memory: lambda mode, func, args, kwargs: args[0],
        Tensor.cuda: lambda mode, func, args, kwargs: _to(mode, Tensor.to, (args[0], Place.CARD.value), {}),
        Tensor.to: _to,
        Tensor.data.__set__: _set_data,
        torch._C._nn._parse_to: _parse_to,
        Tensor.copy_: lambda mode, func, args, kwargs: (  # to the host's memory: moves no values, allocates nothing
            args[0] if has_values(args[0]) and not has_values(args[1]) else func(*args, **kwargs)),
        Tensor.cpu: lambda mode, func, args, kwargs: _to(mode, Tensor.to, (args[0], Place.HOST.value), {}),
        torch.empty_like: _like,
        torch.zeros_like: _like,
        torch.dropout: _dropout,
    }
    rules |= dict.fromkeys(TOLD, told)
    rules[Tensor.device.__get__] = functools.partial(_property, lambda place: place.value)
    for name, place in (("is_cuda", Place.CARD), ("is_cpu", Place.HOST), ("is_meta", Place.NOWHERE)):
        rules[getattr(Tensor, name).__get__] = functools.partial(_property, lambda at, place=place: at is place)
    rules |= dict.fromkeys((Tensor.__bool__, Tensor.__int__, Tensor.__index__), _read)
    from_data = {torch.tensor, torch.as_tensor, torch.asarray}
    rules |= dict.fromkeys(_device_constructors() - from_data, _factory) | dict.fromkeys(
        from_data, _from_data
    )
    for function in _named("scaled_dot_product_attention"):
        rules[function] = lambda mode, func, args, kwargs: fused_attention(*args, **kwargs)
    for function in (*_named("softmax"), *_named("log_softmax")):
        rules[function] = _softmax
    for policy, names in (("lower", LOWER_PRECISION), ("float32", FLOAT32), ("promote", PROMOTE)):
        for function in (function for name in names.split() for function in _named(name)):
            rules[function] = functools.partial(_autocast, policy, rules.get(function))
    for function in (function for name in FLOAT32_OUTPUT.split() for function in _named(name)):
        rules[function] = functools.partial(_autocast_output, rules.get(function))
    rules |= dict.fromkeys(
        _named("cross_entropy_loss"), functools.partial(_cross_entropy, rules[torch.log_softmax])
    )
    return rules


def _property(of_place, mode, func, args, kwargs):
    return of_place(mode.places.of(args[0])) if args[0].is_meta else func(*args)


def _factory(mode, func, args, kwargs):
    """A tensor made without naming a device is made on the card, as under ``torch.set_default_device``.

    A script's is made in the host's memory, as torch does.
    """
    is_unplaced = kwargs.get("device") is None and not kwargs.get("pin_memory")
    if mode.starts_in_host and kwargs.get("device") != META:
        return _made_in_host(mode, func, args, kwargs)
    if is_unplaced:
        kwargs["device"] = META
    for name in ("generator", "pin_memory"):  # there is neither on meta
        kwargs.pop(name, None)
    out = func(*args, **kwargs)
    if is_unplaced and storage_key(out):
        mode.unplaced[storage_key(out)] = weakref.ref(out.untyped_storage())
    return out


def _made_in_host(mode, func, args, kwargs):
    """Small tensors and whole numbers (a shuffled order) are real: a program reads them; large floats are not."""
    of_card = {name: value for name, value in kwargs.items() if name not in ("generator", "pin_memory")}
    with mode.places.makes(Place.HOST):
        tensor = func(*args, **of_card | {"device": META})
    is_read = tensor.nbytes <= MAX_BYTES or not (tensor.is_floating_point() or tensor.is_complex())
    kwargs.pop("pin_memory", None)  # without a card there is none to pin
    return func(*args, **kwargs) if is_read else tensor


def _like(mode, func, args, kwargs):
    """Pinned memory is the host's; without a card there is none to pin."""
    kwargs.pop("pin_memory", None)
    if place_named(kwargs.get("device")) is Place.HOST and args[0].is_meta and args[0].nbytes > MAX_BYTES:
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
    made_here = mode.unplaced.get(storage_key(tensor)) if place is Place.CARD and tensor.is_meta else None
    if made_here and made_here() is not None:  # the address of one that is gone may be another's now
        mode.warn_once("unplaced", COUNTED_ON_CARD)
    if place is None or place is source:
        return func(tensor, *rest or [tensor.dtype] * ("dtype" not in kwargs), **kwargs)
    if source is Place.NOWHERE:
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")  # torch's words: Module.to reads them
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
    mode.known.num_questions += 1
    tensor = args[0]
    if mode.places.of(tensor) is not Place.HOST or has_values(tensor) or mode.known.value_of(tensor) is not None:
        return refuse(mode, func, args, kwargs)
    number = mode.known.assumptions.here()
    return func(mode.without_values(tensor, func.__name__) if number is None else torch.tensor(number))


def _set_data(mode, func, args, kwargs):
    """``tensor.data = other``: torch takes data of the card for a tensor of the host, but none of ``meta``."""
    tensor, data = args
    if tensor.is_meta == data.is_meta:
        mode.before_write(tensor)
        return func(tensor, data)
    needs_grad = tensor.requires_grad
    torch._C._swap_tensor_impl(tensor, data.detach())  # the object stays: ties and optimizers hold it
    return tensor.requires_grad_(needs_grad) if needs_grad else None


def _dropout(mode, func, args, kwargs):
    """One kernel with a mask of one byte a value."""
    tensor, p, is_training = (*args, *kwargs.values())
    if is_training and 0 < p < 1 and tensor.is_meta and tensor.numel():
        return torch.native_dropout(tensor, p, True)[0]
    return func(*args, **kwargs)


def _softmax(mode, func, args, kwargs):
    """float16 in and float32 out is one kernel, without a cast of the input in between."""
    dtype = kwargs.get("dtype", args[2] if len(args) > 2 else None)
    if args and args[0].is_meta and args[0].dtype is torch.float16 and dtype is torch.float32:
        kernel = aten._log_softmax if func in _named("log_softmax") else aten._softmax
        return kernel(args[0], kwargs["dim"] if "dim" in kwargs else args[1], True)
    return func(*args, **kwargs)


def _cross_entropy(log_softmax, mode, func, args, kwargs):
    """Made of ``log_softmax`` and ``nll_loss``, each of which autocast runs in float32."""
    names = ("input", "target", "weight", "reduction", "ignore_index", "label_smoothing")
    arguments = dict(zip(names, args, strict=False)) | kwargs
    logits, target = arguments["input"], arguments["target"]
    if not torch.is_autocast_enabled("cuda") or not is_lower_precision(logits):
        return func(*args, **kwargs)
    if arguments.get("label_smoothing") or target.is_floating_point():
        return _autocast("float32", None, mode, func, args, kwargs)
    logs = log_softmax(mode, torch.log_softmax, (logits, min(logits.dim() - 1, 1)), {})
    rest = {name: arguments[name] for name in names[2:5] if name in arguments}
    return torch._C._nn.nll_loss_nd(logs, target, **rest)


def _autocast(policy, then, mode, func, args, kwargs):
    if torch.is_autocast_enabled("cuda"):
        args, kwargs = mode.cast(policy, args, kwargs)
    return then(mode, func, args, kwargs) if then else func(*args, **kwargs)


def _autocast_output(then, mode, func, args, kwargs):
    names_dtype = kwargs.get("dtype") is not None or any(isinstance(value, torch.dtype) for value in args)
    if (
        torch.is_autocast_enabled("cuda")
        and not names_dtype
        and is_lower_precision(args[0] if args else None)
    ):
        kwargs = kwargs | {"dtype": torch.float32}
    return then(mode, func, args, kwargs) if then else func(*args, **kwargs)


def is_lower_precision(value: object) -> bool:
    """Whether this is a tensor of 16-bit floating-point numbers."""
    return isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _named(name: str) -> list:
    """Every Python entry of the ATen operation ``name``."""
    homes = (torch, torch._C._nn, Tensor, torch._C._linalg, torch._C._VariableFunctions)
    names = (name, f"__{name}__", f"__r{name}__") if name in ("matmul", "pow") else (name,)
    places = [(home, spelling) for home in homes for spelling in names]
    places.append((torch.linalg, name.removeprefix("linalg_") if name.startswith("linalg_") else ""))
    return [getattr(home, spelling) for home, spelling in places if hasattr(home, spelling)]


@contextmanager
def pretend_cuda(*, starts_in_host: bool = False):
    """Inside, a CPU-only torch behaves as if it had one CUDA card, on meta tensors.

    ``starts_in_host``: a tensor made without ``device=`` is in the host's memory and not on the card.
    """
    mode = CudaRules(starts_in_host=starts_in_host)
    torch_modules = (torch.nn.functional, torch.functional, torch.autograd, torch._tensor)
    clear_cache, write = torch.clear_autocast_cache, torch._tensor_str._str

    def clear():
        mode.weight_casts.clear()
        clear_cache()

    def written(tensor, **kwargs):
        with torch._C.DisableTorchFunction():
            return write(tensor, **kwargs).replace("device='meta'", f"device='{CARD}'")

    with ExitStack() as stack:
        stack.enter_context(torch_as_before())
        stack.enter_context(one_rank())
        stack.enter_context(kernels_on_meta("cuda"))
        for module in torch_modules:
            for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, lambda *_: False))
        own = (
            (torch._tensor_str, "_str", written),
            (torch, "clear_autocast_cache", clear),
            (torch, "_has_compatible_shallow_copy_type", lambda *_: True),  # see _set_data
        )
        for home, name, value in (*STAND_INS, *own):
            stack.enter_context(patch.object(home, name, value))
        stack.enter_context(shapes_only(mode))
        yield mode
