"""What CUDA does and a CPU-only torch does not: rules that turn a run on ``meta`` tensors into one on a GPU.

A meta tensor has a shape, a dtype and no bytes. torch runs a whole training step on them, at once and
anywhere, but it then asks "is this tensor on CUDA?" in some forty places and takes the other road: no
autocast, dropout with a float mask, attention and RMSNorm in many small operations, optimizers one tensor at
a time. ``Card`` is a ``TorchFunctionMode``: it sees each call before torch does, answers "cuda" where
the device is asked for, and calls the operation that CUDA would have called.

A kernel that splits its work over thread blocks or in passes takes buffers of its own and gives them back
before it returns. Their size follows from shapes and strides alone: ``SCRATCH`` names the function for each operation.
Each returns stages; the buffers of one stage stand together. The arithmetic of sums and sorts is
``memkit.formula.kernels``'. ``Card.kernels`` stand in for those that torch has for CUDA and not for ``meta`` tensors:
what they return, and nothing computed.

``F.scaled_dot_product_attention`` has four kernels on CUDA. Each refuses some inputs; the first in the order
of priority that is switched on (``sdpa_kernel``) and accepts the inputs runs. cuDNN's kernel, which recent
versions put first on Hopper and Blackwell, keeps the same tensors as the flash kernel and is treated as one here.

Source: flash_attn/flash_api.cpp, attention_backward.cu, sdp_utils.cpp, Indexing.cu (index_put_with_sort_kernel),
SoftMax.cu, group_norm_kernel.cu, layer_norm_kernel.cu and Blas.cpp (prepare_matrix_for_cublas) of ATen/native, for
compute capability 8.0 or later.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import ClassVar
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.utils._device import _device_constructors

from memkit.formula import kernels
from memkit.formula.kernels import INDEX_BYTES, Stages, sort_bytes, sum_buffers
from memkit.low_precision import FLOAT32, FLOAT32_OUTPUT, LOWER_PRECISION, PROMOTE
from memkit.program.hooks import torch_as_before
from memkit.tracing.shapes import ShapesOnly, shapes_only

aten = torch.ops.aten
META, CUDA = torch.device("meta"), torch.device("cuda", 0)
HALF = (torch.float16, torch.bfloat16)
FROM_DATA = {torch.tensor, torch.as_tensor, torch.asarray}

PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}
"""Products of matrices; the two factors are their last arguments."""


def reduction_buffers(x: Tensor, dims: int | Sequence[int] | None, value_bytes: int) -> Stages:
    """Scratch of a reduction of ``x`` over ``dims`` (all, if none are named)."""
    dims = [dims] if isinstance(dims, int) else dims or range(x.dim())
    names = {dim % x.dim() for dim in dims} if x.dim() else set()
    sizes = list(zip(x.shape, x.stride(), strict=True))
    reduced, kept = (
        [pair for dim, pair in enumerate(sizes) if (dim in names) == side] for side in (True, False)
    )
    return sum_buffers(reduced, kept, value_bytes) if x.numel() else []


def index_put_buffers(
    x: Tensor, indices, values: Tensor, accumulate: bool = False, *_, **__
) -> Stages:
    """Adding at indices sorts them: indices as one number, sorted, two orders, and the sort's own."""
    indexed = [index for index in indices if index is not None]
    if not accumulate or not indexed:
        return []
    shape = torch.broadcast_shapes(*(index.shape for index in indexed))
    num_indices, rows = math.prod(shape), math.prod(x.shape[: len(indexed)])
    index_bytes = num_indices * INDEX_BYTES
    copied = [] if values.is_contiguous() else [values.numel() * values.element_size()]
    return [
        [index_bytes],
        [index_bytes, *copied, *[index_bytes] * 3, sort_bytes(num_indices, rows - 1)],
    ]


def copied_factors(*factors: Tensor) -> list[int]:
    """Bytes of the factors that BLAS reads neither by rows nor by columns, and torch copies: an expanded gradient."""
    return [
        x.nbytes
        for x in factors
        if not any(
            x.stride(fast) == 1 and x.stride(slow) >= max(1, x.shape[fast])
            for fast, slow in ((-1, -2), (-2, -1))
        )
    ]


