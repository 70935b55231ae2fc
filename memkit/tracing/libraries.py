"""What libraries take beside an operation's results: convolutions, recurrent layers, factors, products in 16 bits.

How much is decided by the library's own choice among kernels, processor and threads. On the CPU's rules the library
is here and is asked: a small call is made once on zeros, and torch's profiler notes what it takes. A product that is
too large for that is asked by a part of it, a factorization by LAPACK with smaller matrices. What cannot be asked
(cuDNN, a large convolution, a compiled step) is told, once for each library, with a size where the shapes bound it.
"""

import functools
import math
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import flop_registry

from memkit.program.doors import tensors_in
from memkit.tracing.cpu import copies_of_factors
from memkit.tracing.scratch import PRODUCTS
from memkit.units import MIB, format_bytes

aten = torch.ops.aten
TOLD_FROM = 0.01
"""A size that is known is told from this part of the peak on."""

MAX_FLOPS, MAX_BYTES = 10**10, 128 * MIB
"""A larger call is not made: it would cost more than a moment, or more memory than a trace should."""

CORNER_FLOPS = 10**7
PART_SIZES, FLOPS_PER_FACTORED = (512, 768), 25
"""Matrices of these sizes are factored in place of larger ones; a decomposition takes about so many flops a cube."""
MAX_ASKED, FILL = 3, 4
"""So many matrices are factored to ask, of this number everywhere."""

FLOAT32_BYTES, ALIGNMENT_BYTES = 4, 256


def own_layout(out: object, *tensors: object) -> int:
    """Bytes of a convolution's tensors, which oneDNN copies into a layout of its own."""
    return sum(tensor.nbytes for tensor in tensors_in([out, *tensors[:3]]))


def in_16_bits(out: Tensor, *_: object) -> int | None:
    """Nothing for a product in float32, which BLAS makes; unknown for one in 16 bits, which oneDNN makes."""
    return None if out.dtype in (torch.bfloat16, torch.float16) else 0


CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
FACTORIZATIONS = {
    getattr(getattr(aten, name), "atol_rtol_tensor" if name == "linalg_pinv" else "default")
    for name in (
        "linalg_eig _linalg_eigvals _linalg_eigh _linalg_svd linalg_qr linalg_householder_product ormqr geqrf "
        "linalg_pinv linalg_cholesky_ex cholesky_solve cholesky_inverse linalg_inv_ex _linalg_solve_ex "
        "linalg_solve_triangular triangular_solve linalg_lstsq _linalg_det _linalg_slogdet linalg_lu "
        "linalg_lu_factor_ex linalg_lu_solve linalg_ldl_factor_ex linalg_ldl_solve linalg_matrix_exp"
    ).split()
}
RECURRENT, RECURRENT_BACKWARD = aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default
LIBRARIES = {
    "meta": {
        **dict.fromkeys(CONVOLUTIONS, ("cuDNN", None)),
        **dict.fromkeys(FACTORIZATIONS, ("cuSOLVER", None)),
    },
    "cpu": {
        **dict.fromkeys(CONVOLUTIONS, ("oneDNN", own_layout)),
        **dict.fromkeys(PRODUCTS, ("oneDNN", in_16_bits)),
        **dict.fromkeys(FACTORIZATIONS, ("LAPACK", None)),
        **dict.fromkeys((RECURRENT, RECURRENT_BACKWARD), ("oneDNN", None)),
    },
}
"""By device: operations whose library takes more than their fake kernels say, and the function that says how much.

Where no bound follows from the shapes there is None in its place.
"""


def float32_copies(_: object, values: Tensor, *__: object) -> int:
    """A bound of what quantizing takes: the values in float32, scaled ones, and their codes in 32 bits."""
    return 12 * values.numel()


NAMED = {
    "bitsandbytes.quantize_4bit.default": ("bitsandbytes", float32_copies),
    "bitsandbytes.optimizer_update_8bit_blockwise.default": ("bitsandbytes", None),
    "bitsandbytes.optimizer_update_32bit.default": ("bitsandbytes", None),
}
"""The same, by name, for operations of a library that may be loaded later, on the CPU's rules: its kernels there are
Python."""


@dataclass(frozen=True)
class Call:
    """What one call took: bytes given back before it returned, and the bytes of each tensor that it returned."""

    scratch_bytes: int
    result_bytes: tuple[int, ...]


CALLS: dict[tuple, Call | None] = {}
"""What was asked already; None where it was too large."""


