"""What CUDA does and a CPU-only torch does not: the rules that turn a run on ``meta`` tensors into a run on a GPU.

A meta tensor has a shape, a dtype and no bytes. torch runs a whole training step on them, at once and anywhere, but it
then asks "is this tensor on CUDA?" in some forty places and takes the other road: no autocast, dropout with a float
mask, attention and RMSNorm in many small operations, optimizers one tensor at a time. ``CudaRules`` is a
``TorchFunctionMode``: it sees each call before torch does, answers "cuda" where the device is asked for, and calls the
operation that CUDA would have called.
"""

import functools
import math
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._device import _device_constructors

from memkit.shapes_only import ShapesOnly, has_values, shapes_only

aten = torch.ops.aten
CARD = torch.device("cuda", 0)
META = torch.device("meta")

# Autocast's policies, from ATen/autocast_mode.h. An operation in none of the lists runs in the dtype of its inputs.
LOWER_PRECISION = """_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul
    linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    _scaled_dot_product_flash_attention scaled_dot_product_attention""".split()
"""Run in float16 or bfloat16: the inputs are cast down, and a weight's cast is kept until autocast is left."""

FLOAT32 = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm
    native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
    margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
    binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d
    upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa""".split()
"""Run in float32: the inputs are cast up."""

FLOAT32_OUTPUT = """prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum norm""".split()
"""Asked for a float32 result (``dtype=``) where the caller names no dtype."""

PROMOTE = """addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add""".split()
"""Run in the widest dtype among the inputs."""


def on_card(device: object) -> object:
    """``meta`` for whatever names a CUDA device, anything else unchanged."""
    if isinstance(device, int) and not isinstance(device, bool):
        return META
    if isinstance(device, str) and device.startswith("cuda") or getattr(device, "type", "") == "cuda":
        return META
    return device


def autocast_cast(value: object, dtype: torch.dtype, cache: dict | None) -> object:
    """``value`` as autocast hands it on: floating tensors of the card in ``dtype``, all else unchanged.

    A float32 leaf that wants a gradient (a weight) is cast once and remembered in ``cache``.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(autocast_cast(item, dtype, cache) for item in value)
    if not isinstance(value, Tensor) or value.dtype is dtype or not value.is_floating_point():
        return value
    if value.dtype is torch.float64 or not value.is_meta:
        return value
    is_weight = value.requires_grad and value.is_leaf and value.dtype is torch.float32 and not value._is_view()
    if cache is None or not is_weight:
        return value.to(dtype)
    if id(value) not in cache:
        cache[id(value)] = (value, value.to(dtype))
    return cache[id(value)][1]


class CudaRules(ShapesOnly):
    """Sees every call into torch; see the module's first paragraph."""

    def __init__(self):
        super().__init__()
        self.rules |= _rules()
        self.weight_casts: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if kwargs and "device" in kwargs:
            kwargs["device"] = on_card(kwargs["device"])
        return super().__torch_function__(func, types, args, kwargs)

    def cast(self, policy: str, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments as CUDA's autocast hands them to an operation of ``policy``."""
        lower = torch.get_autocast_dtype("cuda")
        dtype, cache = torch.float32, None
        if policy == "lower":
            dtype = lower
            cache = self.weight_casts if torch.is_autocast_cache_enabled() else None
        elif policy == "promote":
            tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.is_floating_point()]
            dtype = torch.float32 if any(t.dtype is torch.float32 for t in tensors) else lower
        return autocast_cast(args, dtype, cache), {k: autocast_cast(v, dtype, cache) for k, v in kwargs.items()}


