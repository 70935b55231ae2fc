"""What a trace leaves out, told in warnings: workspaces of cuDNN, cuSOLVER and cuFFT, compiled steps.

A library decides by itself, by card and version, what it takes beside an operation's results. The
trace names it once, with the first call's place. On the CPU's rules the same is said of every
operation that is no transformer's: measure it there.
"""

import functools
import sys
import warnings

import torch

from memkit.program.log import Log
from memkit.tracing.cpu import PRODUCTS, is_of_a_transformer
from memkit.units import format_bytes
from stepscope.tracing.refusals import calling_frame

aten = torch.ops.aten
TOLD_FROM = 0.01
"""A compiled step is told from this part of the peak on."""

CUDA_LIBRARIES = dict.fromkeys((aten.convolution.default, aten.convolution_backward.default), "cuDNN")
CUDA_LIBRARIES |= {
    getattr(aten, name).default: "cuSOLVER"
    for name in "_linalg_eigh _linalg_svd linalg_qr linalg_cholesky_ex linalg_inv_ex _linalg_solve_ex".split()
}
CUDA_LIBRARIES |= dict.fromkeys((aten._fft_c2c.default, aten._fft_r2c.default, aten._fft_c2r.default), "cuFFT")
"""Operations whose library takes a workspace on a card, of a size that only the card knows."""


class Besides:
    """What is told once: libraries, compiled steps, and the operations to measure on a CPU."""

    def __init__(self):
        self.told: dict[str, str] = {}
        self.largest_compiled = self.highest_packed = (0, "")
        self.to_measure: dict[str, None] = {}  # a dict, for the order in which they were met

    def meet(self, func, place: str) -> None:
        """Remember the first call of each library that takes what nobody knows."""
        library = CUDA_LIBRARIES[func]
        self.told.setdefault(library, f"{place}: {func}: the workspace that {library} takes is not in the trace")

    def meet_compiled(self, name: str, num_bytes: int, place: str) -> None:
        """Remember the largest compiled step, by what its code takes uncompiled, which is more.

        torchao's 8-bit AdamW has 53 bytes a value so, and 8.
        """
        where = f"{place}: " if place else ""
        self.largest_compiled = max(self.largest_compiled, (num_bytes, f"{where}{name}"))

    def meet_on_cpu(self, func, args: tuple, out: object, log: Log) -> None:
        """Remember an operation on the CPU's rules, if it may take what they do not know."""
        if not is_of_a_transformer(func) or is_attention_by_heads(func, args):
            self.to_measure[str(func.overloadpacket)] = None
        if func in PRODUCTS and out.dtype.itemsize == 2:
            # oneDNN packs the factors and makes the result in float32 first, where the processor wants it
            packed = sum(factor.nbytes for factor in args[-2:]) + 4 * out.numel()
            standing = sum(log.sizes[block] for block in log.live)
            self.highest_packed = max(self.highest_packed, (standing + packed, f"{func.overloadpacket} in 16 bits"))

    def tell(self, peak_bytes: int) -> list[str]:
        """Warn once for each library, for a compiled step of note, and once for the CPU; returns the warnings."""
        texts, (num_bytes, where) = list(self.told.values()), self.largest_compiled
        if num_bytes > TOLD_FROM * peak_bytes:
            size = format_bytes(num_bytes)
            texts.append(f"{where}: the workspace that a compiled step takes is not in the trace, at most {size}")
        if self.highest_packed[0] > peak_bytes:
            self.to_measure[self.highest_packed[1]] = None
        if self.to_measure:
            texts.append(
                f"measure it there: {', '.join(self.to_measure)}. On the CPU's rules a trace knows what a "
                "transformer's step takes; these may take more than their results, which measure_memory sees"
            )
        frame = calling_frame()
        for text in texts:
            warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)
        return texts


def is_attention_by_heads(func, args: tuple) -> bool:
    """Whether the CPU's attention is given tensors that lie head by head: its backward copies what it gives back.

    A model's projections lie token by token, and of those a trace knows every byte.
    """
    return func._opname == "_scaled_dot_product_flash_attention_for_cpu" and any(
        x.shape[1] > 1 and x.shape[2] > 1 and x.stride(1) > x.stride(2) for x in args[:3])


def as_compiled(tracer, compile, model=None, **options):
    """``torch.compile`` for a trace: a function without gradients is one kernel, all else runs as it is.

    ``compile`` is the one that it stands for: Lightning has put its own in torch's place, and wants it called.
    """
    if model is None:
        return functools.partial(as_compiled, tracer, compile, **options)
    if isinstance(model, torch.nn.Module):
        return compile(model, **options)

    @functools.wraps(model)
    def run(*args, **kwargs):
        if torch.is_grad_enabled():
            return compile(model, **options)(*args, **kwargs)
        start = len(tracer.log.events)
        try:
            return model(*args, **kwargs)
        finally:
            place = tracer.lines.of(sys._getframe(1))
            tracer.besides.meet_compiled(model.__name__, tracer.log.leave_out(start), place)

    return run