def asked(func, args: tuple, kwargs: dict, out: object) -> Call | None:
    """What the library takes for this call, found by making it or a part of it; None where it would be too large."""
    if torch.autograd._profiler_enabled():
        return None  # there is one at a time
    described_args = (described(arg) for arg in args if func.namespace == "aten" or isinstance(arg, Tensor))
    key = (func, torch.get_num_threads(), torch.is_grad_enabled(), *described_args, *kwargs.items())
    if key not in CALLS:
        if func in PRODUCTS:
            CALLS[key] = asked_of_product(func, args, out)
        elif func in FACTORIZATIONS:
            CALLS[key] = asked_of_factorization(functools.partial(func, **kwargs), args, out)
        else:
            num_bytes = sum(tensor.nbytes for tensor in tensors_in([out, *args]))
            flops = flop_registry.get(func.overloadpacket, lambda *_, **__: 0)
            is_small = num_bytes <= MAX_BYTES and flops(*args, out_val=out) <= MAX_FLOPS
            CALLS[key] = made(func, args) if is_small else None
    return CALLS[key]


def asked_of_product(func, args: tuple, out: Tensor) -> Call:
    """What a product takes: its scratch, or where it is large that of a part of it, scaled up.

    A processor without instructions for these numbers makes the product without oneDNN, slowly and without scratch: a
    corner of the product shows that. oneDNN's kernels keep packed blocks of the factors, which stop growing where they
    fill a cache, or, where the processor multiplies float32 only, the result in float32, once for each matrix at work.
    Source: oneDNN 3.12, cpu/matmul/gemm_bf16_matmul.cpp and brgemm_matmul_utils.cpp.
    """
    *matrices, rows, columns = out.shape
    whole = (math.prod(matrices), rows, args[-1].shape[-2], columns)
    for max_flops in (CORNER_FLOPS, MAX_FLOPS):
        part = cut(whole, max_flops)
        if part == whole:
            return made(func, args)
        scratch = made(func, part_of(args, *part)).scratch_bytes
        if scratch == 0:
            return Call(0, (out.nbytes,))
    num_results, rest = divmod(scratch, FLOAT32_BYTES * part[1] * part[3])
    if num_results and rest <= ALIGNMENT_BYTES * torch.get_num_threads():
        scratch = num_results * FLOAT32_BYTES * rows * columns + rest
    return Call(scratch + sum(copies_of_factors(args)), (out.nbytes,))


def cut(sizes: tuple[int, int, int, int], max_flops: int) -> tuple[int, int, int, int]:
    """Products of 16-bit matrices made smaller until they take ``max_flops`` at most, and ``MAX_BYTES``.

    Sizes: matrices (two for each thread stay), rows, inner, columns (the largest is halved).
    """
    matrices, *sides = sizes
    while True:
        rows, inner, columns = sides
        num_bytes = 2 * matrices * (rows * inner + inner * columns + rows * columns)
        if 2 * matrices * rows * inner * columns <= max_flops and num_bytes <= MAX_BYTES:
            return matrices, rows, inner, columns
        if matrices > 2 * torch.get_num_threads():
            matrices = 2 * torch.get_num_threads()
        else:
            sides[sides.index(max(sides))] //= 2


def part_of(args: tuple, matrices: int, rows: int, inner: int, columns: int) -> tuple[Tensor, ...]:
    """Factors of this size, and what is added to their product, each with its dimensions in the same order in memory.

    Shapes: (a sum,) left [matrices, rows, inner], right [matrices, inner, columns]; a sum may lack leading dimensions.
    """
    shapes = [(matrices, rows, columns), (matrices, rows, inner), (matrices, inner, columns)]
    parts = []
    for tensor, shape in zip(args, shapes[-len(args) :], strict=True):
        sizes = [min(size, whole) for size, whole in zip(shape[3 - tensor.dim() :], tensor.shape, strict=True)]
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        parts.append(torch.empty_permuted(sizes, order, dtype=tensor.dtype, device="meta"))
    return tuple(parts)


def asked_of_factorization(factor: Callable, args: tuple, out: object) -> Call:
    """What a factorization takes: its scratch, or that of fewer and smaller matrices, carried on to the whole size.

    The scratch is copies of matrices (n²) and LAPACK's workspaces (n² and n), each for all matrices or for one at a
    time. So two sizes give both parts, and the third matrix what each further one takes (a single one may take another
    road). Source: ATen/native/BatchLinearAlgebra.cpp of torch 2.13.
    """
    *batch, rows, columns = args[0].shape
    largest, num_matrices = max(rows, columns), math.prod(batch)
    results = tuple(each.untyped_storage().nbytes() for each in (out if isinstance(out, tuple) else (out,)))
    flops = num_matrices * FLOPS_PER_FACTORED * rows * columns * largest
    if flops <= MAX_FLOPS and args[0].nbytes <= MAX_BYTES:
        return Call(made(factor, args, FILL).scratch_bytes, results)

    def scratch(matrices: int) -> float:
        if largest <= PART_SIZES[0]:
            return made(factor, smaller(args, matrices, 1), FILL).scratch_bytes
        shorter, longer = (
            made(factor, smaller(args, matrices, size / largest), FILL).scratch_bytes / size for size in PART_SIZES
        )
        by_square = (longer - shorter) / (PART_SIZES[1] - PART_SIZES[0])
        return (shorter + by_square * (largest - PART_SIZES[0])) * largest

    if num_matrices <= MAX_ASKED:
        return Call(round(scratch(num_matrices)), results)
    most = scratch(MAX_ASKED)
    return Call(round(most + (num_matrices - MAX_ASKED) * (most - scratch(MAX_ASKED - 1))), results)