HELD_WHOLE = {
    aten.mse_loss.default: 2,
    aten.smooth_l1_loss.default: 2,
    aten.binary_cross_entropy.default: 3,
}
"""Losses that are made with all their elements; where the reduction is in their arguments."""


def bytes_of_loss(func, args: tuple, kwargs: dict | None) -> tuple[int | None, int]:
    """Bytes that a loss holds, where they are more than it has (else None), and those beside it while it is made.

    It is made with an element for each pair and then made smaller in place, which frees nothing; but for
    binary cross-entropy's, whose elements they are, there is a second tensor of all. Source:
    ATen/native/BinaryOps.cpp (``TORCH_META_FUNC(mse_loss)``), Loss.cpp and cuda/Loss.cu of torch 2.13.
    """
    if func not in HELD_WHOLE:
        return None, 0
    place = HELD_WHOLE[func]
    if (kwargs or {}).get("reduction", args[place] if len(args) > place else 1) == 0:
        return None, 0
    dtype = torch.promote_types(args[0].dtype, args[1].dtype)
    num_bytes = math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape)) * dtype.itemsize
    return num_bytes, 0 if func is aten.binary_cross_entropy.default else num_bytes


def _flash(grad_out: Tensor, q: Tensor, k: Tensor, *_, **__) -> Stages:
    batch, num_heads, *shape = q.shape
    return kernels.flash_backward_buffers(batch, num_heads, k.shape[1], *shape, q.element_size())


def _embeddings(grad: Tensor, indices: Tensor, num_weights: int, *_, **__) -> Stages:
    return kernels.embedding_backward_buffers(
        indices.numel(), num_weights, grad.shape[-1], grad.element_size(), indices.element_size()
    )


def _sums(x: Tensor, dims=None, *_, dtype=None, **__) -> Stages:
    wide = (dtype or x.dtype) in (torch.float64, torch.int64) or not x.is_floating_point()
    return reduction_buffers(x, dims, 8 if wide else 4)


def _groups(
    dy: Tensor, x, mean, deviation, weight, batch: int, channels: int, pixels, groups: int, *_
) -> Stages:
    per_channel, per_group = ([batch * each * mean.element_size()] for each in (channels, groups))
    return [per_channel * 3 + per_group * 2]


def _efficient(grad_out: Tensor, q: Tensor, *_, **__) -> Stages:
    return kernels.efficient_backward_buffers(*q.shape, q.element_size())