def _rules() -> dict:
    """What to do at which call."""
    rules = {}

    def rule(*functions):
        def register(handler):
            rules.update(dict.fromkeys([f for f in functions if f is not None], handler))
            return handler

        return register

    def plain(handler):
        """A rule that needs neither the mode nor the function."""
        return lambda mode, func, args, kwargs: handler(*args, **kwargs)

    getters = {"device": CARD, "is_cuda": True, "is_meta": False}
    for name, answer in getters.items():
        getter = getattr(Tensor, name).__get__

        def get(mode, func, args, kwargs, getter=getter, answer=answer):
            return answer if args[0].is_meta else getter(*args)

        rules[getter] = get

    rule(Tensor.get_device)(plain(lambda tensor: 0 if tensor.is_meta else -1))
    rule(Tensor.pin_memory)(plain(lambda tensor, *_, **__: tensor))
    rule(Tensor.cuda)(plain(lambda tensor, *_, **__: tensor.to(META)))

    factories = _device_constructors() - {torch.tensor, torch.as_tensor, torch.asarray}

    @rule(*factories)
    def factory(mode, func, args, kwargs):
        if kwargs.get("device") is None:
            kwargs["device"] = META
        kwargs.pop("generator", None)
        return func(*args, **kwargs)

    @rule(torch.tensor, torch.as_tensor, torch.asarray)
    def from_data(mode, func, args, kwargs):
        tensor = func(*args, **kwargs)
        return tensor if kwargs.get("device") is not None or tensor.dim() == 0 else tensor.to(META)

    @rule(Tensor.to)
    def to(mode, func, args, kwargs):
        tensor, *rest = args
        rest = [rest[0] if rest and isinstance(rest[0], Tensor) else on_card(rest[0]), *rest[1:]] if rest else []
        target = kwargs.get("device", rest[0] if rest else None)
        if isinstance(target, (str, torch.device)) and torch.device(target).type == "cpu":
            return tensor if has_values(tensor) else mode.without_values(tensor, "to")
        return func(tensor, *rest, **kwargs)

    @rule(Tensor.cpu)
    def cpu(mode, func, args, kwargs):
        return args[0] if has_values(args[0]) else mode.without_values(args[0], "cpu")

    @rule(torch.dropout)
    def dropout(mode, func, args, kwargs):
        tensor, p, is_training = (*args, *kwargs.values())
        if is_training and 0 < p < 1 and tensor.is_meta and tensor.numel():
            return torch.native_dropout(tensor, p, True)[0]
        return func(*args, **kwargs)

    def fused_attention(mode, func, args, kwargs):
        return attention(*args, **kwargs)

    for function in _named("scaled_dot_product_attention"):
        rules[function] = fused_attention
    for policy, names in (("lower", LOWER_PRECISION), ("float32", FLOAT32), ("promote", PROMOTE)):
        for name in names:
            for function in _named(name):
                rules[function] = functools.partial(_autocast_rule, policy, rules.get(function))
    for name in FLOAT32_OUTPUT:
        for function in _named(name):
            rules[function] = _autocast_float32_output
    for function in _named("cross_entropy_loss"):  # made of log_softmax and nll_loss, which autocast sees inside it
        rules[function] = functools.partial(_autocast_rule, "float32", None)
    return rules


def _autocast_rule(policy, then, mode, func, args, kwargs):
    if torch.is_autocast_enabled("cuda"):
        args, kwargs = mode.cast(policy, args, kwargs)
    return then(mode, func, args, kwargs) if then else func(*args, **kwargs)


def _autocast_float32_output(mode, func, args, kwargs):
    tensor = args[0] if args else kwargs.get("input")
    if (
        torch.is_autocast_enabled("cuda")
        and isinstance(tensor, Tensor)
        and tensor.dtype in (torch.float16, torch.bfloat16)
        and kwargs.get("dtype") is None
        and not any(isinstance(value, torch.dtype) for value in args)
    ):
        kwargs = kwargs | {"dtype": torch.float32}
    return func(*args, **kwargs)


