"""What CUDA does and a CPU-only torch does not: rules that turn a run on ``meta`` tensors into one on a GPU.

A meta tensor has a shape, a dtype and no bytes. torch runs a whole training step on them, at once and
anywhere, but it then asks "is this tensor on CUDA?" in some forty places and takes the other road: no
autocast, dropout with a float mask, attention and RMSNorm in many small operations, optimizers one tensor at
a time. ``Card`` is a ``TorchFunctionMode``: it sees each call before torch does, answers "cuda" where
the device is asked for, and calls the operation that CUDA would have called.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._device import _device_constructors

from memkit.low_precision.sixteen_bits import FLOAT32, FLOAT32_OUTPUT, LOWER_PRECISION, PROMOTE
from memkit.program.hooks import torch_as_before
from memkit.tracing.kernels import fused_attention, kernels_on_meta
from memkit.tracing.shapes import ShapesOnly, shapes_only

aten = torch.ops.aten
META, CUDA = torch.device("meta"), torch.device("cuda", 0)
HALF = (torch.float16, torch.bfloat16)
FROM_DATA = {torch.tensor, torch.as_tensor, torch.asarray}

ANSWERS = {
    "is_available": True,
    "is_bf16_supported": True,
    "current_device": 0,
    "device_count": 1,
    "_lazy_init": None,
    "is_current_stream_capturing": False,
    "set_rng_state": None,
    "synchronize": None,
    "empty_cache": None,
    "get_device_capability": (8, 0),
    "reset_peak_memory_stats": None,
}
"""What functions of ``torch.cuda`` say of a card that nobody has chosen."""


class AnyDevice(nullcontext):
    """In place of ``torch.cuda.device``, a class, as libraries annotate with it."""

    def __init__(self, *_):
        super().__init__()


def entries(names: str) -> list:
    """Every Python entry of these ATen operations."""
    homes = (torch, torch._C._nn, Tensor, torch._C._linalg, torch._C._VariableFunctions)
    spelled = []
    for name in names.split():
        spelled += (name, f"__{name}__", f"__r{name}__") if name in ("matmul", "pow") else (name,)
    found = [getattr(home, name) for name in spelled for home in homes if hasattr(home, name)]
    linalg = [name.removeprefix("linalg_") for name in names.split() if name.startswith("linalg_")]
    return found + [getattr(torch.linalg, name) for name in linalg if hasattr(torch.linalg, name)]


def is_card(device: object) -> bool:
    """Whether a program that says ``device=`` so means the card."""
    if isinstance(device, str):
        return device.startswith("cuda")
    return getattr(device, "type", "") == "cuda" if isinstance(device, torch.device) else False


class Card(ShapesOnly):
    """Sees every call into torch; see the module's first paragraph. ``rules`` may be added to."""

    def __init__(self):
        super().__init__()
        self.casts: dict[int, tuple[Tensor, Tensor]] = {}
        rules = dict.fromkeys((Tensor.to, torch.nn.Module.to, torch._C._nn._parse_to), placed)
        rules |= dict.fromkeys(_device_constructors(), made_on_card)
        rules |= {
            Tensor.cuda: lambda card, func, args, kwargs: args[0].to(META),
            Tensor.cpu: lambda card, func, args, kwargs: (
                in_host(args[0]) if args[0].is_meta else args[0]
            ),
            Tensor.pin_memory: lambda card, func, args, kwargs: args[0],
            Tensor.device.__get__: lambda card, func, args, kwargs: (
                CUDA if args[0].is_meta else func(*args)
            ),
            Tensor.is_cuda.__get__: lambda card, func, args, kwargs: (
                torch._C.TensorBase.is_meta.__get__(args[0])
            ),
            Tensor.is_meta.__get__: lambda card, func, args, kwargs: False,
            Tensor.get_device: lambda card, func, args, kwargs: 0 if args[0].is_meta else -1,
            torch.dropout: dropout,
        }
        rules |= dict.fromkeys(
            entries("scaled_dot_product_attention"),
            lambda card, func, args, kwargs: fused_attention(*args, **kwargs),
        )
        rules |= dict.fromkeys(entries("softmax log_softmax"), softmax)
        for policy, names in (
            ("lower", LOWER_PRECISION),
            ("float32", FLOAT32),
            ("promote", PROMOTE),
        ):
            for function in entries(names):
                rules[function] = partial(cast_first, policy, rules.get(function))
        for function in entries(FLOAT32_OUTPUT):
            rules[function] = partial(autocast_output, rules.get(function))
        rules |= dict.fromkeys(
            entries("cross_entropy_loss"), partial(cross_entropy, rules[torch.log_softmax])
        )
        self.rules |= rules

    def cast(self, value: object, dtype: torch.dtype, is_remembered: bool) -> object:
        """``value`` as autocast hands it on: floating tensors in ``dtype``, all else unchanged.

        A float32 leaf that wants a gradient (a weight) is cast once and remembered.
        """
        if isinstance(value, (list, tuple)):
            return type(value)(self.cast(item, dtype, is_remembered) for item in value)
        if (
            not isinstance(value, Tensor)
            or value.dtype in (dtype, torch.float64)
            or not value.is_floating_point()
        ):
            return value
        is_weight = (
            value.requires_grad
            and value.is_leaf
            and value.dtype is torch.float32
            and not value._is_view()
        )
        if not (is_remembered and is_weight and torch.is_autocast_cache_enabled()):
            return value.to(dtype)
        if id(value) not in self.casts:
            self.casts[id(value)] = value, value.to(dtype)
        return self.casts[id(value)][1]