SUMS = aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim
SCRATCH = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient,
    **dict.fromkeys(SUMS, _sums),
    aten.linalg_vector_norm.default: lambda x, order=2, dims=None, *_, **__: _sums(x, dims),
    aten._softmax_backward_data.default: lambda dy, y, *_: [[y.nbytes]],  # dy times y
    aten._fused_rms_norm_backward.default: lambda dy, *_: [
        [] if dy.is_contiguous() else [dy.nbytes]
    ],
    aten.native_group_norm_backward.default: _groups,
    **dict.fromkeys((aten.index_put.default, aten.index_put_.default), index_put_buffers),
    aten._index_put_impl_.default: index_put_buffers,
    aten.embedding_dense_backward.default: _embeddings,
    **dict.fromkeys(PRODUCTS, lambda *factors, **__: [copied_factors(*factors[-2:])]),
}
"""Which operation takes which scratch; each function is called with the operation's arguments."""


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``F.scaled_dot_product_attention`` by the kernel that CUDA would choose; its arguments may come by name.

    Shapes: query is [B, A, S, H]; key and value are [B, K, T, H]. Raises: RuntimeError: no kernel takes the inputs.
    """
    q, k, v = query, key, value
    dtypes = q.dtype, k.dtype, v.dtype
    if len(set(dtypes)) > 1:  # torch's own check, which is made where a kernel runs
        raise RuntimeError(f"query, key and value have several dtypes: {dtypes}")
    backend = choose_backend(q, k, v, attn_mask, is_causal, enable_gqa)
    if backend == SDPBackend.FLASH_ATTENTION:
        scale = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
        head_dim, padding = q.shape[-1], -q.shape[-1] % 8
        if padding:
            q, k, v = (torch.nn.functional.pad(t, (0, padding)) for t in (q, k, v))
        out = aten._scaled_dot_product_flash_attention(
            q, k, v, dropout_p, is_causal, False, scale=scale
        )[0]
        return out[..., :head_dim] if padding else out
    if backend == SDPBackend.EFFICIENT_ATTENTION:
        keeps_sums = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
        bias = None if attn_mask is None else additive(attn_mask, q, k)
        return aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, keeps_sums, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def choose_backend(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool, enable_gqa: bool
) -> SDPBackend:
    """The first kernel in the order of priority that is switched on and accepts the inputs."""
    is_half = q.dtype in HALF
    is_dense = q.dim() == 4 and q.numel() > 0 and k.numel() > 0
    has_same_heads = q.shape[-3:-2] == k.shape[-3:-2]
    head_dim, alignment = q.shape[-1], 8 if is_half else 4
    takes_flash = is_dense and is_half and attn_mask is None and head_dim <= 256
    takes_flash &= head_dim == k.shape[-1] == v.shape[-1] and (has_same_heads or enable_gqa)
    takes_flash &= not is_causal or q.shape[-2] == k.shape[-2]
    takes_efficient = is_dense and has_same_heads and (is_half or q.dtype is torch.float32)
    takes_efficient &= head_dim % alignment == 0 and v.shape[-1] % alignment == 0
    accepts = {
        SDPBackend.FLASH_ATTENTION: takes_flash & torch._C._get_flash_sdp_enabled(),
        SDPBackend.EFFICIENT_ATTENTION: takes_efficient & torch._C._get_mem_efficient_sdp_enabled(),
        SDPBackend.MATH: torch._C._get_math_sdp_enabled(),
    }
    if takes_flash and torch._C._get_cudnn_sdp_enabled() and not any(accepts.values()):
        return SDPBackend.FLASH_ATTENTION
    for number in torch._C._get_sdp_priority_order():
        backend = SDPBackend(number)
        if accepts.get(backend):
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def additive(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """The mask as the memory-efficient kernel reads it: additive, rows padded to a multiple of 16."""
    if mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, torch.full((), -math.inf, dtype=q.dtype, device=q.device))
    length = k.shape[-2]
    if length % 16:
        mask = torch.nn.functional.pad(mask, (0, -length % 16))[..., :length]
    return mask.expand(*q.shape[:-1], length)


HOST_OUTPUTS = {aten._scaled_dot_product_efficient_attention.default: (2, 3)}
"""Results that CUDA keeps in the host's memory: the random seed and offset of the memory-efficient kernel."""

FUSED_STEPS = [f"_fused_{each}_{lr}" for each in ("sgd", "adagrad") for lr in ("", ".tensor_lr")]
"""Optimizer steps in one kernel: they write over weights and states and allocate nothing."""


def norm_in_one_kernel(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
):
    """The normalized values and, in float32, one root mean square for each row."""
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    rows = *x.shape[: x.dim() - len(normalized_shape)], *(1 for _ in normalized_shape)
    return torch.empty_like(x), x.new_empty(rows, dtype=wide)


@contextmanager
def kernels_on_meta(kernels: dict[str, Callable]) -> Iterator[None]:
    """Inside, these run on ``meta`` as one kernel each, and the fused steps of SGD run at all."""
    with torch.library._scoped_library("aten", "IMPL", "Meta") as library:
        for name, kernel in kernels.items():
            library.m.impl(name, "Meta", kernel, False)
        for name in FUSED_STEPS:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
                library.m.impl(name, "Meta", lambda *_, **__: None, False)
        yield


ANSWERS = {
    "is_available": True,
    "is_bf16_supported": True,
    "current_device": 0,
    "device_count": 1,
    "get_device_capability": (8, 0),
    "is_current_stream_capturing": False,
    "reset_peak_memory_stats": None,
    **dict.fromkeys(("_lazy_init", "set_rng_state", "synchronize", "empty_cache")),
}
"""What functions of ``torch.cuda`` say of a card that nobody has chosen."""


