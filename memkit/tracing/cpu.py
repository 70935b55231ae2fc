"""A CPU without memory: fake tensors on which torch runs the CPU's own operations, and what they miss.

``FakeTensorMode`` gives each tensor the device "cpu" and no bytes, so that torch takes the same road as on a
real CPU: the CPU's autocast lists, its attention kernel, its optimizers one tensor at a time. Four things
differ from a real run and are mended here: values, ``Module.to``, random states, and a library's own kind of tensor.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from memkit.program.doors import tensors_in
from memkit.program.interrupts import torch_as_before
from memkit.tracing.scratch import CTC_BACKWARD, PRODUCTS, copied_factors, ctc_betas, distance_factors
from memkit.tracing.without_values import ShapesOnly, program_line, shapes_only

aten = torch.ops.aten
OF_COMPLEX = {aten.abs.default, aten.angle.default}
"""Results in real numbers that the CPU takes out of complex ones."""

SOFTMAXES = {aten._softmax.default, aten._log_softmax.default}
SOFTMAX_BACKWARDS = {aten._softmax_backward_data.default, aten._log_softmax_backward_data.default}
BATCH_NORMS = {aten.native_batch_norm.default: 0, aten.native_batch_norm_backward.default: 1}
"""Where the normalized input is among the arguments."""

PROMOTES = {
    getattr(getattr(aten, name), overload)
    for name in "add sub mul div eq ne lt le gt ge maximum minimum pow atan2 add_ sub_ mul_ div_ pow_".split()
    for overload in ("default", "Tensor", "Tensor_Tensor", "Scalar")
    if overload in getattr(aten, name).overloads()
}
SUMS = {aten.sum.default, aten.sum.dim_IntList, aten.cumsum.default}
"""Operations on numbers of two dtypes, and sums of one in another: the CPU's loop takes one and copies the rest."""

VECTORS = {aten._linalg_svd.default: "compute_uv", aten._linalg_eigh.default: "compute_v"}
ASKS_VALUES = {
    getattr(torch.linalg, name) for name in "svdvals eigvals eigvalsh norm matrix_norm matrix_rank cond".split()
}
"""Decompositions by the argument that asks for vectors; functions that use none."""

RESIZES, MAX_VECTORIZED_SIDES = {aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default}, 128


