"""FLOPs of one micro-batch as torch's own counter sees them, on tensors without data by CUDA's rules."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from memkit.program.hooks import run_steps
from memkit.tracing.cuda import pretend_cuda

FUSED_BACKWARD = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention_backward")
    for kind in ("flash", "efficient", "cudnn")
)


class CountedFlops(NamedTuple):
    """The products of the forward, and all, with what runs twice.

    ``in_kernel`` is the share of a fused attention's backward that computes the scores again: one product of five.
    """

    forward: int
    total: int
    in_kernel: int


def flops_counted_in(build: Callable[[], Callable[[], object]]) -> CountedFlops:
    """Of the step that ``build()`` returns, which is one micro-batch."""
    counter, at = FlopCounterMode(display=False), {}

    def now(change: str, *_: object) -> None:
        at[change] = counter.get_total_flops()  # the backward's start is the forward's end

    recorder = SimpleNamespace(now=now, saw=lambda _part, _tensors: None)
    with pretend_cuda(), counter:
        run_steps(build, 1, recorder)
    by_op = counter.get_flop_counts()["Global"]
    in_kernel = sum(by_op.get(op, 0) for op in FUSED_BACKWARD) // 5
    return CountedFlops(at.get("start_backward", 0), counter.get_total_flops(), in_kernel)