def entries(names: str) -> list:
    """Every Python entry of these ATen operations."""
    homes = (torch, torch._C._nn, Tensor, torch._C._linalg, torch._C._VariableFunctions)
    places = [(home, name) for name in names.split() for home in homes]
    for name in names.split():
        if name in ("matmul", "pow"):  # @ and **
            places += [(Tensor, f"__{name}__"), (Tensor, f"__r{name}__")]
        if name.startswith("linalg_"):
            places.append((torch.linalg, name.removeprefix("linalg_")))
    return [getattr(home, name) for home, name in places if hasattr(home, name)]


def is_card(device: object) -> bool:
    """Whether a program that says ``device=`` so means the card."""
    is_named = isinstance(device, str) and device.startswith("cuda")
    return is_named or (isinstance(device, torch.device) and device.type == "cuda")


def answer(of_tensor: Callable[[Tensor], object]) -> Callable:
    """A rule that looks at the tensor alone."""
    return lambda card, func, args, kwargs: of_tensor(args[0])


class Card(ShapesOnly):
    """Sees every call into torch; see the module's first paragraph. ``rules`` and ``kernels`` may be more."""

    kernels: ClassVar = {"_fused_rms_norm": norm_in_one_kernel}

    def __init__(self):
        super().__init__()
        self.casts: dict[int, tuple[Tensor, Tensor]] = {}
        rules = dict.fromkeys((Tensor.to, torch.nn.Module.to, torch._C._nn._parse_to), placed)
        rules |= dict.fromkeys(_device_constructors(), made_on_card)
        rules |= {
            Tensor.cuda: answer(lambda x: x.to(META)),
            Tensor.cpu: answer(lambda x: in_host(x) if x.is_meta else x),
            Tensor.pin_memory: answer(lambda x: x),
            Tensor.device.__get__: answer(lambda x: CUDA if x.is_meta else x.device),
            Tensor.is_cuda.__get__: answer(lambda x: x.is_meta),
            Tensor.is_meta.__get__: answer(lambda x: False),
            Tensor.get_device: answer(lambda x: 0 if x.is_meta else -1),
            torch.dropout: dropout,
        }
        attend = lambda card, func, args, kwargs: fused_attention(*args, **kwargs)
        rules |= dict.fromkeys(entries("scaled_dot_product_attention"), attend)
        rules |= dict.fromkeys(entries("softmax log_softmax"), softmax)
        policies = {"lower": LOWER_PRECISION, "float32": FLOAT32, "promote": PROMOTE}
        for policy, names in policies.items():
            for function in entries(names):
                rules[function] = partial(cast_first, policy, rules.get(function))
        for function in entries(FLOAT32_OUTPUT):
            rules[function] = partial(autocast_output, rules.get(function))
        in_two = partial(cross_entropy, rules[torch.log_softmax])
        self.rules |= rules | dict.fromkeys(entries("cross_entropy_loss"), in_two)

    def cast(self, value: object, dtype: torch.dtype, is_remembered: bool) -> object:
        """``value`` as autocast hands it on: floating tensors in ``dtype``, all else unchanged.

        A float32 leaf that wants a gradient (a weight) is cast once and remembered.
        """
        if isinstance(value, (list, tuple)):
            return type(value)(self.cast(item, dtype, is_remembered) for item in value)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if value.dtype in (dtype, torch.float64):
            return value
        is_weight = value.requires_grad and value.is_leaf and not value._is_view()
        is_weight = is_weight and value.dtype is torch.float32
        if not (is_remembered and is_weight and torch.is_autocast_cache_enabled()):
            return value.to(dtype)
        if id(value) not in self.casts:
            self.casts[id(value)] = value, value.to(dtype)
        return self.casts[id(value)][1]


def in_host(tensor: Tensor) -> Tensor:
    """A tensor of this shape in the host's memory: one number, seen everywhere."""
    with torch._C.DisableTorchFunction():
        return torch.zeros((), dtype=tensor.dtype, device="cpu").expand(tensor.shape)