def _named(name: str) -> list:
    """Every Python entry of the ATen operation ``name``."""
    homes = (torch, torch._C._nn, Tensor, torch._C._linalg, torch._C._VariableFunctions)
    names = (name, f"__{name}__", f"__r{name}__") if name in ("matmul", "pow") else (name,)
    found = [getattr(home, n, None) for home in homes for n in names]
    if name.startswith("linalg_"):
        found.append(getattr(torch.linalg, name.removeprefix("linalg_"), None))
    return [function for function in found if function is not None]


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False) -> Tensor:
    """``F.scaled_dot_product_attention`` by the kernel that CUDA would choose (compute capability 8.0 or later)."""
    is_half = q.dtype in (torch.float16, torch.bfloat16)
    head_dim, same_heads = q.shape[-1], q.shape[-3] == k.shape[-3]
    same_width = head_dim == k.shape[-1] == v.shape[-1]
    is_dense = q.dim() == 4 and q.numel() > 0 and k.numel() > 0
    can_flash = is_dense and is_half and same_width and head_dim <= 256 and attn_mask is None
    can_flash = can_flash and (same_heads or enable_gqa) and not (is_causal and q.shape[-2] != k.shape[-2])
    alignment = 8 if is_half else 4
    can_efficient = is_dense and same_heads and (is_half or q.dtype is torch.float32)
    can_efficient = can_efficient and head_dim % alignment == 0 and v.shape[-1] % alignment == 0
    if can_flash and torch._C._get_flash_sdp_enabled():
        scale = scale if scale is not None else 1 / math.sqrt(head_dim)
        padding = -head_dim % 8
        if padding:
            q, k, v = (torch.nn.functional.pad(t, (0, padding)) for t in (q, k, v))
        out = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :head_dim] if padding else out
    if can_efficient and torch._C._get_mem_efficient_sdp_enabled():
        keeps_sums = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
        if attn_mask is not None:
            attn_mask = _bias(attn_mask, q, k)
        return aten._scaled_dot_product_efficient_attention(
            q, k, v, attn_mask, keeps_sums, dropout_p, is_causal, scale=scale
        )[0]
    if not torch._C._get_math_sdp_enabled():
        raise RuntimeError("No available kernel. Aborting execution.")
    return aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _bias(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """The mask as the memory-efficient kernel reads it: additive, the last dimension padded to a multiple of 16."""
    if mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, torch.full((), -math.inf, dtype=q.dtype, device=META))
    length = k.shape[-2]
    if length % 16:
        mask = torch.nn.functional.pad(mask, (0, -length % 16))[..., :length]
    return mask.expand(*q.shape[:-1], length)


@contextmanager
def fused_rms_norm():
    """RMSNorm as one kernel, as on CUDA: given a kernel for meta, torch's own ``rms_norm`` and its backward use it."""

    def kernel(x, normalized_shape, weight=None, eps=None):
        kept = x.dim() - len(normalized_shape)
        wide = torch.float64 if x.dtype is torch.float64 else torch.float32
        return torch.empty_like(x), x.new_empty((*x.shape[:kept], *(1 for _ in normalized_shape)), dtype=wide)

    library = torch.library.Library("aten", "IMPL", "Meta")
    library.m.impl("_fused_rms_norm", "Meta", kernel, False)
    try:
        yield
    finally:
        library._destroy()


@contextmanager
def pretend_cuda():
    """Inside, a CPU-only torch behaves as if it had one CUDA card, on meta tensors; outside, nothing is changed."""
    mode = CudaRules()
    torch_modules = (torch.nn.functional, torch.functional, torch.autograd, torch._tensor)
    clear_cache = torch.clear_autocast_cache

    def clear():
        mode.weight_casts.clear()
        clear_cache()

    with ExitStack() as stack:
        stack.enter_context(fused_rms_norm())
        for module in torch_modules:
            for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, lambda *_: False))
        for home, name, value in (
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
            (torch.cuda, "synchronize", lambda *_: None),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "device_count", lambda: 1),
            (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            (torch.utils._foreach_utils, "_get_foreach_kernels_supported_devices", lambda: ["cuda", "meta"]),
            (torch, "clear_autocast_cache", clear),
        ):
            stack.enter_context(patch.object(home, name, value))
        stack.enter_context(shapes_only(mode))
        yield mode
