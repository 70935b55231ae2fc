"""The FLOPs of a training step as torch's own counter sees them, forward and backward apart."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
from torch.utils.flop_counter import FlopCounterMode

from memkit.program.hooks import run_steps
from memkit.program.transformer import strategy_build
from memkit.setup import TrainingSetup
from memkit.strategies import Strategy
from memkit.tracing.cuda import pretend_cuda

aten = torch.ops.aten
FUSED_BACKWARD = tuple(
    getattr(aten, f"_scaled_dot_product_{kind}_attention_backward")
    for kind in ("flash", "efficient", "cudnn")
)


@dataclass(frozen=True, kw_only=True)
class CountedFlops:
    """What torch's counter saw of one micro-batch: the products of the forward, and all that run in the backward.

    ``in_kernel`` is the share of a fused attention's backward that computes the scores again: one product of five.
    """

    forward: int
    backward: int
    in_kernel: int

    @property
    def total(self) -> int:
        """FLOPs of forward and backward together."""
        return self.forward + self.backward


def counted_flops(
    setup: TrainingSetup, strategy: Strategy, *, make_policy: Callable[[], Callable] | None = None
) -> CountedFlops:
    """FLOPs of one micro-batch counted by ``FlopCounterMode``, on tensors without data by CUDA's rules."""
    return flops_counted_in(
        strategy_build(replace(setup, device="cuda"), strategy, make_policy=make_policy)
    )


def flops_counted_in(build: Callable[[], Callable[[], object]]) -> CountedFlops:
    """The same of the step that ``build()`` returns, which is one micro-batch."""
    counter, forward = FlopCounterMode(display=False), 0

    def now(change: str, *_: object) -> None:
        """The program enters another phase: what is counted when the backward starts is the forward's."""
        nonlocal forward
        if change == "start_backward":
            forward = counter.get_total_flops()

    recorder = SimpleNamespace(now=now, saw=lambda _part, _tensors: None)
    with pretend_cuda(), counter:
        run_steps(build, 1, recorder)
    by_op = counter.get_flop_counts()["Global"]
    in_kernel = sum(by_op.get(op, 0) for op in FUSED_BACKWARD) // 5
    return CountedFlops(
        forward=forward, backward=counter.get_total_flops() - forward, in_kernel=in_kernel
    )
