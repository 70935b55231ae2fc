"""What a trace leaves out, told in warnings: workspaces of cuDNN, cuSOLVER and cuFFT, compiled steps.

A library decides by itself, by card and version, what it takes beside an operation's results. The
trace names it once, with the first call's place. On the CPU's rules the same is said of every
operation that is no transformer's: measure it there.
"""

import functools
import sys
import warnings

import torch

from memkit.tracing.trace import LeftOut
from memkit.units import format_bytes
from stepscope.tracing.refusals import calling_frame

TOLD_FROM = 0.01
"""A compiled step is told from this part of the peak on."""

class Besides(LeftOut):
    """What the kit's trace leaves out, and compiled steps; told once, in warnings."""

    def __init__(self):
        super().__init__()
        self.largest_compiled = (0, "")

    def meet_compiled(self, name: str, num_bytes: int, place: str) -> None:
        """Remember the largest compiled step, by what its code takes uncompiled, which is more.

        torchao's 8-bit AdamW has 53 bytes a value so, and 8.
        """
        where = f"{place}: " if place else ""
        self.largest_compiled = max(self.largest_compiled, (num_bytes, f"{where}{name}"))

    def texts(self, peak_bytes: int) -> list[str]:
        texts, (num_bytes, where) = super().texts(peak_bytes), self.largest_compiled
        if num_bytes > TOLD_FROM * peak_bytes:
            text = f"{where}: the workspace that a compiled step takes is not in the trace"
            texts.insert(len(self.of_libraries), f"{text}, at most {format_bytes(num_bytes)}")
        return texts

    def tell(self, peak_bytes: int) -> list[str]:
        """Warn once for each library, for a compiled step of note, and once for the CPU; returns the warnings."""
        texts = self.texts(peak_bytes)
        frame = calling_frame()
        for text in texts:
            warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)
        return texts


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
            tracer.left_out.meet_compiled(model.__name__, tracer.log.leave_out(start), place)

    return run