def smaller(args: tuple, matrices: int, scale: float) -> tuple:
    """The arguments with fewer matrices, large ones scaled down, each with its dimensions in the same order."""
    num_batch = args[0].dim() - 2
    parts = []
    for value in args:
        if isinstance(value, Tensor) and value.dim():
            sizes = [*[1] * (num_batch - 1), *[matrices] * (num_batch > 0)]
            sizes += [round(size * scale) if size > min(PART_SIZES) else size for size in value.shape[num_batch:]]
            order = sorted(range(value.dim()), key=value.stride, reverse=True)
            value = torch.empty_permuted(sizes, order, dtype=value.dtype, device="meta")
        parts.append(value)
    return tuple(parts)


def described(value: object) -> object:
    """What of an argument decides which kernel runs."""
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape), value.stride()
    return tuple(value) if isinstance(value, list) else value


def made(func, args: tuple, value: int = 0) -> Call:
    """What the call takes, found by making it on zeros, or another value, while torch's profiler watches."""
    quiet = {} if "KINETO_LOG_LEVEL" in os.environ else {"KINETO_LOG_LEVEL": "99"}  # it reports on stderr
    with torch._C.DisableTorchFunction(), _disable_current_modes(), patch.dict(os.environ, quiet):
        real = [filled_like(arg, value) if isinstance(arg, Tensor) else arg for arg in args]
        if func is RECURRENT_BACKWARD:
            real[-1] = workspace(*real)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            results = func(*real)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    results = results if isinstance(results, tuple) else (results,)
    return Call(peak - now, tuple(0 if each is None else each.untyped_storage().nbytes() for each in results))


def filled_like(tensor: Tensor, value: int) -> Tensor:
    """A real tensor of the same shape and strides; whole numbers are 0 or 1, as a row that is exchanged is."""
    value = value if tensor.is_floating_point() or tensor.is_complex() else min(value, 1)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu").fill_(value)


def workspace(*backward: object) -> Tensor:
    """What the forward of a recurrent layer hands to its backward; a fake one is empty."""
    x, *weights, h, c = backward[:7]
    is_reversed, mode, size, num_layers, has_biases, is_training, both_ways, batch_sizes, batch_first, _ = backward[13:]
    settings = is_reversed, batch_sizes, mode, size, num_layers, has_biases, both_ways, batch_first, is_training
    with torch.enable_grad():
        return RECURRENT(x, *weights, h, c, *settings)[3]


COMPILED_STEP = "a compiled step"
"""Told with what its code takes uncompiled, which is more: torchao's 8-bit AdamW has 53 bytes a value so, and 8."""


COMPILE = torch.compile


def as_compiled(tracer, model=None, **options):
    """``torch.compile`` for a trace: a function without gradients is one kernel, all else runs as it is."""
    if model is None:
        return functools.partial(as_compiled, tracer, **options)
    if isinstance(model, torch.nn.Module):
        return COMPILE(model, **options)

    @functools.wraps(model)
    def run(*args, **kwargs):
        if torch.is_grad_enabled():
            return COMPILE(model, **options)(*args, **kwargs)
        start = len(tracer.log.events)
        try:
            return model(*args, **kwargs)
        finally:
            place = tracer.place(sys._getframe(1))
            tracer.besides.note(COMPILED_STEP, tracer.log.leave_out(start), model.__name__, place)

    return run


class Besides:
    """The operation for which each library takes most: its size in bytes (None: unknown), name and place."""

    def __init__(self):
        self.largest: dict[str, tuple[int | None, str, str]] = {}

    def note(self, library: str, num_bytes: int | None, op: str, place: str) -> None:
        """Remember an operation that has run, if it is the one for which its library takes most."""
        before = self.largest.get(library)
        if num_bytes != 0 and (before is None or (num_bytes or 0) > (before[0] or 0)):
            self.largest[library] = (num_bytes, op, place)

    def tell(self, peak_bytes: int) -> None:
        """Warn once for each library whose share is unknown, or is one of note."""
        for library, (num_bytes, op, place) in self.largest.items():
            if num_bytes is None or num_bytes > TOLD_FROM * peak_bytes:
                share = "at most" if library == COMPILED_STEP else "about"
                size = f", {share} {format_bytes(num_bytes)}" if num_bytes else ""
                where = f"{place}: " if place else ""
                text = f"{where}{op}: the workspace that {library} takes is not in the trace{size}"
                warnings.warn(text, stacklevel=3)