def as_laid_out(func, args: tuple, out: object) -> tuple[object, list[int]]:
    """The result as the CPU's kernel lays it out in memory, and the bytes of copies it makes of what it reads.

    LayerNorm's backward makes a contiguous gradient of contiguous inputs, and a batch norm contiguous results unless
    its input has its channels last; their fake kernels follow the input's strides. A softmax copies an input that is
    not contiguous, a product what BLAS cannot read, matrix by matrix. A small image is resized with its channels last.
    Source: ATen/native/layer_norm.cpp (``layer_norm_backward_cpu``), LinearAlgebra.cpp, cpu/UpSampleKernel.cpp
    (``_use_vectorized_kernel_cond_2d``) of torch 2.13.
    """
    if func in RESIZES:
        has_channels_last = args[0].is_contiguous(memory_format=torch.channels_last)
        is_small = sum(out.shape[-2:]) <= MAX_VECTORIZED_SIDES
        return out, [args[0].nbytes, out.nbytes] if is_small and not has_channels_last else []
    if func in BATCH_NORMS and out[0] is not None:
        x = args[BATCH_NORMS[func]]
        ranks = {4: torch.channels_last, 5: torch.channels_last_3d}
        has_channels_last = x.dim() in ranks and x.is_contiguous(memory_format=ranks[x.dim()])
        if not has_channels_last and not out[0].is_contiguous():
            return (torch.empty_like(out[0], memory_format=torch.contiguous_format), *out[1:]), []
    if func in SOFTMAXES:
        return out, [] if args[0].is_contiguous() else [args[0].nbytes]
    if func in PROMOTES:
        return out, promoted(args) if len({x.dtype for x in args[:2] if isinstance(x, Tensor)}) > 1 else []
    if func is aten._safe_softmax.default:
        return out, [args[0].numel(), args[0].numel() // args[0].shape[args[1]]]
    if func in SUMS:
        return out, [args[0].numel() * out.element_size()] if out.dtype is not args[0].dtype else []
    if func in SOFTMAX_BACKWARDS:
        return out, [x.nbytes for x in args[:2] if not x.is_contiguous()]
    if func in OF_COMPLEX and args[0].is_complex():
        return out, [args[0].nbytes]
    if func in CTC_BACKWARD:
        return out, ctc_betas(args)
    if func is aten._euclidean_dist.default:
        return out, distance_factors(*args)
    if func in PRODUCTS:
        return out, copies_of_factors(args)
    if func is not aten.native_layer_norm_backward.default or out[0] is None:
        return out, []
    copies = [x.nbytes for x in args[:2] if not x.is_contiguous()]
    return (torch.empty_like(out[0], memory_format=torch.contiguous_format), *out[1:]), copies


def promoted(args: tuple) -> list[int]:
    """Bytes of the operands that are copied into the dtype of both. Source: ATen/TensorIterator.cpp of torch 2.13."""
    dtype = torch.result_type(*args[:2])
    return [x.numel() * dtype.itemsize for x in args[:2] if x.dtype is not dtype]


def copies_of_factors(args: tuple) -> list[int]:
    """Bytes of the copies that a product makes of factors that BLAS cannot read, one matrix at a time."""
    return [num_bytes // args[-1].shape[:-2].numel() for num_bytes in copied_factors(*args[-2:])]


def unpacked(_, __, args, ___):
    """``pad_packed_sequence`` by its kernel's steps, which write lengths into memory that a fake tensor does not have.

    Source: ATen/native/PackedSequence.cpp (``_pad_packed_sequence``) of torch 2.13.
    """
    data, sizes, batch_first, padding, total = args
    with _disable_current_modes():
        counts = sizes.tolist()
    out = data.new_full((max(total, len(counts)), counts[0], *data.shape[1:]), padding)
    row = place = 0
    for count, places in ((count, len(list(alike))) for count, alike in itertools.groupby(counts)):
        piece = data[row : row + count * places].view(places, count, *data.shape[1:])
        out[place : place + places, :count].copy_(piece)
        row, place = row + count * places, place + places
    lengths = torch.tensor([sum(count > number for count in counts) for number in range(counts[0])])
    return out.transpose(0, 1) if batch_first else out, lengths


class WithoutVectors(TorchDispatchMode):
    """Singular values and eigenvalues without vectors, which torch computes for every fake tensor."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is aten.linalg_eig.default:
            return aten._linalg_eigvals.default(*args), args[0].new_empty(0)
        choice = {VECTORS[func]: False} if func in VECTORS else {}
        return func(*args[: 2 if choice else None], **(kwargs or {}) | choice)


def values_alone(_, func, args, kwargs):
    """The call without vectors, which only a gradient needs."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in(args)):
        return func(*args, **kwargs)
    with WithoutVectors():
        return func(*args, **kwargs)


@contextmanager
def fake_cpu(note: Callable[[Tensor, str], None]) -> Iterator[ShapesOnly]:
    """Inside, every new tensor is fake. ``note`` is told of what is allocated below every dispatch mode."""
    mode, get_rng_state = ShapesOnly(), torch.get_rng_state

    def noted_rng_state() -> Tensor:
        """The generator's state, which checkpointing keeps for each segment."""
        state = get_rng_state()
        note(state, "get_rng_state")
        return state

    with (
        torch_as_before() as mode.interrupts,
        FakeTensorMode(allow_non_fake_inputs=True),
        shapes_only(mode),
        patch.object(torch, "get_rng_state", noted_rng_state),
        patch.object(torch.random, "get_rng_state", noted_rng_state),
        patch.object(torch.nn.Module, "_apply", apply_to_data),
        patch.object(Tensor, "_make_subclass", staticmethod(make_subclass)),
        patch.object(torch.nn.parallel.DistributedDataParallel, "__init__", refuse_reducer),
    ):
        mode.rules[Tensor.__deepcopy__] = deepcopied
        mode.rules |= dict.fromkeys(ASKS_VALUES, values_alone)
        mode.rules[torch._VF._pad_packed_sequence] = unpacked
        yield mode


def deepcopied(_, func, args, __):
    """``copy.deepcopy`` of a tensor; torch's own copies what a fake one is made of as well, to a crash."""
    tensor, memo = args
    if not isinstance(tensor, FakeTensor) or not tensor.is_leaf:
        return func(tensor, memo)
    if id(tensor) not in memo:
        memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            memo[id(tensor)].grad = deepcopied(_, func, (tensor.grad, memo), __)
    return memo[id(tensor)]


MAKE_SUBCLASS = Tensor._make_subclass


@functools.cache
def fake_kind(kind: type) -> type:
    """A library's kind of tensor (bitsandbytes' ``Params4bit``) that is a fake one too."""
    return type(kind.__name__, (kind, FakeTensor), {})


def make_subclass(kind: type, data: Tensor, requires_grad: bool = False, **options) -> Tensor:
    """``Tensor._make_subclass``, which refuses fake data: a view of them that is of this kind."""
    if not isinstance(data, FakeTensor):
        return MAKE_SUBCLASS(kind, data, requires_grad, **options)
    view = data.detach().requires_grad_(requires_grad)
    view.__class__ = fake_kind(kind)
    return view


def refuse_reducer(*_, **__) -> None:
    """In place of a constructor whose C++ code would read what fake tensors do not have."""
    raise NotImplementedError(
        f"{program_line()}: the reducer of DistributedDataParallel reads memory, and a trace on the CPU's rules has "
        'none; trace it with device="cuda", or measure it'
    )


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
        buffers = {name: fn(buffer) for name, buffer in module._buffers.items() if buffer is not None}
        module._buffers.update(buffers)
    return module