def is_host(device: object) -> bool:
    """Whether a program that says ``device=`` so means the host's memory."""
    return device == "cpu" or (isinstance(device, torch.device) and device.type == "cpu")


def in_host(tensor: Tensor) -> Tensor:
    """A tensor of this shape in the host's memory: one number, seen everywhere."""
    with torch._C.DisableTorchFunction():
        return torch.zeros((), dtype=tensor.dtype, device="cpu").expand(tensor.shape)


def placed(card: Card, func: Callable, args: tuple, kwargs: dict):
    """What is asked for on "cuda" is on ``meta``, and what is sent to the host is no part of the trace."""
    if func is Tensor.to and is_host(kwargs.get("device", args[1] if len(args) > 1 else None)):
        with torch._C.DisableTorchFunction():
            if args[0].is_meta:
                return in_host(args[0])
    kwargs = {name: META if is_card(value) else value for name, value in kwargs.items()}
    return func(*(META if is_card(value) else value for value in args), **kwargs)


def made_on_card(card: Card, func: Callable, args: tuple, kwargs: dict):
    """A tensor made without naming a device is made on the card, as under ``torch.set_default_device``.

    But for a number, ``torch.tensor(0.0)`` or ``torch.zeros(())``: it stays in the host's memory, where the optimizers
    keep their step counts.
    """
    device, grad = kwargs.get("device"), False
    kwargs = {
        name: value for name, value in kwargs.items() if name not in ("generator", "pin_memory")
    }
    # made in the host's memory and copied: on ``meta`` it would pass every dispatch mode
    if func in FROM_DATA:
        kwargs.pop("device", None)
        grad = kwargs.pop("requires_grad", False)
        made = func(*args, **kwargs)
        made = made.to(META) if is_card(device) or (device is None and made.dim()) else made
        return made.requires_grad_() if grad else made
    is_number = device is None and args and isinstance(args[0], (tuple, list)) and not args[0]
    goes_to_card = is_card(device) or (device is None and not is_number)
    return func(
        *args,
        **kwargs | ({"device": META} if goes_to_card else {"device": "cpu"} if is_number else {}),
    )


def dropout(card: Card, func: Callable, args: tuple, kwargs: dict):
    """One kernel with a mask of one byte a value."""
    tensor, p, is_training = (*args, *kwargs.values())
    if is_training and 0 < p < 1 and tensor.numel():
        return torch.native_dropout(tensor, p, True)[0]
    return func(*args, **kwargs)


