"""A CPU without memory, on which chapter 01 shows on any laptop that traced is measured.

torch's own ``FakeTensorMode`` gives each tensor the device "cpu" and no bytes, so that torch takes the same
road as on a real CPU: the CPU's autocast lists, its attention kernel, its optimizers one tensor at
a time. What its kernels copy on the way is known for a transformer's step alone, where the trace
equals a measurement to the byte. Of any other operation the trace says, once: measure it there.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from memkit.program.hooks import torch_as_before
from memkit.tracing.cuda import PRODUCTS, copied_factors
from memkit.tracing.shapes import ShapesOnly, shapes_only

aten = torch.ops.aten
LAYER_NORM_BACKWARD = aten.native_layer_norm_backward.default
READS_CONTIGUOUS = {
    LAYER_NORM_BACKWARD,
    *(aten._softmax.default, aten._softmax_backward_data.default),
    *(aten._log_softmax.default, aten._log_softmax_backward_data.default),
}
"""Operations that copy those of their first two arguments that are not contiguous."""

PROMOTES = "add sub mul div eq ne lt le gt ge maximum minimum pow add_ sub_ mul_ div_ pow_".split()
"""Operations on numbers of two dtypes, as autocast leaves them: the CPU's loop takes one and copies
the rest."""

SUMS = {aten.sum.default, aten.sum.dim_IntList, aten.cumsum.default}

TRANSFORMERS_OPERATIONS = set(
    "mm addmm bmm baddbmm _grouped_mm _scaled_mm embedding embedding_dense_backward "
    "native_layer_norm native_layer_norm_backward native_dropout _softmax _softmax_backward_data "
    "_log_softmax _log_softmax_backward_data _safe_softmax logsumexp "
    "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward nll_loss_forward nll_loss_backward "
    "mse_loss mse_loss_backward sum mean amax amin max min all any cumsum std var_mean "
    "linalg_vector_norm cat stack constant_pad_nd repeat _to_copy _unsafe_view slice_backward "
    "select_backward tril triu gather index index_put index_add scatter scatter_add sort topk "
    "histc multinomial dot floor_divide softplus_backward _local_scalar_dense nonzero "
    "masked_select _amp_update_scale where __and__ __or__".split()
)
"""What a language model's step is made of, beside views, operations element by element and an
optimizer's: each was held against a measurement, here or in ``tests/stepscope/zoo``."""

QUIET_NAMESPACES = {"prim", "profiler", "c10d", "_c10d_functional", "fsdp"}
"""Operations that move or mark tensors. Of any other library's (bitsandbytes' 4 bits) the rules know nothing."""


def is_of_a_transformer(func) -> bool:
    """Whether the CPU's rules know what the operation takes; each other one has to be measured."""
    name = func._opname
    if func.namespace != "aten":
        return func.namespace in QUIET_NAMESPACES
    if torch.Tag.pointwise in func.tags or name in TRANSFORMERS_OPERATIONS:
        return True
    if name.startswith(("_foreach_", "_fused_", "new_")) or name.endswith("_like"):
        return True
    makes_nothing = all(result.alias_info for result in func._schema.returns)
    return makes_nothing or not any("Tensor" in str(x.type) for x in func._schema.arguments)


def as_laid_out(func, args: tuple, out: object) -> tuple[object, list[int]]:
    """The result as the CPU's kernel lays it out, and the bytes of copies of what it reads.

    LayerNorm's backward makes a contiguous gradient of contiguous inputs; its fake kernel follows
    the input's strides. Source: ATen/native/layer_norm.cpp (``layer_norm_backward_cpu``),
    LinearAlgebra.cpp, TensorIterator.cpp of torch 2.13.
    """
    if func in PRODUCTS:
        # copies of the factors that BLAS cannot read are made matrix by matrix
        num_matrices = args[-1].shape[:-2].numel()
        return out, [num_bytes // num_matrices for num_bytes in copied_factors(*args[-2:])]
    if func.namespace == "aten" and func._opname in PROMOTES:
        operands = [x for x in args[:2] if isinstance(x, Tensor)]
        if len({x.dtype for x in operands}) < 2:
            return out, []
        dtype = torch.result_type(*operands)
        return out, [x.numel() * dtype.itemsize for x in operands if x.dtype is not dtype]
    if func in SUMS and out.dtype is not args[0].dtype:
        return out, [args[0].numel() * out.element_size()]
    if func is aten._safe_softmax.default:  # one byte a value where it masks, and one a row
        return out, [args[0].numel(), args[0].numel() // args[0].shape[args[1]]]
    if func not in READS_CONTIGUOUS:
        return out, []
    copies = [x.nbytes for x in args[:2] if isinstance(x, Tensor) and not x.is_contiguous()]
    if func is LAYER_NORM_BACKWARD and out[0] is not None:
        out = (torch.empty_like(out[0], memory_format=torch.contiguous_format), *out[1:])
    return out, copies


@contextmanager
def fake_cpu(tracer, mode: ShapesOnly | None = None) -> Iterator[ShapesOnly]:
    """Inside, every new tensor is fake; ``tracer`` notes what no dispatch mode sees, too."""
    get_rng_state = torch.get_rng_state

    def noted_rng_state() -> Tensor:
        """The generator's state, which checkpointing keeps for each segment."""
        state = get_rng_state()
        tracer.note(state, "get_rng_state", sys._getframe(1))
        return state

    with (
        torch_as_before(),
        FakeTensorMode(allow_non_fake_inputs=True),
        shapes_only(mode or ShapesOnly()) as shapes,
        patch.object(torch, "get_rng_state", noted_rng_state),
        patch.object(torch.random, "get_rng_state", noted_rng_state),
        patch.object(torch.nn.Module, "_apply", apply_to_data),
    ):
        yield shapes


def apply_to_data(
    module: torch.nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True
) -> torch.nn.Module:
    """``Module._apply`` as it treats real tensors; it treats fake ones otherwise, and fails."""
    if recurse:
        for child in module.children():
            child._apply(fn)
    with torch.no_grad():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            data = fn(parameter)
            if data.device != parameter.device:  # to or from "meta"
                module._parameters[name] = torch.nn.Parameter(data, parameter.requires_grad)
                continue
            parameter.data = data
            if parameter.grad is not None:
                parameter.grad.data = fn(parameter.grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
    return module