def placed(card: Card, func: Callable, args: tuple, kwargs: dict):
    """What is asked for on "cuda" is on ``meta``, and what is sent to the host is no part of the trace."""
    device = kwargs.get("device", args[1] if len(args) > 1 else None)
    is_host = device == "cpu" or (isinstance(device, torch.device) and device.type == "cpu")
    if func is Tensor.to and is_host:
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
    kwargs = {name: kwargs[name] for name in kwargs if name not in ("generator", "pin_memory")}
    # made in the host's memory and copied: on ``meta`` it would pass every dispatch mode
    if func in FROM_DATA:
        kwargs.pop("device", None)
        grad = kwargs.pop("requires_grad", False)
        made = func(*args, **kwargs)
        made = made.to(META) if is_card(device) or (device is None and made.dim()) else made
        return made.requires_grad_() if grad else made
    if device is None:
        is_number = args and isinstance(args[0], (tuple, list)) and not args[0]
        kwargs["device"] = "cpu" if is_number else META
    elif is_card(device):
        kwargs["device"] = META
    return func(*args, **kwargs)


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
        given = (*args, *kwargs.values())
        is_wide = any(isinstance(x, Tensor) and x.dtype is torch.float32 for x in given)
        is_lower = policy == "lower" or (policy == "promote" and not is_wide)
        dtype = torch.get_autocast_dtype("cuda") if is_lower else torch.float32
        cast = [card.cast(value, dtype, policy == "lower") for value in given[::-1]][::-1]
        args, kwargs = tuple(cast[: len(args)]), dict(zip(kwargs, cast[len(args) :], strict=True))
    return then(card, func, args, kwargs) if then else func(*args, **kwargs)


def autocast_output(then: Callable | None, card: Card, func: Callable, args: tuple, kwargs: dict):
    """A sum of 16-bit numbers gives float32, unless a dtype is named."""
    named = [value for value in (*args, kwargs.get("dtype")) if isinstance(value, torch.dtype)]
    is_half = getattr(args[0], "dtype", None) in HALF
    if torch.is_autocast_enabled("cuda") and is_half and not named:
        kwargs = kwargs | {"dtype": torch.float32}
    return then(card, func, args, kwargs) if then else func(*args, **kwargs)


def cross_entropy(log_softmax: Callable, card: Card, func: Callable, args: tuple, kwargs: dict):
    """Made of ``log_softmax`` and ``nll_loss``, each of which autocast runs in float32."""
    names = ("input", "target", "weight", "reduction", "ignore_index", "label_smoothing")
    known = dict(zip(names, args, strict=False)) | kwargs
    logits, target = known["input"], known["target"]
    # what is no tensor has a loss of its own
    is_cast = torch.is_autocast_enabled("cuda") and isinstance(logits, Tensor)
    if not is_cast or logits.dtype not in HALF:
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
    card, clear, foreach = make_card(), torch.clear_autocast_cache, torch.utils._foreach_utils
    with ExitStack() as stack:
        stack.enter_context(torch_as_before())
        stack.enter_context(kernels_on_meta(card.kernels))
        for module in (torch.nn.functional, torch.functional, torch.autograd, torch._tensor):
            for kind in ("", "_unary", "_variadic"):
                if hasattr(module, name := f"has_torch_function{kind}"):
                    stack.enter_context(patch.object(module, name, lambda *_: False))
        stand_ins = [
            (torch.cuda, name, lambda *_, value=value, **__: value)
            for name, value in ANSWERS.items()
        ]
        stand_ins += [
            (torch.cuda, "device", nullcontext),  # a class, as libraries annotate with it
            (torch.cuda, "device_of", nullcontext),
            # An LSTM would have its weights laid side by side by the real cuDNN.
            (torch.backends.cudnn, "is_acceptable", lambda *_: False),
            # An optimizer's step asks whether a graph is captured; a CUDA build without a driver fails there.
            (torch.accelerator, "current_accelerator", lambda *_, **__: None),
            (torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state()),
            (torch, "clear_autocast_cache", lambda: (card.casts.clear(), clear())),
            (foreach, "_get_foreach_kernels_supported_devices", lambda: ["cuda", "meta"]),
        ]
        for home, name, value in stand_ins:
            stack.enter_context(patch.object(home, name, value))
        stack.enter_context(shapes_only(card))
        yield card