def softmax(card: Card, func: Callable, args: tuple, kwargs: dict):
    """float16 in and float32 out is one kernel, without a cast of the input in between."""
    dtype = kwargs.get("dtype", args[2] if len(args) > 2 else None)
    if args and args[0].dtype is torch.float16 and dtype is torch.float32:
        kernel = aten._log_softmax if "log" in func.__name__ else aten._softmax
        return kernel(args[0], kwargs["dim"] if "dim" in kwargs else args[1], True)
    return func(*args, **kwargs)


def cast_first(
    policy: str, then: Callable | None, card: Card, func: Callable, args: tuple, kwargs: dict
):
    """An operation of autocast's lists: its arguments are cast first, from the last to the first, as C++ does it."""
    if torch.is_autocast_enabled("cuda"):
        wide = [
            x
            for x in (*args, *kwargs.values())
            if isinstance(x, Tensor) and x.dtype is torch.float32
        ]
        is_lower = policy == "lower" or (policy == "promote" and not wide)
        dtype = torch.get_autocast_dtype("cuda") if is_lower else torch.float32
        given = (*reversed(kwargs.values()), *reversed(args))
        cast = [card.cast(value, dtype, policy == "lower") for value in given][::-1]
        args, kwargs = tuple(cast[: len(args)]), dict(zip(kwargs, cast[len(args) :], strict=True))
    return then(card, func, args, kwargs) if then else func(*args, **kwargs)


def autocast_output(then: Callable | None, card: Card, func: Callable, args: tuple, kwargs: dict):
    """A sum of 16-bit numbers gives float32, unless a dtype is named."""
    names_dtype = kwargs.get("dtype") is not None or any(
        isinstance(value, torch.dtype) for value in args
    )
    if (
        torch.is_autocast_enabled("cuda")
        and not names_dtype
        and getattr(args[0], "dtype", None) in HALF
    ):
        kwargs = kwargs | {"dtype": torch.float32}
    return then(card, func, args, kwargs) if then else func(*args, **kwargs)


def cross_entropy(log_softmax: Callable, card: Card, func: Callable, args: tuple, kwargs: dict):
    """Made of ``log_softmax`` and ``nll_loss``, each of which autocast runs in float32."""
    names = ("input", "target", "weight", "reduction", "ignore_index", "label_smoothing")
    known = dict(zip(names, args, strict=False)) | kwargs
    logits, target = known["input"], known["target"]
    if not torch.is_autocast_enabled("cuda") or logits.dtype not in HALF:
        return func(*args, **kwargs)
    if known.get("label_smoothing") or target.is_floating_point():
        return cast_first("float32", None, card, func, args, kwargs)
    logs = log_softmax(card, torch.log_softmax, (logits, min(logits.dim() - 1, 1)), {})
    return torch._C._nn.nll_loss_nd(
        logs, target, **{name: known[name] for name in names[2:5] if name in known}
    )


@contextmanager
def pretend_cuda(make_card: Callable[[], Card] = Card) -> Iterator[Card]:
    """Inside, a CPU-only torch behaves as if it had one CUDA card, on meta tensors."""
    card, clear = make_card(), torch.clear_autocast_cache
    with ExitStack() as stack:
        stack.enter_context(torch_as_before())
        stack.enter_context(kernels_on_meta("cuda"))
        for module in (torch.nn.functional, torch.functional, torch.autograd, torch._tensor):
            for name in (
                "has_torch_function",
                "has_torch_function_unary",
                "has_torch_function_variadic",
            ):
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, lambda *_: False))
        stand_ins = [
            (torch.cuda, name, lambda *_, value=value, **__: value)
            for name, value in ANSWERS.items()
        ]
        stand_ins += [
            (torch.cuda, "device", AnyDevice),
            # An optimizer's step asks whether a graph is captured; a CUDA build without a driver fails there.
            (torch.accelerator, "current_accelerator", lambda *_, **__: None),
            (torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state()),
            (torch, "clear_autocast_cache", lambda: (card.casts.clear(), clear())),
            (
                torch.utils._foreach_utils,
                "_get_foreach_kernels_supported_devices",
                lambda: ["cuda", "meta"],
            ),
        ]
        for home, name, value in stand_ins:
            stack.enter_context(patch.object(home, name, value))
        stack.enter_context(shapes_only(card))
        yield card
